// Activations and gates on float32, in the forms of sp/ops/activations.py.
#pragma once
#include "types.cuh"

// x / (1 + exp(-x)) to about 2 ulp: the division is the special function unit's.
SP_DEVICE f32 silu(f32 x) { return __fdividef(x, 1.0f + __expf(-x)); }

// The same with a division that is rounded to nearest.
SP_DEVICE f32 silu_rn(f32 x) { return x / (1.0f + __expf(-x)); }

// The same with a reciprocal in place of the division: the fewest instructions.
SP_DEVICE f32 silu_rcp(f32 x) {
    f32 e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return x * r;
}

SP_DEVICE f32 sigmoid(f32 x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

SP_DEVICE f32 softplus(f32 x) { return x > 20.0f ? x : log1pf(expf(x)); }
