// y_i[t, o] = sum_k x[t, k] W_i[o, k] for up to 32 tokens and up to four packed K-quant weights, on Hopper: the matrix
// products of checking drafted tokens.
//
//   x    tokens as tiles of f16 with their means, HELD = TOKENS (input_tiles.cuh), 1024-byte aligned
//   W_i  (rows_i, k) in fragment order, 256-byte aligned, of ggml type kind_i; FORMATS has bit kind_i set
//   y_i  (tokens, rows_i): EPILOGUE 0 stores bf16 to y_i or float32 to z_i, whichever is given; 1 adds to float32 z_0
//        in place; 2 makes silu(y_0) * y_1, W_0 and W_1 being of one type and shape: bf16 in y_0, or with `tiles` as x
//        of the next product (rows_0 a multiple of 256)
//   grid (blocks for a slice, slices of k), 128 * GROUPS + 32 threads, one block a multiprocessor
//   partials  float32 [slice][items + GROUPS * blocks for a slice][4 warps][PIECE], arrived u32 [item][4], zero before
//             and after
//
// Bound by memory: each weight byte is read once. GROUPS warpgroups multiply; a warp of its own fetches, one lane for each
// of them, by bulk copies into a ring of `depth` slots a warpgroup, which begins to fill before the kernel before has
// ended: up to `ahead` slots, then come x and the rest. A block holds one slice of x, at most `width` inputs. The sums of
// workers meet in the L2 cache in a fixed order: results do not depend on timing (few_sm90_work.cuh).
// Shared memory: x, its means (if a format needs them), the ring, barriers. Arch 90a.
// Ideas: splitting by work and not by tiles after Stream-K (Osama et al., 2023), operands made in registers after
// Marlin (Frantar et al., 2024), a warp that only loads after CUTLASS (Thakkar et al.).
#include "early.cuh"
#include "few_sm90_finish.cuh"

constexpr bool MINIMA = has<Q4_K> || has<Q5_K>;
constexpr int SLOT = has<Q6_K> ? Unit<Q6_K>::bytes : has<Q5_K> ? Unit<Q5_K>::bytes : Unit<Q4_K>::bytes;
constexpr int TILE = TOKENS * 128;  // bytes of 64 inputs

extern __shared__ __align__(1024) u8 shared[];

// Whether the phase of that parity has ended.
SP_DEVICE bool barrier_test(u64* barrier, u32 phase) {
    u32 done;
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
    return done != 0;
}

// Starts the copies of a unit; `row`: its place among the super-blocks of the weight, of `all`.
template <int F>
SP_DEVICE void fetch_unit(u8* slot, const u8* data, i64 row, i64 all, u64* barrier) {
    using U = Unit<F>;
    barrier_expect(barrier, U::bytes);
    bulk_load(slot, data + row * U::low, U::low, barrier);
    data += all * U::low;
    if constexpr (U::high > 0) bulk_load(slot + U::low, data + row * U::high, U::high, barrier);
    data += all * U::high;
    bulk_load(slot + U::scales_at, data + row * U::scales, U::scales, barrier);
    data += all * U::scales;
    if constexpr (U::deltas > 0) bulk_load(slot + U::deltas_at, data + row * U::deltas, U::deltas, barrier);
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 32, 1)
    gemm_few_sm90(const u8* x, i32 tokens, i32 k, i32 width, i32 depth, i32 ahead, i32 count, f32* partials,
                  u32* arrived, u8* tiles,
                  const u8* data0, i32 kind0, i32 rows0, u16* y0, f32* z0,
                  const u8* data1, i32 kind1, i32 rows1, u16* y1, f32* z1,
                  const u8* data2, i32 kind2, i32 rows2, u16* y2, f32* z2,
                  const u8* data3, i32 kind3, i32 rows3, u16* y3, f32* z3) {
    const Weights weights = {{{data0, kind0, rows0, y0, z0}, {data1, kind1, rows1, y1, z1},
                              {data2, kind2, rows2, y2, z2}, {data3, kind3, rows3, y3, z3}}, count};
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int supers = k / 256;
    u8* const means = shared + width / 64 * TILE;
    u8* const ring = means + (MINIMA ? (width / 512 + 1) * TILE : 0);
    u64* const full = reinterpret_cast<u64*>(ring + GROUPS * depth * SLOT);
    u64* const empty = full + GROUPS * depth;
    u64* const inputs = empty + GROUPS * depth;  // of two super-blocks each
    const Division work(weights, supers);
    const int chunk0 = work.first / 2, chunks = (work.first + work.stages - 1) / 2 - chunk0 + 1;

    let_next_start();  // and this one is launched early: its ring is filled while the kernel before still runs
    if (warp == 4 * GROUPS) {
        for (int i = lane; i < GROUPS * depth; i += 32) barrier_init(full + i, 1), barrier_init(empty + i, 4 * WARP_ARRIVALS);
        for (int i = lane; i < chunks; i += 32) barrier_init(inputs + i, 1);
        barrier_init_fence();
    }
    __syncthreads();

    if (warp == 4 * GROUPS) {
        // Lane i fetches for warpgroup i: unit `unit` of `end`, stage `stage` of item `t`, weight `set` of it.
        const int worker = blockIdx.x * GROUPS + min(lane, GROUPS - 1);
        int unit = work.start(weights, worker), end = lane < GROUPS ? work.start(weights, worker + 1) : unit;
        int t = unit / work.stages, stage = unit % work.stages, set = 0, slot = 0;
        u32 phase = 1;
        Item item = item_at(weights, t);
        u8* const own = ring + lane * depth * SLOT;
        u64 *const own_full = full + lane * depth, *const own_empty = empty + lane * depth;
        const auto fetch = [&] {
            const Weight w = pick(weights, EPILOGUE == 2 ? set : item.which);
            const i64 row = i64(item.tile) * supers + work.first + stage, all = i64(tiles_of(w)) * supers;
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (item.kind == F) fetch_unit<F>(own + slot * SLOT, w.data, row, all, own_full + slot);
            SP_FOR_FORMAT(SP_DO)
#undef SP_DO
            if (++slot == depth) slot = 0, phase ^= 1;
            if (++set < SETS) return;
            set = 0, ++unit;
            if (++stage == work.stages) stage = 0, item = item_at(weights, ++t);
        };
        for (int i = 0; i < ahead; ++i)
            if (unit < end) fetch();
        wait_for_earlier();
        if (lane == 0) {
            for (int i = 0; i < chunks; ++i) {
                const int from = max(2 * (chunk0 + i), work.first), to = min(2 * (chunk0 + i) + 2, work.first + work.stages);
                const u32 bytes = (to - from) * 4 * TILE;
                barrier_expect(inputs + i, bytes + (MINIMA ? TILE : 0));
                bulk_load(shared + (from - work.first) * 4 * TILE, x + i64(from) * 4 * TILE, bytes, inputs + i);
                if constexpr (MINIMA)
                    bulk_load(means + i * TILE, x + (i64(supers) * 4 + chunk0 + i) * TILE, TILE, inputs + i);
            }
        }
        __syncwarp();
        while (__any_sync(0xffffffffu, unit < end))
            if (unit < end && barrier_test(own_empty + slot, phase)) fetch();
        // Nothing may arrive after the block has left.
        for (int i = 0; i < chunks; ++i) barrier_wait(inputs + i, 0);
        return;
    }

    wait_for_earlier();
    const int group = warp / 4, thread = threadIdx.x % 128, worker = blockIdx.x * GROUPS + group;
    int unit = work.start(weights, worker);
    const int end = work.start(weights, worker + 1);
    int t = unit / work.stages, stage = unit % work.stages, slot = 0;
    u32 phase = 0;
    const u64 x_tiles = wgmma_descriptor(shared_address(shared)), mean_tiles = wgmma_descriptor(shared_address(means));
    const u32 upper = upper_bytes();
    Sums acc;
    while (unit < end) {
        const Item item = item_at(weights, t);
        const int begin = stage, stop = min(work.stages, stage + end - unit);
#pragma unroll
        for (int m = 0; m < SETS; ++m)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) acc[m][i] = 0;
#pragma unroll 1
        for (; stage < stop; ++stage) {
            const int super = work.first + stage, chunk = super / 2 - chunk0;
            const u64 here = x_tiles + stage * (4 * TILE / 16), at = mean_tiles + chunk * (TILE / 16) + super % 2 * 4;
            barrier_wait(inputs + chunk, 0);
#pragma unroll
            for (int m = 0; m < SETS; ++m) {
                const int held = group * depth + slot;
                barrier_wait(full + held, phase);
                const auto release = [&] { barrier_arrive_warp(empty + held, lane); };
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (item.kind == F) multiply_unit<F>(acc[m], ring + held * SLOT, here, at, upper, thread, release);
                SP_FOR_FORMAT(SP_DO)
#undef SP_DO
                if (++slot == depth) slot = 0, phase ^= 1;
            }
        }
        const int units = stop - begin;
        unit += units;
        if (units == supers || gather(acc, work, item, t, worker, units, supers, partials, arrived, warp % 4, lane))
            write(pick(weights, item.which), acc, tiles, item.tile * TILE_ROWS + warp % 4 * 16, tokens, lane);
        stage = 0, ++t;
    }
}
