// What some models do with rows of queries beside turning them.
//
//   scale_queries  q[t] *= 1 + scale * ln(1 + floor(positions[t] / length)), f16, in place
//
// q f16 (tokens, 8 steps), positions i64 (tokens,) not negative, length > 0.
// Grid (tokens, ceil(steps / 128)), 128 threads, 8 values each. 16-byte aligned rows. sm_80+. Bound by memory; rows within
// the first `length` positions are not touched.
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
