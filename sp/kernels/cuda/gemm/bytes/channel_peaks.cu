// The largest absolute value of each channel over all tokens: peaks[k] = max over n of |x[n, k]|, as the bits of a float32.
//
//   x      bf16 (tokens, COLS), COLS % 8 == 0
//   peaks  u32 (COLS), zeros before; a NaN is larger than all
// Grid (ceil(COLS / 1024), ceil(tokens / each)), 128 threads: 8 channels a thread, `each` tokens a block. Arches: 80+. Bound by
// memory.
#include "pdl.cuh"

extern "C" __global__ void __launch_bounds__(128) channel_peaks(const u16* __restrict__ x, u32* peaks, i32 tokens,
                                                                   i32 each) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 at = 8 * (blockIdx.x * 128 + threadIdx.x);
    if (at >= COLS) return;
    const i32 first = each * blockIdx.y, last = min(tokens, first + each);
    u32 most[8] = {};
#pragma unroll 8
    for (i32 n = first; n < last; ++n) {
        const uint4 v = *reinterpret_cast<const uint4*>(x + i64(n) * COLS + at);
        const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            most[2 * i] = max(most[2 * i], words[i] << 16 & 0x7fff0000u);
            most[2 * i + 1] = max(most[2 * i + 1], words[i] & 0x7fff0000u);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) atomicMax(peaks + at + i, most[i]);
}
