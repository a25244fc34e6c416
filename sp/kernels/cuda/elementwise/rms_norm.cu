// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over rows of COLS values.
//
// x f32 (rows, COLS); weight f32 (COLS); y bf16 and y_f32 f32 (rows, COLS), each null if not wanted; y_f32 may be x.
// COLS % 4 == 0, up to 8192.
// Grid (rows), min(256, COLS / 4 up to a whole warp) threads; a row stays in registers between its two uses.
// 16-byte aligned rows. sm_80+. Bound by memory. Zhang and Sennrich 2019.
#include "pdl.cuh"
#include "mma.cuh"

#define VECTORS (COLS / 4)
#define THREADS (VECTORS < 256 ? (VECTORS + 31) / 32 * 32 : 256)
#define EACH ((VECTORS + THREADS - 1) / THREADS)

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(const f32* x, const f32* __restrict__ weight, u16* __restrict__ y, f32* y_f32,
             f32 eps) {
    pdl_launch_dependents();
    pdl_wait();
    __shared__ f32 sums[THREADS / 32];
    const float4* const row = reinterpret_cast<const float4*>(x + i64(blockIdx.x) * COLS);
    float4 own[EACH];
    f32 squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        own[i] = at < VECTORS ? row[at] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        squares += own[i].x * own[i].x + own[i].y * own[i].y + own[i].z * own[i].z + own[i].w * own[i].w;
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    f32 total = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) total += sums[i];
    const f32 scale = rsqrtf(total * (1.0f / COLS) + eps);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        if (at >= VECTORS) continue;
        const float4 w = reinterpret_cast<const float4*>(weight)[at];
        const float4 out = make_float4(own[i].x * scale * w.x, own[i].y * scale * w.y, own[i].z * scale * w.z,
                                       own[i].w * scale * w.w);
        const i64 place = i64(blockIdx.x) * VECTORS + at;
        if (y) reinterpret_cast<uint2*>(y)[place] = make_uint2(pack_bf16(out.x, out.y), pack_bf16(out.z, out.w));
        if (y_f32) reinterpret_cast<float4*>(y_f32)[place] = out;
    }
}
