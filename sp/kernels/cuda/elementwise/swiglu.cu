// swiglu: y = silu(gate) * up, elementwise, float32 inside.
//
// gate, up, y bf16, `steps` runs of 8 values. 1-D grid of ceil(steps / 256) blocks of 256, one run a thread.
// 16-byte aligned. sm_80+. Bound by memory. Shazeer 2020.
#include "activations.cuh"

extern "C" __global__ void __launch_bounds__(256)
    swiglu(const u16* __restrict__ gate, const u16* __restrict__ up, u16* __restrict__ y, i64 steps) {
    const i64 at = i64(blockIdx.x) * 256 + threadIdx.x;
    if (at >= steps) return;
    const uint4 left = reinterpret_cast<const uint4*>(gate)[at], right = reinterpret_cast<const uint4*>(up)[at];
    const u32 g[4] = {left.x, left.y, left.z, left.w}, u[4] = {right.x, right.y, right.z, right.w};
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        out[i] = pack_bf16(silu(low_bf16(g[i])) * low_bf16(u[i]), silu(high_bf16(g[i])) * high_bf16(u[i]));
    reinterpret_cast<uint4*>(y)[at] = make_uint4(out[0], out[1], out[2], out[3]);
}
