// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over rows of COLS values.
//
// x f32 (rows, COLS); weight f32 (COLS); y bf16 and y_f32 f32 (rows, COLS), each null if not wanted; y_f32 may be x.
// COLS % 4 == 0, up to 8192.
// Grid: rows up to 1024 wide: ceil(rows / 4) blocks of 4 warps, a warp a row, which waits for no other; else rows, of min(256,
// COLS / 4 up to a whole warp) threads. A row stays in registers between its two uses. 16-byte aligned rows. sm_80+.
// Bound by memory. Defines: COLS. Zhang and Sennrich 2019.
#include "pdl.cuh"
#include "mma.cuh"

#define VECTORS (COLS / 4)
#define WARP_ROWS (COLS <= 1024)
#define BLOCK_ROWS (WARP_ROWS ? 4 : 1)
#define THREADS (WARP_ROWS ? 32 : VECTORS < 256 ? (VECTORS + 31) / 32 * 32 : 256)  // of a row
#define THREAD (WARP_ROWS ? threadIdx.x % 32 : threadIdx.x)
#define EACH ((VECTORS + THREADS - 1) / THREADS)

extern "C" __global__ void __launch_bounds__(BLOCK_ROWS * THREADS)
    rms_norm(const f32* x, const f32* __restrict__ weight, u16* __restrict__ y, f32* y_f32, i32 rows, f32 eps) {
    pdl_launch_dependents();
    pdl_wait();
    __shared__ f32 sums[THREADS / 32];
    const i64 row = WARP_ROWS ? i64(blockIdx.x) * BLOCK_ROWS + threadIdx.x / 32 : i64(blockIdx.x);
    if (WARP_ROWS && row >= rows) return;
    float4 own[EACH];
    f32 squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + THREAD;
        own[i] = at < VECTORS ? reinterpret_cast<const float4*>(x + row * COLS)[at] : make_float4(0, 0, 0, 0);
        squares += own[i].x * own[i].x + own[i].y * own[i].y + own[i].z * own[i].z + own[i].w * own[i].w;
    }
    squares = warp_sum(squares);
    f32 total = squares;
    if constexpr (!WARP_ROWS) {
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
        __syncthreads();
        total = 0.0f;
#pragma unroll
        for (int i = 0; i < THREADS / 32; ++i) total += sums[i];
    }
    const f32 scale = rsqrtf(total * (1.0f / COLS) + eps);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + THREAD;
        if (at >= VECTORS) continue;
        const float4 w = reinterpret_cast<const float4*>(weight)[at];
        const float4 out = make_float4(own[i].x * scale * w.x, own[i].y * scale * w.y, own[i].z * scale * w.z,
                                       own[i].w * scale * w.w);
        const i64 place = row * VECTORS + at;
        if (y) reinterpret_cast<uint2*>(y)[place] = make_uint2(pack_bf16(out.x, out.y), pack_bf16(out.z, out.w));
        if (y_f32) reinterpret_cast<float4*>(y_f32)[place] = out;
    }
}
