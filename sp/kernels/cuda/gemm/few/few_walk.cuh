// The order of the units that a warp of gemm_small_m.cu multiplies, and the copies that run ahead of the products.
//
// An item is two strips of 16 rows: neighbours of one weight, or the same rows of gate and up. A block has every
// gridDim.x-th item and one slice of the inputs; its units (an item, a stage of the slice) lie in a row, item by item,
// and each warp takes a range of them so that all have as many bytes. Where a range ends inside an item, the next
// warp goes on with it.
#pragma once
#include "few_layout.cuh"
#include "strip.cuh"

SP_DEVICE int items_of(const Weight& w) { return EPILOGUE == EPILOGUE_SWIGLU ? (w.rows + 15) / 16 : (w.rows + 31) / 32; }

SP_DEVICE int stage_bytes(int kind) {
    int bytes = 0;
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (kind == F) bytes = Stage<F>::bytes;
    SP_FOR_FORMAT(SP_DO)
#undef SP_DO
    return bytes;
}

// How many of the first `end` items are this block's.
SP_DEVICE int owned(int end) {
    const int first = blockIdx.x, step = gridDim.x;
    return end > first ? (end - first + step - 1) / step : 0;
}

// Where the range of a warp begins: the unit before which warp / WARPS of the block's bytes lie.
SP_DEVICE int range_start(const Weights& weights, int count, int stages, int warp) {
    i64 all = 0;
#pragma unroll
    for (int pass = 0, before = 0; pass < 2; ++pass) {
        i64 target = all * stages * warp / WARPS;
        int start = 0, end = 0;
#pragma unroll
        for (int i = 0; i < OWN_OUTPUTS; ++i) {
            if (i >= count) break;
            end += items_of(weights.list[i]);
            const int mine = owned(end) - owned(start), bytes = stage_bytes(weights.list[i].kind);
            start = end;
            if (pass == 0) {
                all += i64(mine) * bytes;
            } else {
                const i64 here = i64(mine) * stages * bytes;
                if (target < here) return before + int(target / bytes);
                target -= here;
                before += mine * stages;
            }
        }
        if (pass == 1) return before;
    }
    return 0;
}

// Where a warp is: stage `index` of the slice, of item `item`, whose first strip is `strip` of weight `which`.
struct Walk {
    int unit, end;
    int item, which, strip, index;

    SP_DEVICE bool valid() const { return unit < end; }

    SP_DEVICE void locate(const Weights& weights, int count) {
        which = 0, strip = EPILOGUE == EPILOGUE_SWIGLU ? item : 2 * item;
        if constexpr (EPILOGUE == EPILOGUE_STORE) {
            int local = item;
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                const int here = items_of(weights.list[i]);
                if (which == i && i + 1 < count && local >= here) local -= here, which = i + 1;
            }
            strip = 2 * local;
        }
    }

    SP_DEVICE void start(const Weights& weights, int count, int stages, int from, int to) {
        unit = from, end = to;
        item = blockIdx.x + from / stages * gridDim.x, index = from % stages;
        if (valid()) locate(weights, count);
    }

    SP_DEVICE void next_item(const Weights& weights, int count) {
        index = 0, item += gridDim.x;
        if (valid()) locate(weights, count);
    }
};

// The planes of the second strip of an item. `apart`: from the bytes of gate to those of up.
template <class S>
SP_DEVICE Planes second_strip(Planes p, i64 apart, int lane) {
    using N = Pieces<S>;
    if constexpr (EPILOGUE == EPILOGUE_SWIGLU) {
        p.low += apart, p.high += apart, p.scales += apart;
    } else {
        p.low += 16 * N::low_run, p.high += 16 * N::high_run;
        p.scales += S::deltas > 0 && lane >= N::scales ? S::deltas : 16 * N::scale_run;
    }
    return p;
}

// On to the next stage.
template <class S>
SP_DEVICE void advance(Planes& p, int stages, int lane) {
    using F = Packing<S::format>;
    p.low += i64(stages) * (S::tiles * F::low_bytes);
    if constexpr (S::high > 0) p.high += i64(stages) * (S::tiles * F::high_bytes);
    if constexpr (S::scales > 0)
        p.scales += i64(stages) * (S::deltas > 0 && lane >= Pieces<S>::scales ? F::deltas_bytes : F::scales_bytes);
}

// The copies of a warp: STAGES - 1 stages ahead of its products.
struct Fetch {
    Walk at;
    int kind;
    Planes planes;  // of the stage at hand

    // `stage`: of the item's rows.
    SP_DEVICE void enter(const Weights& weights, int k_tiles, int stage, int lane) {
        const Weight w = pick(weights, at.which);
        kind = w.kind;
        const i64 row_tiles = (w.rows + 63) / 64;
#define SP_DO(F)                                                                                           \
    if constexpr (has<F>)                                                                                  \
        if (kind == F) {                                                                                   \
            planes = strip_of<Stage<F>>(planes_of<F>(w.data, row_tiles, k_tiles), at.strip, k_tiles, lane); \
            advance<Stage<F>>(planes, stage, lane);                                                               \
        }
        SP_FOR_FORMAT(SP_DO)
#undef SP_DO
    }

    // `first`: the stage the slice begins with, `stages`: how many it has.
    SP_DEVICE void next(const Weights& weights, int count, int k_tiles, int first, int stages, u32 slot, int lane) {
        if (at.valid()) {
            const i64 apart = EPILOGUE == EPILOGUE_SWIGLU ? weights.list[1].data - weights.list[0].data : 0;
#define SP_DO(F)                                                                                       \
    if constexpr (has<F>)                                                                              \
        if (kind == F) {                                                                               \
            using S = Stage<F>;                                                                        \
            fetch_stage<S>(slot, planes, 0, lane);                                                     \
            fetch_stage<S>(slot + S::bytes, second_strip<S>(planes, apart, lane), 0, lane);            \
            advance<S>(planes, 1, lane);                                                               \
        }
            SP_FOR_FORMAT(SP_DO)
#undef SP_DO
            ++at.unit;
            if (++at.index == stages) {
                at.next_item(weights, count);
                if (at.valid()) enter(weights, k_tiles, first, lane);
            }
        }
        cp_async_commit();
    }
};
