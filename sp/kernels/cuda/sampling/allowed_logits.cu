// Masks logits: keeps those of allowed tokens and sets the others to -inf.
//
//   y[i] = logits[i] if bit i % 32 of words[i / 32] is set, else -inf
//
// Layouts: logits, y f32 (vocab); words u32 (ceil(vocab / 32)). Grid (ceil(vocab / 256)), 256 threads; bound by memory.
// sm_80+.
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
    allowed_logits(const f32* __restrict__ logits, const u32* __restrict__ words, f32* y, i32 vocab) {
    const i32 i = i32(blockIdx.x) * 256 + i32(threadIdx.x);
    if (i < vocab) y[i] = words[i / 32] >> (i % 32) & 1u ? logits[i] : __uint_as_float(0xff800000u);
}
