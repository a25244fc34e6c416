// Rules for scores in some model families (softcap, sinks): see `sp.ops.attention.score_rule`. Scores s here are
// products of queries and keys; c turns them to base 2, `cap` is in base 2 as well.
#pragma once
#include "types.cuh"

#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef SINKS
#define SINKS 0
#endif

// cap tanh(c s / cap) / c by 1 - 2 / (1 + e^2x): within 2^-22 of the cap, which tanh.approx is not.
struct SoftCap {
    f32 in, out;

    SP_DEVICE SoftCap(f32 cap, f32 c) : in(2.8853900817779268f * c / cap), out(cap / c) {}
    SP_DEVICE f32 operator()(f32 s) const {
        f32 e, inverse;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(s * in));
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + e));
        return out - 2.0f * out * inverse;
    }
};

// What the sink of a head adds to a row's sum of 2^(c s - reference).
SP_DEVICE f32 sink_weight(const f32* sinks, i32 head, f32 reference) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(sinks[head] * 1.4426950408889634f - reference));
    return y;
}
