// gated_norm: RMS norm of every value head, then the gate: y = o / sqrt(mean(o^2) + eps) * weight * silu(z).
//
// o f16, z bf16, y bf16, all (items, HEAD_DIM) with items = rows * value_heads; weight f32 (HEAD_DIM), shared by heads.
// A team of HEAD_DIM / 8 threads takes one item, 8 values a thread; 1-D grid of ceil(items / (256 / team)) blocks of
// 256. 16-byte aligned rows. sm_80+. Bound by memory.
#include "activations.cuh"
#include "mma.cuh"

#define TEAM (HEAD_DIM / 8)

extern "C" __global__ void __launch_bounds__(256)
    gated_norm(const u16* __restrict__ o, const u16* __restrict__ z, const f32* __restrict__ weight,
               u16* __restrict__ y, i64 items, f32 eps) {
    const i64 item = i64(blockIdx.x) * (256 / TEAM) + threadIdx.x / TEAM;
    const i32 first = threadIdx.x % TEAM * 8;
    const bool live = item < items;
    const i64 at = (live ? item : 0) * HEAD_DIM + first;
    const uint4 four = *reinterpret_cast<const uint4*>(o + at);
    const uint4 gates = *reinterpret_cast<const uint4*>(z + at);
    const u32 words[4] = {four.x, four.y, four.z, four.w}, gate[4] = {gates.x, gates.y, gates.z, gates.w};
    f32 squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        squares += low_f16(words[i]) * low_f16(words[i]) + high_f16(words[i]) * high_f16(words[i]);
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(~0u, squares, offset);
    const f32 scale = rsqrtf(squares * (1.0f / HEAD_DIM) + eps);
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 w = *reinterpret_cast<const float2*>(weight + first + 2 * i);
        out[i] = pack_bf16(low_f16(words[i]) * scale * w.x * silu(low_bf16(gate[i])),
                           high_f16(words[i]) * scale * w.y * silu(high_bf16(gate[i])));
    }
    if (live) *reinterpret_cast<uint4*>(y + at) = make_uint4(out[0], out[1], out[2], out[3]);
}
