// y_i[t, o] = sum_k x[t, k] W_i[o, k] for 9 to 32 tokens and up to four packed weights: the matrix products that verify
// speculated tokens.
//
//   x    bf16 (tokens, k)
//   W_i  (rows_i, k) in fragment order, 256-byte aligned, of ggml type kind_i; FORMATS has bit kind_i set
//   y_i  (tokens, rows_i): EPILOGUE STORE: bf16 to y_i or float32 to z_i, whichever is given; ADD: to float32 z_0 in
//        place; SWIGLU: bf16 silu(y_0) * y_1 to y_0, W_0 and W_1 being of one type and shape
//   grid (blocks for a slice, slices of k: split-K), 32 * WARPS threads, one block a multiprocessor
//   partials  float32 [slice][item][32 * PIECE], arrived  u32 [item], zero before and after; both null for one slice
//
// Bound by memory: each weight byte is read once, through a ring of STAGES slots a warp (cp.async) that
// begins to fill before x is even asked for and never waits for the end of an item. A block holds one slice of x (at most WIDTH inputs),
// so that x is read once by each block and the larger the GPU, the more blocks share an item. Sums meet twice, both
// times in a fixed order: of the warps of a block, and of the slices, where the last to come adds them up. Results do
// not depend on timing. With HEADS, sums on their way from warp to warp lie in shared memory, else in the L2 cache.
// Ideas: splitting by work and not by tiles after Stream-K (Osama et al., 2023), weight layout and group-wise scaling
// after Marlin (Frantar et al., 2024). Arches: 80+.
#include "pdl.cuh"
#include "few_finish.cuh"
#include "few_inputs.cuh"
#include "few_products.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    gemm_small_m(const u16* x, i32 tokens, i32 k, i32 count, f32* heads, f32* partials, u32* arrived,
             SP_WEIGHT_PARAMETERS) {
    const Weights weights = SP_WEIGHTS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k_tiles = k / 64;
    const int first = i64(k / STAGE_K) * blockIdx.y / gridDim.y;
    const int stages = int(i64(k / STAGE_K) * (blockIdx.y + 1) / gridDim.y) - first;

    pdl_launch_dependents();  // and this one is launched so (PDL): its ring is filled while the kernel before still runs
    // Lane i knows where the range of warp i begins.
    const int starts = range_start(weights, count, stages, min(lane, WARPS));
    Walk compute;
    compute.start(weights, count, stages, __shfl_sync(0xffffffffu, starts, warp),
                  __shfl_sync(0xffffffffu, starts, warp + 1));
    Fetch fetch = {};
    fetch.at = compute;
    if (compute.valid()) fetch.enter(weights, k_tiles, first + compute.index, lane);
    u8* ring = shared + warp * (STAGES * SLOT);
    const u32 ring_address = shared_address(ring);
    const auto fill = [&](int from, int to) {
        for (int i = from; i < to; ++i)
            fetch.next(weights, count, k_tiles, first, stages, ring_address + i * SLOT, lane);
    };
    fill(0, STAGES - 1);  // the last slot waits until x has been asked for: x would come behind it

    pdl_wait();
    fetch_slice(x + first * STAGE_K, k, stages * STAGE_K, tokens, warp, lane);
    fill(STAGES - 1, STAGES);
    cp_async_wait<1>();
    if constexpr (SUPER) convert_slice(warp, lane);
    __syncthreads();
    const u32 inputs = shared_address(shared + X_AT) + lane % 8 * PITCH + lane / 8 * 16;

    int items = 0;
#pragma unroll
    for (int i = 0; i < OWN_OUTPUTS; ++i) items += i < count ? items_of(weights.list[i]) : 0;
    f32* pieces = HEADS ? reinterpret_cast<f32*>(shared + HEADS_AT)
                        : heads + (i64(blockIdx.y) * gridDim.x + blockIdx.x) * (WARPS * 32 * PIECE);
    Sums acc;
    bool tail = false;
    int slot = 0;
    while (compute.valid()) {
        const int kind = pick(weights, compute.which).kind, begin = compute.index;
        const int stop = min(stages, begin + compute.end - compute.unit);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int nt = 0; nt < NT; ++nt)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[m][nt][i] = 0;
#pragma unroll 1
        for (int index = begin; index < stop; ++index) {
            cp_async_wait<STAGES - 1>();
            __syncwarp();
            const u8* here = ring + slot * SLOT;
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (kind == F) multiply_pair<F>(acc, here, inputs, index, lane);
            SP_FOR_FORMAT(SP_DO)
#undef SP_DO
            __syncwarp();
            fetch.next(weights, count, k_tiles, first, stages, ring_address + slot * SLOT, lane);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        compute.unit += stop - begin;
        if (begin > 0) {
            store_piece(pieces + warp * (32 * PIECE), acc, lane);
        } else if (stop < stages) {
            tail = true;
            break;
        } else if (gridDim.y == 1 || gather_slices(acc, partials, arrived, items, compute.item, lane)) {
            write(weights, compute, acc, tokens, lane);
        }
        compute.next_item(weights, count);
    }
    cp_async_wait<0>();
    __syncthreads();
    if (!tail) return;
    // The warps after this one went on with its last item.
    const int whole = compute.unit - compute.unit % stages + stages;
    for (int next = warp + 1; next < WARPS; ++next) {
        const int from = __shfl_sync(0xffffffffu, starts, next), to = __shfl_sync(0xffffffffu, starts, next + 1);
        if (from >= whole) break;
        if (from < to) add_piece<false>(acc, pieces + next * (32 * PIECE), lane);
    }
    if (gridDim.y == 1 || gather_slices(acc, partials, arrived, items, compute.item, lane))
        write(weights, compute, acc, tokens, lane);
}
