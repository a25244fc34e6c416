// y_i[t, o] = sum_k x[t, k] W_i[o, k] for up to 64 tokens and up to four packed weights of super-blocks, on Hopper: the
// matrix products that verify speculated tokens.
//
//   x    tokens as tiles of f16 with means and scales, HELD = TOKENS (input_tiles.cuh), 256-byte aligned; with `plain` bf16
//        (tokens, k), or `wide` float32 (tokens, k) and `norm` float32 (k), whose RMS norm with `eps` comes first, this
//        kernel makes them (few_sm90_front.cuh), counting in `ready`. With `squares`, float32 (tokens, k / 16) sums of
//        16 squares, x are tokens times the weight of their norm; results are divided by sqrt(mean square + `eps`)
//   W_i  (rows_i, k) in fragment order, 256-byte aligned, of ggml type kind_i; FORMATS has bit kind_i set
//   y_i  (tokens, rows_i): EPILOGUE STORE: bf16 to y_i or float32 to z_i, whichever is given; ADD: to float32 z_0 in
//        place, and with `tiles` stores the sum times `next_norm`, float32 (rows_0), and `next_squares` of the sum as x
//        of the next product, the scales of its tiles by `before`, such squares of z_0 as it was, or null; SWIGLU makes
//        silu(y_0) * y_1, W_0 and W_1 being of one type and shape: bf16 in y_0, or with `tiles` as x of the next product.
//        With tiles rows_0 is a multiple of 256
//   grid (blocks for a slice, slices of k or 1), 128 * GROUPS + 128 threads, one block a multiprocessor
//   partials  float32 [slice][items + workers of a slice][strips of an item][PIECE], zero before and after; the same for
//             all launches, so that it stays in the L2 cache
//
// Each weight byte is read once. GROUPS warpgroups multiply; of one more the first warp fetches, one lane for each of them,
// by bulk copies into a ring of `depth` slots a warpgroup, which begins to fill before the kernel before has ended: `ahead`
// slots, by a thread of a helping warp for each of them; then come x and the rest. A block holds `width` inputs of x: up to 32
// tokens the slice that it multiplies by, so that x is read but once; of more tokens slices would become many and their
// sums more than the weights, so that stages of 256 inputs STREAM by, shared by the warpgroups, through a ring of x. The
// sums of workers meet in the L2 cache in a fixed order: results do not depend on timing (few_sm90_work.cuh,
// few_sm90_pieces.cuh). They are added up by the warps that have nothing else to do, for warpgroups go on with their
// next item. All blocks of the grid must run at once.
// Shared memory: x, its means (if a format needs them), the ring, barriers, scales, `places` for tasks. Arch 90a.
// Ideas: splitting by work and not by tiles after Stream-K (Osama et al., 2023), operands made in registers after
// Marlin (Frantar et al., 2024), a warp that only loads after CUTLASS (Thakkar et al.).
#include "pdl.cuh"
#include "few_sm90_finish.cuh"
#include "few_sm90_front.cuh"

extern __shared__ __align__(1024) u8 shared[];

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 128, 1)
    gemm_small_m_sm90(u8* x, const u16* plain, const f32* wide, const f32* norm, f32 eps, u32* ready, i32 tokens, i32 k,
                  i32 width, i32 depth, i32 ahead, i32 places, i32 count, f32* partials, u8* tiles,
                  const f32* squares, const f32* next_norm, f32* next_squares, const f32* before,
                  SP_WEIGHT_PARAMETERS) {
    const Weights weights = SP_WEIGHTS;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int supers = k / 256;
    const Layout at(shared, width, depth, places);
    const Division work(weights, supers);
    const Next next = {tiles, next_norm, next_squares, before};
    const Source source = {plain, wide, norm, eps, tokens, k};

    pdl_launch_dependents();  // and this one is launched so (PDL): its ring is filled while the kernel before still runs
    const int group = warp / 4, strip = warp % 4, helper = warp - 4 * GROUPS - 1;
    if (warp == 4 * GROUPS) {
        if (lane == 0) barrier_init(at.prepared, (HELPERS + 1) * WARP_ARRIVALS);  // and the fetching warp
        for (int i = lane; i < at.x_slots; i += 32) {
            barrier_init(at.inputs + i, 1);
            if (STREAMED) barrier_init(at.freed + i, 4 * GROUPS * WARP_ARRIVALS);
        }
        fence_async_proxy();  // the bulk copies are to see the barriers
    } else if (helper >= 0) {
        if (lane < depth) {
            barrier_init(at.full + helper * depth + lane, 1);
            barrier_init(at.empty + helper * depth + lane, 4 * WARP_ARRIVALS);
        }
        fence_async_proxy();
        for (int i = helper * 32 + lane; i < places + 2; i += 32 * HELPERS) at.queue[i] = 0;
    }
    __syncthreads();

    if (warp == 4 * GROUPS) {
        if (source.tiles()) {
            pdl_wait();
            if (!STREAMED && lane == 0) fetch_inputs(x, work, supers, at);
            __syncwarp();
        }
        const bool of_x = STREAMED && lane == GROUPS;  // this lane fills the ring of x
        Range theirs = {};
        if (lane < GROUPS || of_x) theirs = range_of(weights, work, of_x ? 0 : own_worker(lane));
        Fetch fetch(weights, work, theirs, of_x ? at.x_slots : depth);
        for (int i = 0; i < ahead; ++i)
            if (fetch.more() && !of_x) fetch.next(weights, work);
        pdl_wait();
        if (!source.tiles() && lane == (STREAMED ? GROUPS : 0)) {
            wait_for_tiles(ready);
            if (!STREAMED) fetch_inputs(x, work, supers, at);
            leave_tiles(ready);
        }
        __syncwarp();
        if (!source.tiles())
            for (int i = lane; i < TOKENS; i += 32) at.scales[i] = __ldcg(tile_scales(x, k, TOKENS) + i);
        barrier_arrive_warp(at.prepared, lane);
        u64* const emptied = of_x ? at.freed : at.empty + lane * depth;
        while (__any_sync(0xffffffffu, fetch.more()))
            if (fetch.more() && barrier_test(emptied + fetch.slot, fetch.phase)) {
                if (of_x)
                    fetch.copy_stage(x, supers, at);
                else
                    fetch.copy_weights(weights, work, supers, at, lane);
                fetch.next(weights, work);
            }
        // Nothing may arrive after the block has left.
        if (!STREAMED)
            for (int i = 0; i < work.chunks(); ++i) barrier_wait(at.inputs + i, 0);
    } else if (helper >= 0) {
        if (lane == 0) {  // the ring first
            Fetch fetch(weights, work, range_of(weights, work, own_worker(helper)), depth);
            for (int i = 0; i < ahead && fetch.more(); ++i) {
                fetch.copy_weights(weights, work, supers, at, helper);
                fetch.next(weights, work);
            }
        }
        __syncwarp();
        if (helper == 0) count_tasks(weights, work, at, lane);
        if (next_norm && helper == 1)  // in the L2 cache when it is asked for
            for (int i = (lane * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; i < rows0 / 32;
                 i += 32 * gridDim.x * gridDim.y)
                prefetch_l2(next_norm + 32 * i);
        pdl_wait();
        const f32* const given = source.tiles() ? tile_scales(x, k, TOKENS) : nullptr;
        find_scales(squares, eps, k, given, next, rows0, tokens, helper, at, lane);
        barrier_arrive_warp(at.prepared, lane);
    } else {
        const int thread = threadIdx.x % 128, worker = blockIdx.x * BLOCK_WORKERS + own_worker(group);
        const int strip_of_item = 4 * own_tile(group) + strip;
        const Range range = range_of(weights, work, own_worker(group));
        int unit = range.begin, t = unit / work.stages, stage = unit % work.stages, slot = 0, x_slot = 0;
        u32 phase = 0, x_phase = 0;
        if (source.tiles())
            pdl_wait();
        else
            make_tiles(source, x, at.sums, ready);
        const u32 upper = upper_bytes();
        Sums acc;
        for (; unit < range.end; stage = 0, ++t) {
            const Item item = item_at(weights, t);
            int kind = item.kind;
            if (STREAMED && item.tile + group >= tiles_of(pick(weights, item.which))) kind = NO_KIND;
            asm volatile("" : "+r"(kind));  // kept in a register: the compiler would recompute it for every unit
            const int begin = stage, stop = min(work.stages, stage + range.end - unit);
#pragma unroll 1
            for (int m = 0; m < SETS; ++m) {  // one after the other: there are registers for the sums of one
#pragma unroll
                for (int i = 0; i < SUMS; ++i) acc[i] = 0;
#pragma unroll 1
                for (stage = begin; stage < stop; ++stage) {
                    const int super = work.first + stage, chunk = STREAMED ? x_slot : super / 2 - work.chunk0();
                    const int x_place = STREAMED ? x_slot : stage;
                    const u64 tiles_here = wgmma_descriptor(shared_address(at.x) + x_place * (4 * TILE));
                    const u64 means_here = wgmma_descriptor(shared_address(at.means) + chunk * TILE + super % 2 * 64);
                    barrier_wait(at.inputs + chunk, x_phase);
                    const int place = group * depth + slot;
                    barrier_wait(at.full + place, phase);
                    const auto release = [&] { barrier_arrive_warp(at.empty + place, lane); };
#define SP_DO(F)          \
        if constexpr (has<F>) \
            if (kind == F)    \
                multiply_unit<F>(acc, at.ring + place * SLOT, tiles_here, means_here, upper, thread, release);
                    SP_FOR_FORMAT(SP_DO)
#undef SP_DO
                    if (STREAMED && kind == NO_KIND) release();
                    if (++slot == depth) slot = 0, phase ^= 1;
                    if constexpr (STREAMED) {
                        barrier_arrive_warp(at.freed + x_slot, lane);
                        if (++x_slot == at.x_slots) x_slot = 0, x_phase ^= 1;
                    }
                }
                if (STREAMED && kind == NO_KIND) continue;
                if (STREAMED && EPILOGUE == EPILOGUE_STORE && stop - begin == work.stages) {
                    write_whole(pick(weights, item.which), acc, next, at, (item.tile + group) * TILE_ROWS + strip * 16, tokens,
                                lane);
                    continue;
                }
                store_sums(partials + i64(piece_of(work, blockIdx.y, t, worker, strip_of_item)) * PIECE + m * (32 * SUMS), acc,
                           lane);
            }
            unit += stop - begin;
            if (!STREAMED || begin == 0)
                give_tasks(at, t, share_of(work, item, t, worker, begin == 0), strip_of_item, lane);
        }
        // What it shares with the worker before comes last: that one has its part of it at the end.
        t = range.begin / work.stages;
        if (STREAMED && range.begin % work.stages > 0)
            give_tasks(at, t, share_of(work, item_at(weights, t), t, worker, false), strip_of_item, lane);
    }
    do_tasks(weights, work, supers, tokens, partials, next, at, lane);
}
