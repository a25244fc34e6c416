// Softmax in base 2 relative to a reference a row: what attention_decode.cu and attention_portable.cu share.
//
// A row's reference lies 2^OFFSET below the largest score at the time it was set and moves only when a score passes it by
// 2^HEADROOM. So exponents rarely change under the accumulators, and probabilities, at most 2^14, are normal f16 numbers down
// to 2^-24 of the largest.
#pragma once
#include "types.cuh"

constexpr f32 HEADROOM = 14.0f, OFFSET = 10.0f;
constexpr f32 NEVER = -1e30f;  // reference of a row that has seen no key; finite, so that differences are no NaN

SP_DEVICE f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
