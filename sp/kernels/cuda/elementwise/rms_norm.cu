// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over rows of COLS values.
//
// x f32 (rows, COLS); weight f32 (COLS); y bf16 and y_f32 f32 (rows, COLS), each null if not wanted; y_f32 may be x.
// peaks u32 (COLS), read where PEAKS is set: raised to the largest |y| of each column, bits of a float32; a NaN is larger than all.
// COLS % 4 == 0, up to 8192.
// Grid: rows up to 1024 wide without PEAKS: ceil(rows / 4) blocks of 4 warps, a warp a row, which waits for no other; else rows,
// with PEAKS at most that: a block takes rows at a stride of the grid and then raises the peaks once, and has min(256,
// COLS / 4 up to a whole warp) threads. A row stays in registers between its two uses, and with PEAKS the next one is
// on its way. 16-byte aligned rows. sm_80+. Bound by memory. Defines: COLS, PEAKS (0 if not given). Zhang and Sennrich
// 2019.
#include "pdl.cuh"
#include "mma.cuh"
#ifndef PEAKS
#define PEAKS 0
#endif

#define VECTORS (COLS / 4)
#define WARP_ROWS (COLS <= 1024 && !PEAKS)
#define BLOCK_ROWS (WARP_ROWS ? 4 : 1)
#define THREADS (WARP_ROWS ? 32 : VECTORS < 256 ? (VECTORS + 31) / 32 * 32 : 256)  // of a row
#define THREAD (WARP_ROWS ? threadIdx.x % 32 : threadIdx.x)
#define EACH ((VECTORS + THREADS - 1) / THREADS)

// Where peaks are found y is rounded next: x, which is not read again soon, leaves the cache to it.
SP_DEVICE float4 load_vector(const float4* from) { return PEAKS ? __ldcs(from) : *from; }

SP_DEVICE void load_row(float4 (&own)[EACH], const f32* x, i64 row) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + THREAD;
        own[i] = at < VECTORS ? load_vector(reinterpret_cast<const float4*>(x + row * COLS) + at) : make_float4(0, 0, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_ROWS * THREADS)
    rms_norm(const f32* x, const f32* __restrict__ weight, u16* __restrict__ y, f32* y_f32, u32* peaks, i32 rows, f32 eps) {
    pdl_launch_dependents();
    pdl_wait();
    __shared__ f32 sums[2][THREADS / 32];
    float4 own[EACH];
    i64 row = WARP_ROWS ? i64(blockIdx.x) * BLOCK_ROWS + threadIdx.x / 32 : i64(blockIdx.x);
    if (WARP_ROWS && row >= rows) return;
    load_row(own, x, row);
    u32 most[PEAKS ? EACH : 1][4] = {};
    i32 side = 0;  // two buffers of sums, so that a barrier a row is enough
    while (true) {
        f32 squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            squares += own[i].x * own[i].x + own[i].y * own[i].y + own[i].z * own[i].z + own[i].w * own[i].w;
        float4 next[EACH];
        if (PEAKS && row + gridDim.x < rows) load_row(next, x, row + gridDim.x);
        squares = warp_sum(squares);
        f32 total = squares;
        if constexpr (!WARP_ROWS) {
            if (threadIdx.x % 32 == 0) sums[side][threadIdx.x / 32] = squares;
            __syncthreads();
            total = 0.0f;
#pragma unroll
            for (int i = 0; i < THREADS / 32; ++i) total += sums[side][i];
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
            const uint2 packed = make_uint2(pack_bf16(out.x, out.y), pack_bf16(out.z, out.w));
            if (y) reinterpret_cast<uint2*>(y)[place] = packed;
            if (y_f32) reinterpret_cast<float4*>(y_f32)[place] = out;
            if (PEAKS) {
                const u32 bits[4] = {packed.x << 16, packed.x, packed.y << 16, packed.y};
#pragma unroll
                for (int j = 0; j < 4; ++j) most[i][j] = max(most[i][j], bits[j] & 0x7fff0000u);
            }
        }
        if (!PEAKS || (row += gridDim.x) >= rows) break;
        side ^= 1;
#pragma unroll
        for (int i = 0; i < EACH; ++i) own[i] = next[i];
    }
#if PEAKS
    __shared__ alignas(16) u32 found[COLS];  // so that a warp raises neighbours
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        if (at < VECTORS) reinterpret_cast<uint4*>(found)[at] = make_uint4(most[i][0], most[i][1], most[i][2], most[i][3]);
    }
    __syncthreads();
    for (i32 column = i32(threadIdx.x); column < COLS; column += THREADS) atomicMax(peaks + column, found[column]);
#endif
}
