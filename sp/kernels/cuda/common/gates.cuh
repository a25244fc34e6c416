// Activations and gates of Gated DeltaNet on float32, in the forms of sp/ops/activations.py.
#pragma once
#include "types.cuh"

SP_DEVICE f32 silu(f32 x) { return __fdividef(x, 1.0f + __expf(-x)); }

SP_DEVICE f32 sigmoid(f32 x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

SP_DEVICE f32 softplus(f32 x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Two f16, values past the range cut to +-65504 so that no infinity meets the tensor cores; `low` in the low half.
SP_DEVICE u32 pack_f16_finite(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
