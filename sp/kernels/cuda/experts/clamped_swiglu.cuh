// clamped_swiglu of sp/ops/experts/clamped.py.
#pragma once
#include "types.cuh"

// (u + 1) g sigmoid(1.702 g) with g = min(gate, 7) and u = up cut to [-7, 7].
SP_DEVICE f32 clamped_swiglu(f32 gate, f32 up) {
    const f32 g = fminf(gate, 7.0f), u = fminf(fmaxf(up, -7.0f), 7.0f);
    return (u + 1.0f) * (g / (1.0f + __expf(-1.702f * g)));
}
