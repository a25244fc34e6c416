// geglu: y = gelu(gate) * up, elementwise, float32 inside, gelu by its tanh approximation:
// gelu(x) = x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
//
// gate, up, y bf16, `steps` runs of 8 values. 1-D grid of ceil(steps / 256) blocks of 256, one run a thread.
// 16-byte aligned. sm_80+. Bound by memory. Hendrycks and Gimpel 2016.
#include "activations.cuh"

SP_DEVICE f32 gelu(f32 x) {
    const f32 turned = 1.5957691216057308f * (x + 0.044715f * x * x * x);
    return x / (1.0f + __expf(-turned));
}

extern "C" __global__ void __launch_bounds__(256)
    geglu(const u16* __restrict__ gate, const u16* __restrict__ up, u16* __restrict__ y, i64 steps) {
    const i64 at = i64(blockIdx.x) * 256 + threadIdx.x;
    if (at >= steps) return;
    const uint4 left = reinterpret_cast<const uint4*>(gate)[at], right = reinterpret_cast<const uint4*>(up)[at];
    const u32 g[4] = {left.x, left.y, left.z, left.w}, u[4] = {right.x, right.y, right.z, right.w};
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        out[i] = pack_bf16(gelu(low_bf16(g[i])) * low_bf16(u[i]), gelu(high_bf16(g[i])) * high_bf16(u[i]));
    reinterpret_cast<uint4*>(y)[at] = make_uint4(out[0], out[1], out[2], out[3]);
}
