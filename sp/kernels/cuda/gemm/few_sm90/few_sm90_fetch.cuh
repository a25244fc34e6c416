// The copies of gemm_small_m_sm90.cu: units of weights into the rings of all warpgroups, and the slice of x, or its stages into a
// ring of their own.
#pragma once
#include "few_sm90_work.cuh"
#include "hopper.cuh"

constexpr FormatSet FORMATS_HELD = format_set<Unit>();
constexpr bool MINIMA = FORMATS_HELD.minima;
constexpr int SLOT = FORMATS_HELD.bytes;
constexpr int TILE = TOKENS * 128;  // bytes of 64 inputs

// Shared memory.
struct Layout {
    u8 *x, *means, *ring;
    u64 *full, *empty;     // of the ring's slots, `depth` a warpgroup
    u64 *inputs, *freed;   // chunks of x; slots of x that may be filled again
    u64* prepared;         // `scales`, `inverses` and `all_tasks`
    f32* scales;           // of the results of each token
    f32* inverses;         // of the scales of tiles that are made
    u32 *queue, *tasks;    // how many tasks were taken and given, and what they are
    u32* all_tasks;        // how many there will be
    f32* sums;             // of the front's warps
    int depth, x_slots;

    SP_DEVICE Layout(u8* shared, int width, int slots, int places) {
        const int chunks = STREAMED ? width / 256 : width / 512 + 1;
        x = shared, means = x + width / 64 * TILE, ring = means + (MINIMA ? chunks * TILE : 0), depth = slots;
        full = reinterpret_cast<u64*>(ring + GROUPS * depth * SLOT), empty = full + GROUPS * depth;
        inputs = empty + GROUPS * depth, x_slots = chunks, freed = inputs + chunks;
        prepared = freed + (STREAMED ? chunks : 0), scales = reinterpret_cast<f32*>(prepared + 1);
        inverses = scales + TOKENS, queue = reinterpret_cast<u32*>(inverses + TOKENS), tasks = queue + 2;
        all_tasks = tasks + places, sums = reinterpret_cast<f32*>(all_tasks + 1);
    }
};

// Whether the phase of that parity has ended.
SP_DEVICE bool barrier_test(u64* barrier, u32 phase) {
    u32 done;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
    return done != 0;
}

// bulk_load of what is read but once: the L2 cache gives it up first, not what other kernels left there.
SP_DEVICE void bulk_load_once(void* target, const void* source, u32 bytes, u64* barrier) {
    asm volatile(
        "{\n\t.reg .b64 policy;\n\t"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n\t}"
        ::"r"(shared_address(target)),
        "l"(source), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Starts the copies of a unit; `row`: its place among the super-blocks of the weight, of `all`.
template <int F>
SP_DEVICE void fetch_unit(u8* slot, const u8* data, i64 row, i64 all, u64* barrier) {
    using U = Unit<F>;
    barrier_expect(barrier, U::bytes);
    const auto copy = [&](int at, int bytes) {
        bulk_load_once(slot + at, data + row * bytes, bytes, barrier);
        data += all * bytes;
    };
    copy(0, U::low);
    if constexpr (U::high > 0) copy(U::high_at, U::high);
    copy(U::scales_at, U::scales);
    if constexpr (U::deltas > 0) copy(U::deltas_at, U::deltas);
}

// What a worker's ring is filled with, of weights or of x: of item `t`, whose first unit here is `unit` of `end`, stage `stage`
// of `begin` to `stop` of weight `set`.
struct Fetch {
    int unit, end, t, begin, stop, stage, set, slot, slots;
    u32 phase;
    Item item;

    SP_DEVICE Fetch(const Weights& weights, const Division& work, const Range& range, int ring_slots) {
        unit = range.begin, end = range.end, slots = ring_slots;
        t = unit / work.stages, begin = unit % work.stages, set = 0, slot = 0, phase = 1;
        stop = min(work.stages, begin + end - unit), stage = begin;
        item = item_at(weights, t);
    }

    SP_DEVICE bool more() const { return unit < end; }

    // Starts the copies of the weights of warpgroup `group`.
    SP_DEVICE void copy_weights(const Weights& weights, const Division& work, int supers, const Layout& at, int group) const {
        const Weight w = pick(weights, EPILOGUE == EPILOGUE_SWIGLU ? set : item.which);
        const int tile = item.tile + own_tile(group), tiles = tiles_of(w), place = group * at.depth + slot;
        if (tile >= tiles) {
            barrier_arrive(at.full + place);
            return;
        }
        const i64 row = i64(tile) * supers + work.first + stage, all = i64(tiles) * supers;
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (item.kind == F) fetch_unit<F>(at.ring + place * SLOT, w.data, row, all, at.full + place);
        SP_FOR_SUPER(SP_DO)
#undef SP_DO
    }

    // Starts the copies of a stage of x, with the tile that has its means.
    SP_DEVICE void copy_stage(const u8* x, int supers, const Layout& at) const {
        barrier_expect(at.inputs + slot, (MINIMA ? 5 : 4) * TILE);
        bulk_load(at.x + slot * (4 * TILE), x + i64(stage) * (4 * TILE), 4 * TILE, at.inputs + slot);
        if constexpr (MINIMA)
            bulk_load(at.means + slot * TILE, x + (i64(supers) * 4 + stage / 2) * TILE, TILE, at.inputs + slot);
    }

    // On to the next unit.
    SP_DEVICE void next(const Weights& weights, const Division& work) {
        if (++slot == slots) slot = 0, phase ^= 1;
        if (++stage < stop) return;
        stage = begin;
        if (++set < SETS) return;
        unit += stop - begin;
        set = 0, begin = 0, stage = 0, stop = min(work.stages, end - unit), item = item_at(weights, ++t);
    }
};

// The slice of x, by one thread.
SP_DEVICE void fetch_inputs(const u8* x, const Division& work, int supers, const Layout& at) {
    const int chunk0 = work.chunk0(), chunks = work.chunks();
    for (int i = 0; i < chunks; ++i) {
        const int begin = 2 * (chunk0 + i), from = max(begin, work.first), to = min(begin + 2, work.first + work.stages);
        const u32 bytes = (to - from) * 4 * TILE;
        barrier_expect(at.inputs + i, bytes + (MINIMA ? TILE : 0));
        bulk_load(at.x + (from - work.first) * 4 * TILE, x + i64(from) * 4 * TILE, bytes, at.inputs + i);
        if constexpr (MINIMA)
            bulk_load(at.means + i * TILE, x + (i64(supers) * 4 + chunk0 + i) * TILE, TILE, at.inputs + i);
    }
}
