// Operations of some models on rows of queries, besides rotary embedding.
//
//   scale_queries  q[t] *= 1 + scale * ln(1 + floor(positions[t] / length)), f16, in place
//   beside_gate    wide[t, h] = q[t, h] | gate[t, h], bf16
//
// scale_queries: q f16 (tokens, 8 steps), positions i64 (tokens,) not negative, length > 0. Grid (tokens, ceil(steps / 128));
//   rows within the first `length` positions are not touched.
// beside_gate: q, gate bf16 (tokens, heads, 8 STEPS), 8 values `steps` times; wide bf16 (tokens, heads, 16 STEPS). 1-D grid
//   of ceil(steps / 128).
// 128 threads, 8 values each. 16-byte aligned rows. sm_80+. Bound by memory.
// Defines: STEPS, for beside_gate.
#include "types.cuh"

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_queries(u16* q, const i64* positions, i32 steps, i64 length, f32 scale) {
    const i32 at = i32(blockIdx.y) * THREADS + i32(threadIdx.x);
    const i64 passed = positions[blockIdx.x] / length;
    if (at >= steps || passed == 0) return;
    const f32 factor = 1.0f + scale * log1pf(f32(passed));
    uint4* const place = reinterpret_cast<uint4*>(q) + i64(blockIdx.x) * steps + at;
    const uint4 v = *place;
    *place = make_uint4(pack_f16(low_f16(v.x) * factor, high_f16(v.x) * factor),
                        pack_f16(low_f16(v.y) * factor, high_f16(v.y) * factor),
                        pack_f16(low_f16(v.z) * factor, high_f16(v.z) * factor),
                        pack_f16(low_f16(v.w) * factor, high_f16(v.w) * factor));
}

#ifdef STEPS
extern "C" __global__ void __launch_bounds__(THREADS)
    beside_gate(const u16* __restrict__ q, const u16* __restrict__ gate, u16* __restrict__ wide, i64 steps) {
    const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= steps) return;
    uint4* const to = reinterpret_cast<uint4*>(wide) + at / STEPS * (2 * STEPS) + at % STEPS;
    to[0] = reinterpret_cast<const uint4*>(q)[at];
    to[STEPS] = reinterpret_cast<const uint4*>(gate)[at];
}
#endif
