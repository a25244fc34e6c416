// Logits of the tokens that are not too unlikely compared with the likeliest (min-p).
//
//   y[i] = logits[i] if logits[i] >= logits[best] + bound, else -inf
//
// Layouts: logits, y f32 (vocab); best i32 (1). Grid (ceil(vocab / 256)), 256 threads; bound by memory. sm_80+.
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
    likely_logits(const f32* __restrict__ logits, const i32* __restrict__ best, f32* y, i32 vocab, f32 bound) {
    const i32 i = i32(blockIdx.x) * 256 + i32(threadIdx.x);
    const f32 least = __fadd_rn(logits[best[0]], bound);
    if (i < vocab) y[i] = logits[i] >= least ? logits[i] : __uint_as_float(0xff800000u);
}
