// mid[p] = act(gate[p] + gate_bias[e], up[p] + up_bias[e]) with p = places[s] and e = experts[s], for every slot s: the
// activation between the two products of experts that have biases.
//
// gate, up, mid bf16 (places, 8 * cols8); biases f32 (experts, 8 * cols8), or null; places, experts i32 (slots).
// Launch: a block of 128 threads a slot. Rows that no slot has are neither read nor written. 16-byte aligned rows. sm_80+. Bound
// by memory.
// Defines: CLAMPED, 1: act is clamped_swiglu of clamped_swiglu.cuh; 0: silu(gate) * up.
#include "activations.cuh"
#include "clamped_swiglu.cuh"

constexpr int THREADS = 128;

SP_DEVICE void add_bias_of(f32 (&v)[8], const f32* bias, i64 at) {
    const float4 low = reinterpret_cast<const float4*>(bias)[2 * at], high = reinterpret_cast<const float4*>(bias)[2 * at + 1];
    v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
    v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
}

SP_DEVICE void values_of(f32 (&v)[8], uint4 bits) {
    const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) v[2 * i] = low_bf16(words[i]), v[2 * i + 1] = high_bf16(words[i]);
}

SP_DEVICE f32 act(f32 gate, f32 up) { return CLAMPED ? clamped_swiglu(gate, up) : silu(gate) * up; }

extern "C" __global__ void __launch_bounds__(THREADS)
    gate_slots(const u16* __restrict__ gate, const u16* __restrict__ up, const f32* __restrict__ gate_bias,
               const f32* __restrict__ up_bias, const i32* __restrict__ experts, const i32* __restrict__ places,
               u16* __restrict__ mid, i32 cols8) {
    const i64 row = i64(places[blockIdx.x]) * cols8, expert = i64(experts[blockIdx.x]) * cols8;
    for (i32 at = threadIdx.x; at < cols8; at += THREADS) {
        f32 g[8], u[8];
        values_of(g, reinterpret_cast<const uint4*>(gate)[row + at]);
        values_of(u, reinterpret_cast<const uint4*>(up)[row + at]);
        if (gate_bias) add_bias_of(g, gate_bias, expert + at);
        if (up_bias) add_bias_of(u, up_bias, expert + at);
        u32 out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = pack_bf16(act(g[2 * i], u[2 * i]), act(g[2 * i + 1], u[2 * i + 1]));
        reinterpret_cast<uint4*>(mid)[row + at] = make_uint4(out[0], out[1], out[2], out[3]);
    }
}
