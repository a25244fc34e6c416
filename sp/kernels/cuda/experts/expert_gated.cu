// mid[t, j] = silu(G_e h[t]) * (U_e h[t]) with e = experts[t, j]: the first half of chosen experts for a few tokens, straight
// from packed weights, without sorting.
//
//   h        bf16 (tokens, 64 k_tiles), `supers` stages of 4 tiles, the last of `tail`; mid bf16 (tokens * used, 16 * gridDim.x)
//   biases   f32 (experts, 16 * gridDim.x), added to the products, or null
//   gate, up the matrices of all experts one under the other in fragment order, `held` row tiles of 64 in all, `pitch` of an
//            expert, its gate from row tile `first` on and its up from `second` on
//   Launch   grid (rows / 16, tokens * used), WARPS warps: a block reads 16 rows of a gate and of an up, a warp every WARPS-th
//            super-block of them. sm_80+. Bound by memory: a slot's weights are read once, 16 bytes a lane. PDL.
// Defines: see expert_strip.cuh; CLAMPED, 1: gated by clamped_swiglu.
#include "clamped_swiglu.cuh"
#include "expert_strip.cuh"

#ifndef CLAMPED
#define CLAMPED 0
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    expert_gated(const u16* __restrict__ h, const i32* __restrict__ experts, const u8* __restrict__ gate,
                 const u8* __restrict__ up, u16* __restrict__ mid, i32 used, i32 supers, u32 held, u32 pitch, u32 first,
                 u32 second, i32 tail, const f32* __restrict__ gate_bias, const f32* __restrict__ up_bias) {
    using R = Room<2>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 slot = blockIdx.y;
    WarpRing<2> ring = {shared + warp * R::ring};
    StageInputs& inputs = reinterpret_cast<StageInputs*>(shared + R::inputs)[warp];
    f32* sums = reinterpret_cast<f32*>(shared + R::sums);
    pdl_launch_dependents();
    pdl_wait();
    const int k_tiles = tiles_of(supers, tail);
    const u32 expert = u32(experts[slot]) * pitch;
    const int strip = blockIdx.x;
    const Planes from[2] = {
        strip_of<S>(planes_of<KIND>(gate, held, k_tiles), 4 * (expert + first) + strip, k_tiles, lane),
        strip_of<S>(planes_of<KIND>(up, held, k_tiles), 4 * (expert + second) + strip, k_tiles, lane)};
    const auto fetch = [&](int super) {
        if (super < supers)
#pragma unroll
            for (int part = 0; part < 2; ++part) fetch_stage_of(ring.slot(part), from[part], super, k_tiles, lane);
        cp_async_commit();
        ++ring.turn;
    };
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) fetch(warp + i * WARPS);
    const u16* row = h + slot / used * k_tiles * 64;
    const OneInputs in = inputs.aimed(lane);
    f32 acc[2][2] = {};
    for (int super = warp; super < supers; super += WARPS) {
        f32 v[2][4];
        load_inputs_of(v, row, super, k_tiles, lane);
        inputs.store(v, lane);
        cp_async_wait<DEPTH - 1>();
        __syncwarp();
#pragma unroll
        for (int part = 0; part < 2; ++part) multiply_one<S>(acc[part], ring.slot(part), in, 0, lane);
        __syncwarp();
        fetch(super + DEPTH * WARPS);
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) leave_sums(sums + 16 * (part * WARPS + warp), acc[part], lane);
    __syncthreads();
    if (threadIdx.x < 16) {
        const i64 width = 16 * gridDim.x, at = 16 * strip + threadIdx.x;
        f32 g = met(sums, threadIdx.x), u = met(sums + 16 * WARPS, threadIdx.x);
        if (gate_bias) g += gate_bias[experts[slot] * width + at];
        if (up_bias) u += up_bias[experts[slot] * width + at];
        mid[slot * width + at] = bf16_from(CLAMPED ? clamped_swiglu(g, u) : silu_rn(g) * u);
    }
    cp_async_wait<0>();
}
