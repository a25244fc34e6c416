// Prefill matmul of bytes: Y[n, o] = sum_k X[n, k] W[o, k] for X and W rounded to int8 (KIND 0) or e4m3 (KIND 1) with a
// float32 scale for a row, as round_rows.cu makes them, and for up to 64 outlier channels in bf16 besides.
//
//   X        bytes (tokens, k) row-major, by tensor map x_map: box 128 k x TOKENS / CLUSTER; x_scales f32 (whole TOKENS)
//   W        bytes (rows of whole 64, k), by w_map: box 128 k x 64; w_scales f32 (rows). SWIGLU: gate's rows, then those of
//            up from row tile `second` on
//   loud     bf16 (tokens, 64) and (rows, 64) by xl_map and wl_map, boxes of as many rows; not read where *loud_count is 0
//   Y        (tokens, out) row-major, by y_map: box of 128-byte rows x 32 tokens, 128-byte swizzle; EPILOGUE STORE bf16,
//            STORE_F32 float32, ADD float32 that the product is added to, SWIGLU bf16 silu(X Gᵀ) * (X Uᵀ). Of up to three
//            weights one under the other, row tiles from end0 and from end1 on go to arrays of their own, by y1_map and y2_map;
//            ends past all tiles where there are fewer
// Both sides hold the inputs in the same order, whichever that is. Every map has the 128-byte swizzle.
//
// Y = (w_scale * x_scale) * sum + the product of outlier channels, which float32 sums begin with the first; of int8 the sum of
// bytes is exact (k * 127^2 < 2^31), of e4m3 it has the precision of tensor cores.
// Launch: 384 threads, one block an SM, persistent: a thread of warpgroup 0 loads, 1 and 2 multiply 64 outputs x TOKENS each
// (SWIGLU: the same 64 of gate and of up; then they trade halves, as bf16). CLUSTER = 2: pairs of blocks of neighbouring outputs,
// each loads half of the X tile for both. GROUP token blocks side by side share what they load in L2.
// Any tokens >= 1; out a multiple of 8; k = 128 steps, at least two steps. Arch 90a.
// Sources: warp-specialised persistent kernels as in CUTLASS (Thakkar et al.), outlier channels apart as in LLM.int8() (Dettmers
// et al., 2022).
#include "gemm_bytes_sm90_finish.cuh"
#include "pdl.cuh"
#include "wgmma_bytes.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    gemm_bytes_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                    const __grid_constant__ TensorMap xl_map, const __grid_constant__ TensorMap wl_map,
                    const __grid_constant__ TensorMap y_map, const __grid_constant__ TensorMap y1_map,
                    const __grid_constant__ TensorMap y2_map, const f32* x_scales, const f32* w_scales, const u32* loud_count,
                    u32 token_blocks, u32 out_blocks, u32 row_tiles, u32 second, u32 end0, u32 end1, u32 steps) {
    extern __shared__ __align__(1024) u8 shared[];
    u64* full = reinterpret_cast<u64*>(shared + BARRIER_OFFSET);
    u64* empty = full + STAGES;
    f32* token_scales = reinterpret_cast<f32*>(shared + SCALES_OFFSET);
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 4 * WARPGROUPS * CLUSTER * WARP_ARRIVALS);  // every consumer warp
        }
        barrier_init_fence();
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) cluster_sync();
    pdl_launch_dependents();
    pdl_wait();

    const u32 tiles = token_blocks * out_blocks, cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const u32 loud = *loud_count > 0;
    // Past the last row tile any does: nothing of that result is stored.
    const auto first_row = [&](const Tile& tile, u32 g) {
        return 64 * i32(min(u32(tile.row_tile) + (GATED ? 0 : g), row_tiles - 1) + (GATED && g ? second : 0));
    };
    if (threadIdx.x < 128) {
        registers_lower<40>();
        Ring ring{0, 1};  // so that the first round does not wait
        if (threadIdx.x == 0) {
            u32 slot = 0;
            for (u32 index = cluster; index < tiles; index += clusters, slot = (slot + 1) % SCALE_SLOTS) {
                const Tile tile = tile_of(index, token_blocks, out_blocks, rank);
                for (u32 k = 0; k < steps + loud; ++k, ring.advance()) {
                    const bool last = k == steps - 1;  // which brings the scales of the tile's tokens
                    const bool apart = k == steps;
                    const TensorMap* from = apart ? &xl_map : &x_map;
                    u64* barrier = full + ring.stage;
                    u8* x = shared + ring.stage * X_BYTES;
                    u8* w = shared + W_OFFSET + ring.stage * WARPGROUPS * W_BYTES;
                    const i32 at = apart ? 0 : 128 * i32(k);
                    constexpr u32 part = TOKENS / CLUSTER;
                    barrier_wait(empty + ring.stage, ring.phase);
                    barrier_expect(barrier, X_BYTES + WARPGROUPS * W_BYTES + (last ? 4 * TOKENS : 0));
                    if constexpr (CLUSTER > 1)
                        tensor_load_multicast(x + rank * part * 128, from, barrier, (1 << CLUSTER) - 1, at, tile.token + rank * part);
                    else
                        tensor_load(x, from, barrier, at, tile.token);
#pragma unroll
                    for (u32 g = 0; g < WARPGROUPS; ++g)
                        tensor_load(w + g * W_BYTES, apart ? &wl_map : &w_map, barrier, at, first_row(tile, g));
                    if (last) bulk_load(token_scales + slot * TOKENS, x_scales + tile.token, 4 * TOKENS, barrier);
                }
            }
        }
    } else {
        registers_raise<232>();
        const u32 group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        Sum sums[TOKENS / 2];
        Ring ring;
        const u64 a = wgmma_descriptor(shared_address(shared + W_OFFSET + group * W_BYTES));
        const u64 b = wgmma_descriptor(shared_address(shared));
        auto release = [&](u32 stage) {
            if constexpr (CLUSTER == 1) barrier_arrive_warp(empty + stage, lane);
            if constexpr (CLUSTER > 1) {
                __syncwarp();
                if (lane < WARP_ARRIVALS)
                    for (u32 r = 0; r < CLUSTER; ++r) barrier_arrive_at(empty + stage, r);
            }
        };

        u32 slot = 0;
        for (u32 index = cluster; index < tiles; index += clusters, slot = (slot + 1) % SCALE_SLOTS) {
            const Tile tile = tile_of(index, token_blocks, out_blocks, rank);
            const f32* row_scales = w_scales + first_row(tile, group) + 16 * warp + lane / 4;
            const f32 row_scale = row_scales[0], row_scale8 = row_scales[8];
            u32 before = 0;
            for (u32 k = 0; k < steps; ++k) {
                barrier_wait(full + ring.stage, ring.phase);
                wgmma_fence();
                const u64 rows = a + ring.stage * (WARPGROUPS * W_BYTES >> 4), tokens = b + ring.stage * (X_BYTES >> 4);
#pragma unroll
                for (int s = 0; s < 4; ++s) wgmma_bytes(sums, rows + 2 * s, tokens + 2 * s, k + s > 0);
                wgmma_commit();
                if (k > 0) {
                    wgmma_wait<1>();
                    release(before);
                }
                before = ring.stage;
                ring.advance();
            }
            wgmma_wait<0>();
            release(before);
            const float2* scales = reinterpret_cast<const float2*>(token_scales + slot * TOKENS) + lane % 4;
#pragma unroll
            for (int i = 0; i < TOKENS / 8; ++i) {
                const float2 token = scales[4 * i];
                scale(sums[4 * i], row_scale * token.x);
                scale(sums[4 * i + 1], row_scale * token.y);
                scale(sums[4 * i + 2], row_scale8 * token.x);
                scale(sums[4 * i + 3], row_scale8 * token.y);
            }
            if (loud) {
                barrier_wait(full + ring.stage, ring.phase);
                wgmma_fence();
                const u64 rows = a + ring.stage * (WARPGROUPS * W_BYTES >> 4), tokens = b + ring.stage * (X_BYTES >> 4);
#pragma unroll
                for (int s = 0; s < 4; ++s) wgmma_halves(sums, rows + 2 * s, tokens + 2 * s, 1);
                wgmma_commit();
                wgmma_wait<0>();
                release(ring.stage);
                ring.advance();
            }
            u8* areas = shared + STAGING_OFFSET;
            if constexpr (GATED) {
                if (group == 0)
                    finish_gated<0>(sums, areas, areas + STAGING_BYTES, &y_map, 64 * tile.row_tile, tile.token, thread);
                else
                    finish_gated<1>(sums, areas + STAGING_BYTES, areas, &y_map, 64 * tile.row_tile, tile.token, thread);
            } else {
                const u32 at = tile.row_tile + group, from = at >= end1 ? end1 : at >= end0 ? end0 : 0;
                const TensorMap* map = at >= end1 ? &y2_map : at >= end0 ? &y1_map : &y_map;
                finish(sums, areas + group * STAGING_BYTES, map, 64 * i32(at - from), tile.token, group, thread);
            }
        }
        if (thread == 0) bulk_wait<0>();
    }
    // A block must not leave while its neighbour still loads into it.
    if constexpr (CLUSTER > 1) cluster_sync();
}
