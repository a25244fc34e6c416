// cap_logits: x = cap * tanh(x * scale), in place; with a cap of 0, x = x * scale.
//
// logits f32 (count,). 1-D grid of ceil(count / 1024) blocks of 256 threads, 4 values each. sm_80+. Bound by memory.
#include "types.cuh"

#define THREADS 256
#define EACH 4

extern "C" __global__ void __launch_bounds__(THREADS) cap_logits(f32* logits, i64 count, f32 cap, f32 scale) {
    const i64 first = i64(blockIdx.x) * THREADS * EACH + threadIdx.x;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i64 at = first + i * THREADS;
        if (at >= count) return;
        const f32 x = logits[at] * scale;
        logits[at] = cap == 0.0f ? x : cap * tanhf(x);
    }
}
