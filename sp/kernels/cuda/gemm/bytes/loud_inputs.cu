// Outlier channels of inputs: the largest absolute value of each channel over a sample of tokens, peak[k] = max over n of
// |x[stride n, k]|, then the search of find_loud.cuh by the block that ends last.
//
//   x      bf16 (stride * (tokens - 1) + 1 or more, COLS), COLS % 8 == 0
//   peaks  u32 (COLS), zeros before and afterwards: bits of float32 values; a NaN is larger than all
//   done   u32, 0 before and afterwards: blocks that have raised theirs
//   count u32, channels u32 (64), mask u32 (COLS / 32) as there
// Grid (ceil(COLS / 1024), ceil(tokens / each)), 1024 threads: 8 channels of every eighth of a block's `each` tokens a thread.
// Define: COLS. Arches: 80+. Bound by memory, of few tokens by the time that one block takes.
#include "find_loud.cuh"
#include "pdl.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    loud_inputs(const u16* __restrict__ x, u32* peaks, u32* done, u32* count, u32* channels, u32* mask, i32 tokens, i32 stride,
                i32 each) {
    enum { ACROSS = 128, DOWN = 8 };  // threads along channels and along tokens
    __shared__ u32 most[8][ACROSS];   // of channel 8 j + i of the block's at [i][j]
    __shared__ u32 before;
    const u32 t = threadIdx.x, across = t % ACROSS, channel = 1024 * blockIdx.x + t;
    most[t / ACROSS][across] = 0;
    pdl_launch_dependents();
    pdl_wait();
    __syncthreads();
    const i32 at = 8 * (blockIdx.x * ACROSS + across), first = each * blockIdx.y, last = min(tokens, first + each);
    if (at < COLS) {
        u32 own[8] = {};
#pragma unroll 4
        for (i32 n = first + i32(t) / ACROSS; n < last; n += DOWN) {
            const uint4 v = *reinterpret_cast<const uint4*>(x + i64(n) * stride * COLS + at);
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                own[2 * i] = max(own[2 * i], words[i] << 16 & 0x7fff0000u);
                own[2 * i + 1] = max(own[2 * i + 1], words[i] & 0x7fff0000u);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) atomicMax(&most[i][across], own[i]);
    }
    __syncthreads();
    if (channel < COLS) atomicMax(peaks + channel, most[t % 8][t / 8]);
    __threadfence();
    __syncthreads();
    if (t == 0) before = atomicAdd(done, 1u);
    __syncthreads();
    if (before + 1 < gridDim.x * gridDim.y) return;
    if (t == 0) *done = 0;
    __threadfence();
    find_loud(peaks, count, channels, mask);
}
