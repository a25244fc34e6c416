// Routing of a mixture of experts: experts[t] = the `used` largest of p[t] = softmax(logits[t]), the largest first and of
// equals the smaller index; weights[t] = their p, divided by their sum if `normalised`. With `bias` of logits[t] + bias.
//
// logits f32 (tokens, count), count <= 32 * EACH; bias f32 (count); experts i32 and weights f32 (tokens, used), used <= 32. NaN counts as 0.
// Launch: blocks of 4 warps, a warp a token, which keeps its logits in registers, EACH a lane. sm_80+. Shazeer et al. 2017.
#include "mma.cuh"

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    route(const f32* __restrict__ logits, i32* __restrict__ experts, f32* __restrict__ weights, i32 tokens, i32 count,
          i32 used, i32 normalised, const f32* __restrict__ bias) {
    const i64 token = i64(blockIdx.x) * WARPS + threadIdx.x / 32;
    const i32 lane = threadIdx.x % 32;
    if (token >= tokens) return;
    const f32 none = __int_as_float(0xff800000);
    f32 p[EACH], top = none, sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        p[i] = 32 * i + lane < count ? logits[token * count + 32 * i + lane] : none;
        if (bias && 32 * i + lane < count) p[i] += bias[32 * i + lane];
        top = fmaxf(top, p[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        p[i] = 32 * i + lane < count ? expf(p[i] - top) : 0.0f;
        p[i] = p[i] == p[i] ? p[i] : 0.0f;
        sum += p[i];
    }
    sum = warp_sum(sum);
    sum = sum > 0 ? sum : 1.0f;  // all logits NaN: experts are still such as there are
#pragma unroll
    for (int i = 0; i < EACH; ++i) p[i] = 32 * i + lane < count ? p[i] / sum : -1.0f;

    f32 weight = 0;  // of the expert of this lane's rank
    for (int j = 0; j < used; ++j) {
        f32 best = -2.0f;
        i32 which = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (p[i] > best) best = p[i], which = 32 * i + lane;
#pragma unroll
        for (int step = 16; step; step /= 2) {
            const f32 its = __shfl_xor_sync(~0u, best, step);
            const i32 other = __shfl_xor_sync(~0u, which, step);
            if (its > best || (its == best && other < which)) best = its, which = other;
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (which == 32 * i + lane) p[i] = -2.0f;
        if (lane == j) weight = best;
        if (lane == 0) experts[token * used + j] = which;
    }
    const f32 total = warp_sum(lane < used ? weight : 0.0f);
    if (lane < used) weights[token * used + lane] = normalised ? weight / total : weight;
}
