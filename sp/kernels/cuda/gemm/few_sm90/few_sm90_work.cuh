// The division of work in gemm_small_m_sm90.cu.
//
// An item is a row tile, 64 outputs, of one weight; with SWIGLU the same rows of gate and of up. A unit is an item's
// super-block of 256 inputs. The inputs are cut into gridDim.y slices. In a slice the units lie in a row, item by item;
// each of its workers, the warpgroups of gridDim.x blocks, takes a range of them, so that all have about as many bytes.
// Where x is STREAMED, warpgroups share its stages: an item is GROUPS row tiles, one a warpgroup (behind the last rows of a
// weight some have none), a worker a block, and there is one slice.
// An item's sum then meets from several workers: the piece of worker v for item t lies at place t + v of its slice,
// which no other piece has, since along the row of units neither of the two numbers falls and one of them grows. The
// host starts no more workers than all find a unit, so that an item's workers follow each other without a gap.
#pragma once
#include "format_set.cuh"
#include "weights.cuh"

// A unit of one weight, as it lies in a slot of the ring.
template <int F>
using Unit = Slot<F, UNIT_ROWS>;

constexpr bool STREAMED = TOKENS > 32;
constexpr int ITEM_TILES = STREAMED ? GROUPS : 1;
constexpr int STRIPS = 4 * ITEM_TILES;              // of 16 rows of an item, a warp's each
constexpr int BLOCK_WORKERS = GROUPS / ITEM_TILES;
constexpr int NO_KIND = -1;  // of a warpgroup that has no tile

// Of warpgroup `group`: its tile among an item's, and its worker among the block's.
SP_DEVICE int own_tile(int group) { return STREAMED ? group : 0; }
SP_DEVICE int own_worker(int group) { return STREAMED ? 0 : group; }

constexpr int SETS = EPILOGUE == EPILOGUE_SWIGLU ? 2 : 1;  // weights of an item

SP_DEVICE int cost_of(int kind) {
    int cost = 0;
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (kind == F) cost = Unit<F>::bytes / 1024;
    SP_FOR_SUPER(SP_DO)
#undef SP_DO
    return cost;
}

SP_DEVICE int tiles_of(const Weight& w) { return (w.rows + TILE_ROWS - 1) / TILE_ROWS; }

SP_DEVICE int items_of(const Weight& w) { return (tiles_of(w) + ITEM_TILES - 1) / ITEM_TILES; }

// Where item t is: row tile `tile` of weight `which` and, where there are more, those behind it.
struct Item {
    int which, tile, kind;
    u32 before;  // cost of a stage of all items before it
};

SP_DEVICE Item item_at(const Weights& weights, int t) {
    Item item = {0, t, weights.list[0].kind, 0};  // `tile` counts items until the end
#pragma unroll
    for (int i = 0; i + 1 < OWN_OUTPUTS; ++i) {
        const int here = items_of(weights.list[i]);
        if (item.which == i && i + 1 < weights.count && item.tile >= here) {
            item.which = i + 1, item.tile -= here, item.kind = weights.list[i + 1].kind;
            item.before += here * cost_of(weights.list[i].kind);
        }
    }
    item.before += item.tile * cost_of(item.kind);
    item.tile *= ITEM_TILES;
    return item;
}

// The work of one slice. Costs times workers fit in 32 bits; the host sees to it.
struct Division {
    u32 cost;     // of a stage of all items
    int items, stages, first, workers;

    SP_DEVICE Division(const Weights& weights, int supers) {
        first = supers * blockIdx.y / gridDim.y;
        stages = supers * (blockIdx.y + 1) / gridDim.y - first;
        workers = gridDim.x * BLOCK_WORKERS;
        cost = 0, items = 0;
#pragma unroll
        for (int i = 0; i < OWN_OUTPUTS; ++i)
            if (i < weights.count) {
                const int here = items_of(weights.list[i]);
                items += here, cost += here * cost_of(weights.list[i].kind);
            }
    }

    // The inputs come in chunks of two super-blocks, as their means do.
    SP_DEVICE int chunk0() const { return first / 2; }
    SP_DEVICE int chunks() const { return (first + stages - 1) / 2 - first / 2 + 1; }

    // The first unit of a worker: the first one before which that worker's share of the cost lies.
    SP_DEVICE int start(const Weights& weights, int worker) const {
        u32 target = (cost * stages * worker + workers - 1) / workers;
        int before = 0;
#pragma unroll
        for (int i = 0; i < OWN_OUTPUTS; ++i)
            if (i < weights.count) {
                const u32 each = cost_of(weights.list[i].kind);
                const int units = items_of(weights.list[i]) * stages;
                if (target <= units * each) return before + int((target + each - 1) / each);
                target -= units * each, before += units;
            }
        return before;
    }

    // The worker that has stage `stage` of an item, in a slice of `count` stages.
    SP_DEVICE int worker_of(const Item& item, int stage, int count) const {
        return (item.before * count + stage * cost_of(item.kind)) * workers / (cost * count);
    }
};

// The units of a worker.
struct Range {
    int begin, end;
};

// Of worker `one` of this block.
SP_DEVICE Range range_of(const Weights& weights, const Division& work, int one) {
    const int worker = blockIdx.x * BLOCK_WORKERS + one;
    return {work.start(weights, worker), work.start(weights, worker + 1)};
}
