// Prefill matmul of bytes: Y[n, o] = sum_k X[n, k] W[o, k] for X and W rounded to int8 (KIND 0) or e4m3 (KIND 1) with a
// float32 scale for a row and 256 inputs, and for up to 64 outlier channels, which are 0 there, in bf16 besides.
//
//   X        bytes (tokens, k) row-major, by tensor map x_map: box 128 k x TOKENS / CLUSTER; x_scales f32 [k / 256][x_stride]
//   W        bytes (rows of whole 64, k), by w_map: box 128 k x 64; w_scales f32 [k / 256][w_stride]. SWIGLU: gate's rows, then
//            those of up from row tile `second` on
//   loud     bf16 (tokens, 64) and (rows, 64) by xl_map and wl_map, boxes of as many rows; not read where *loud_count is 0
//   Y        (tokens, out) row-major, by y_map: box of 128-byte rows x 32 tokens, 128-byte swizzle; EPILOGUE STORE bf16,
//            STORE_F32 float32, ADD float32 that the product is added to, SWIGLU bf16 silu(X Gᵀ) * (X Uᵀ). Of up to three
//            weights one under the other, row tiles from end0 and from end1 on go to arrays of their own, by y1_map and y2_map;
//            ends past all tiles where there are fewer
//   peaks    u32 (rows of whole 64) or null, of SWIGLU: raised to the largest |y| of an output over all tokens, as bits of a float32
// Both sides hold the inputs of each 64 in the same order, whichever that is. Every map has the 128-byte swizzle.
//
// Y = sum over groups of (w_scale * x_scale) * part; of int8 `part` is exact in int32 and in float32 (256 * 127^2 < 2^24).
// Launch: 384 threads, one block an SM, persistent: a thread of warpgroup 0 loads, 1 and 2 multiply 64 outputs x TOKENS each
// (SWIGLU: the same 64 of gate and of up; then they trade halves, as bf16). They take turns in giving the tensor cores a group of
// 256 inputs: while one multiplies, the other scales the sums of its group. CLUSTER = 2: pairs of blocks of neighbouring outputs,
// each loads half of the X tile for both. GROUP token blocks side by side share what they load in L2.
// Any tokens >= 1; out a multiple of 8; k = 256 groups. Arch 90a.
// Sources: warp-specialised persistent kernels as in CUTLASS (Thakkar et al.), sums scaled outside of the tensor cores as in
// DeepSeek-V3's FP8 training (2024, section 3.3), outlier channels apart as in LLM.int8() (Dettmers et al., 2022).
#include "gemm_bytes_sm90_finish.cuh"
#include "pdl.cuh"
#include "wgmma_bytes.cuh"

#if KIND == 0
typedef i32 Part;
#else
typedef f32 Part;
#endif

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    gemm_bytes_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                    const __grid_constant__ TensorMap xl_map, const __grid_constant__ TensorMap wl_map,
                    const __grid_constant__ TensorMap y_map, const __grid_constant__ TensorMap y1_map,
                    const __grid_constant__ TensorMap y2_map, const f32* x_scales, const f32* w_scales, const u32* loud_count,
                    u32 token_blocks, u32 out_blocks, u32 row_tiles, u32 second, u32 end0, u32 end1, u32 groups, u32 x_stride,
                    u32 w_stride, u32* peaks) {
    extern __shared__ __align__(1024) u8 shared[];
    u64* full = reinterpret_cast<u64*>(shared + BARRIER_OFFSET);
    u64* empty = full + STAGES;
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
    if (threadIdx.x < 128) {
        registers_lower<40>();
        Ring ring{0, 1};  // so that the first round does not wait
        if (threadIdx.x == 0) {
            for (u32 index = cluster; index < tiles; index += clusters) {
                const Tile tile = tile_of(index, token_blocks, out_blocks, rank);
                i32 row[WARPGROUPS];
#pragma unroll
                for (u32 g = 0; g < WARPGROUPS; ++g)  // past the last one any does: nothing of that result is stored
                    row[g] = 64 * i32(min(u32(tile.row_tile) + (GATED ? 0 : g), row_tiles - 1) + (GATED && g ? second : 0));
                for (u32 k = 0; k < 2 * groups + loud; ++k, ring.advance()) {
                    const bool apart = k == 2 * groups;
                    u64* barrier = full + ring.stage;
                    u8* x = shared + ring.stage * X_BYTES;
                    u8* w = shared + W_OFFSET + ring.stage * WARPGROUPS * W_BYTES;
                    f32* scales = reinterpret_cast<f32*>(shared + SCALES_OFFSET) + ring.stage * SCALES;
                    const i32 at = apart ? 0 : 128 * i32(k);
                    constexpr u32 part = TOKENS / CLUSTER;
                    barrier_wait(empty + ring.stage, ring.phase);
                    barrier_expect(barrier, X_BYTES + WARPGROUPS * W_BYTES + (k % 2 ? 4 * SCALES : 0));
                    if constexpr (CLUSTER > 1)
                        tensor_load_multicast(x + rank * part * 128, apart ? &xl_map : &x_map, barrier, (1 << CLUSTER) - 1, at,
                                              tile.token + rank * part);
                    else
                        tensor_load(x, apart ? &xl_map : &x_map, barrier, at, tile.token);
#pragma unroll
                    for (u32 g = 0; g < WARPGROUPS; ++g) {
                        tensor_load(w + g * W_BYTES, apart ? &wl_map : &w_map, barrier, at, row[g]);
                        if (k % 2)  // a group's come with its second half
                            bulk_load(scales + TOKENS + 64 * g, w_scales + i64(k / 2) * w_stride + row[g], 256, barrier);
                    }
                    if (k % 2) bulk_load(scales, x_scales + i64(k / 2) * x_stride + tile.token, 4 * TOKENS, barrier);
                }
            }
        }
    } else {
        registers_raise<232>();
        const u32 group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        f32 d[TOKENS / 2];
        Part part[TOKENS / 2];
        Ring ring;
        if (group == 1) named_arrive(TURN, 256);  // the first turn is the other's

        auto multiply = [&](auto& sums, u32 stage, auto product) {
            const u64 a = wgmma_descriptor(shared_address(shared + W_OFFSET + (stage * WARPGROUPS + group) * W_BYTES));
            const u64 b = wgmma_descriptor(shared_address(shared + stage * X_BYTES));
#pragma unroll
            for (int s = 0; s < 4; ++s) product(sums, a + 2 * s, b + 2 * s, s);
        };
        auto release = [&](u32 stage) {
            if constexpr (CLUSTER == 1) barrier_arrive_warp(empty + stage, lane);
            if constexpr (CLUSTER > 1) {
                __syncwarp();
                if (lane < WARP_ARRIVALS)
                    for (u32 r = 0; r < CLUSTER; ++r) barrier_arrive_at(empty + stage, r);
            }
        };

        for (u32 index = cluster; index < tiles; index += clusters) {
            const Tile tile = tile_of(index, token_blocks, out_blocks, rank);
#pragma unroll
            for (int i = 0; i < TOKENS / 2; ++i) d[i] = 0.0f;
            for (u32 k = 0; k < groups; ++k) {
                named_barrier(TURN + group, 256);
                const u32 first = ring.stage;
                barrier_wait(full + ring.stage, ring.phase);
                wgmma_fence();
                multiply(part, ring.stage, [](auto& sums, u64 a, u64 b, int s) { wgmma_bytes(sums, a, b, s > 0); });
                ring.advance();
                barrier_wait(full + ring.stage, ring.phase);
                multiply(part, ring.stage, [](auto& sums, u64 a, u64 b, int) { wgmma_bytes(sums, a, b, 1); });
                wgmma_commit();
                named_arrive(TURN + 1 - group, 256);
                const f32* scales = reinterpret_cast<const f32*>(shared + SCALES_OFFSET) + ring.stage * SCALES;
                const f32 scale0 = scales[TOKENS + 64 * group + 16 * warp + lane / 4];
                const f32 scale8 = scales[TOKENS + 64 * group + 16 * warp + lane / 4 + 8];
                wgmma_wait<0>();
                release(first);
#pragma unroll
                for (int i = 0; i < TOKENS / 8; ++i) {
                    const float2 x = reinterpret_cast<const float2*>(scales)[4 * i + lane % 4];
                    d[4 * i] += f32(part[4 * i]) * (scale0 * x.x);
                    d[4 * i + 1] += f32(part[4 * i + 1]) * (scale0 * x.y);
                    d[4 * i + 2] += f32(part[4 * i + 2]) * (scale8 * x.x);
                    d[4 * i + 3] += f32(part[4 * i + 3]) * (scale8 * x.y);
                }
                release(ring.stage);
                ring.advance();
            }
            if (loud) {
                barrier_wait(full + ring.stage, ring.phase);
                wgmma_fence();
                multiply(d, ring.stage, [](auto& sums, u64 a, u64 b, int) { wgmma_halves(sums, a, b, 1); });
                wgmma_commit();
                wgmma_wait<0>();
                release(ring.stage);
                ring.advance();
            }
            u8* areas = shared + STAGING_OFFSET;
            if constexpr (GATED) {
                u32* at_peaks = u32(tile.row_tile) < row_tiles ? peaks : nullptr;
                if (group == 0)
                    finish_gated<0>(d, areas, areas + STAGING_BYTES, &y_map, 64 * tile.row_tile, tile.token, thread, at_peaks);
                else
                    finish_gated<1>(d, areas + STAGING_BYTES, areas, &y_map, 64 * tile.row_tile, tile.token, thread, at_peaks);
            } else {
                const u32 at = tile.row_tile + group, from = at >= end1 ? end1 : at >= end0 ? end0 : 0;
                const TensorMap* map = at >= end1 ? &y2_map : at >= end0 ? &y1_map : &y_map;
                finish(d, areas + group * STAGING_BYTES, map, 64 * i32(at - from), tile.token, group, thread);
            }
        }
        if (group == 0) named_barrier(TURN, 256);  // a turn that was not used
        if (thread == 0) bulk_wait<0>();
    }
    // A block must not leave while its neighbour still loads into it.
    if constexpr (CLUSTER > 1) cluster_sync();
}
