// The copies of gemm_few_sm90.cu: units of weights into the rings of all warpgroups, and the slice of x.
#pragma once
#include "few_sm90_work.cuh"
#include "hopper.cuh"

constexpr bool MINIMA = has<Q4_K> || has<Q5_K>;
constexpr int SLOT = has<Q6_K> ? Unit<Q6_K>::bytes : has<Q5_K> ? Unit<Q5_K>::bytes : Unit<Q4_K>::bytes;
constexpr int TILE = TOKENS * 128;  // bytes of 64 inputs

// Shared memory.
struct Layout {
    u8 *x, *means, *ring;
    u64 *full, *empty;     // of the ring's slots, `depth` a warpgroup
    u64* inputs;           // chunks of x
    u64* prepared;         // `scales` and `all_tasks`
    f32* scales;           // of the results of each token
    u32 *queue, *tasks;    // how many tasks were taken and given, and what they are
    u32* all_tasks;        // how many there will be
    f32* sums;             // of the front's warps
    int depth;

    SP_DEVICE Layout(u8* shared, int width, int slots, int places) {
        x = shared, means = x + width / 64 * TILE, ring = means + (MINIMA ? (width / 512 + 1) * TILE : 0), depth = slots;
        full = reinterpret_cast<u64*>(ring + GROUPS * depth * SLOT), empty = full + GROUPS * depth;
        inputs = empty + GROUPS * depth;
        prepared = inputs + width / 512 + 1, scales = reinterpret_cast<f32*>(prepared + 1);
        queue = reinterpret_cast<u32*>(scales + TOKENS), tasks = queue + 2;
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
    if constexpr (U::high > 0) copy(U::low, U::high);
    copy(U::scales_at, U::scales);
    if constexpr (U::deltas > 0) copy(U::deltas_at, U::deltas);
}

// The weights of a warpgroup, a thread each: of item `t`, whose first unit here is `unit` of `end`, stage `stage` of `begin` to
// `stop` of weight `set`.
struct Fetch {
    int unit, end, t, begin, stop, stage, set, slot;
    u32 phase;
    Item item;

    SP_DEVICE Fetch(const Weights& weights, const Division& work, const Range& range) {
        unit = range.begin, end = range.end;
        t = unit / work.stages, begin = unit % work.stages, set = 0, slot = 0, phase = 1;
        stop = min(work.stages, begin + end - unit), stage = begin;
        item = item_at(weights, t);
    }

    SP_DEVICE bool more() const { return unit < end; }

    // On to the next unit, with `mine` after its copies are started.
    SP_DEVICE void next(const Weights& weights, const Division& work, int supers, const Layout& at, int group, bool mine) {
        if (mine) {
            const Weight w = pick(weights, EPILOGUE == 2 ? set : item.which);
            const i64 row = i64(item.tile) * supers + work.first + stage, all = i64(tiles_of(w)) * supers;
            const int place = group * at.depth + slot;
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (item.kind == F) fetch_unit<F>(at.ring + place * SLOT, w.data, row, all, at.full + place);
            SP_FOR_FORMAT(SP_DO)
#undef SP_DO
        }
        if (++slot == at.depth) slot = 0, phase ^= 1;
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
