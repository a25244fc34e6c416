// x[t] += sum_j weights[t, j] * D_e mid[t, j], e = experts[t, j], and with `shared_y` + sigmoid(h[t] . mix) * shared_y[t]: the
// second half of chosen experts for a few tokens, added up where it is made.
//
//   mid      bf16 (tokens * used, 64 k_tiles), `supers` stages of 4 tiles, the last of `tail`; weights f32 (tokens, used)
//   bias     f32 (experts, cols), added to each expert's product, or null
//   down     the matrices of all experts one under the other in fragment order, `held` row tiles of 64 in all, `pitch` of an
//            expert
//   h, shared_y bf16 and mix f32, of `cols` = 16 * gridDim.x values a token, h and mix of 8 * `wide`; x f32 (tokens, cols)
//   Launch   grid (cols / 16, tokens), WARPS warps: a block reads 16 rows of all experts of a token, a warp every WARPS-th
//            super-block of these. sm_80+. Bound by memory: a slot's weights are read once, 16 bytes a lane. PDL.
// Defines: see expert_strip.cuh.
#include "expert_strip.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    expert_down(const u16* __restrict__ mid, const i32* __restrict__ experts, const f32* __restrict__ weights,
                const u8* __restrict__ down, const u16* __restrict__ h, const f32* __restrict__ mix,
                const u16* __restrict__ shared_y, f32* __restrict__ x, i32 used, i32 supers, u32 held, u32 pitch, i32 wide,
                i32 tail, const f32* __restrict__ bias) {
    using R = Room<1>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 token = blockIdx.y;
    WarpRing<1> ring = {shared + warp * R::ring};
    StageInputs& inputs = reinterpret_cast<StageInputs*>(shared + R::inputs)[warp];
    f32* sums = reinterpret_cast<f32*>(shared + R::sums);
    pdl_launch_dependents();
    pdl_wait();
    const int k_tiles = tiles_of(supers, tail), units = used * supers;
    const Planes all = planes_of<KIND>(down, held, k_tiles);
    const auto fetch = [&](int unit) {
        if (unit < units) {
            const u32 expert = u32(experts[token * used + unit / supers]) * pitch;
            const Planes from = strip_of<S>(all, 4 * expert + blockIdx.x, k_tiles, lane);
            fetch_stage_of(ring.slot(0), from, unit % supers, k_tiles, lane);
        }
        cp_async_commit();
        ++ring.turn;
    };
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) fetch(warp + i * WARPS);
    const OneInputs in = inputs.aimed(lane);
    f32 acc[2] = {}, dot = 0;
    for (int unit = warp; unit < units; unit += WARPS) {
        const i64 slot = token * used + unit / supers;
        f32 v[2][4];
        load_inputs_of(v, mid + slot * k_tiles * 64, unit % supers, k_tiles, lane);
        inputs.store(v, lane);
        const f32 weight = weights[slot];
        cp_async_wait<DEPTH - 1>();
        __syncwarp();
        f32 mine[2] = {};
        multiply_one<S>(mine, ring.slot(0), in, 0, lane);
        acc[0] = fmaf(weight, mine[0], acc[0]), acc[1] = fmaf(weight, mine[1], acc[1]);
        __syncwarp();
        fetch(unit + DEPTH * WARPS);
    }
    leave_sums(sums + 16 * warp, acc, lane);
    if (shared_y) {
        for (int at = threadIdx.x; at < wide; at += 32 * WARPS) {
            const uint4 bits = reinterpret_cast<const uint4*>(h)[token * wide + at];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                dot = fmaf(low_bf16(word_of(bits, i)), mix[8 * at + 2 * i], dot);
                dot = fmaf(high_bf16(word_of(bits, i)), mix[8 * at + 2 * i + 1], dot);
            }
        }
        dot = warp_sum(dot);
        if (lane == 0) sums[16 * WARPS + warp] = dot;
    }
    __syncthreads();
    if (threadIdx.x < 16) {
        const i64 at = token * (16 * gridDim.x) + 16 * blockIdx.x + threadIdx.x;
        f32 sum = met(sums, threadIdx.x);
        if (bias)
            for (int j = 0; j < used; ++j) {
                const i64 slot = token * used + j, row = i64(experts[slot]) * (16 * gridDim.x) + 16 * blockIdx.x + threadIdx.x;
                sum = fmaf(weights[slot], bias[row], sum);
            }
        if (shared_y) {
            f32 share = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) share += sums[16 * WARPS + w];
            sum = fmaf(1.0f / (1.0f + expf(-share)), f32_from_bf16(shared_y[at]), sum);
        }
        x[at] += sum;
    }
    cp_async_wait<0>();
}
