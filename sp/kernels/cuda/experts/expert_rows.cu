// Scatters rows of tokens to the places of their slots, and adds up the weighted results of the slots.
//
//   scatter_rows   sorted[places[t, j]] = h[t]
//   combine_rows   x[t] += sum_j weights[t, j] * y[places[t, j]], j ascending, and with `shared`
//                  + sigmoid(h[t] . mix) * shared[t]
//   combine_biased the same with y[places[t, j]] + bias[experts[t, j]]
//
// h, shared bf16 (tokens, 8 * COLS8); sorted, y bf16 (places, 8 * COLS8); x f32 (tokens, 8 * COLS8); mix f32 (8 * COLS8);
// places, experts i32, weights f32 (tokens, used); bias f32 (experts, 8 * COLS8). Rows 16-byte aligned.
// Launch: a block of 128 threads a token. Rows of `sorted` that no slot has are not written. sm_80+. Bound by memory.
#include "mma.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;

SP_DEVICE void spread(f32 (&v)[8], uint4 bits) {
    const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) v[2 * i] = low_bf16(words[i]), v[2 * i + 1] = high_bf16(words[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_rows(const u16* __restrict__ h, const i32* __restrict__ places, u16* __restrict__ sorted, i32 used, i32 cols8) {
    const i64 token = blockIdx.x;
    const uint4* from = reinterpret_cast<const uint4*>(h) + token * cols8;
    for (i32 at = threadIdx.x; at < cols8; at += THREADS) {
        const uint4 bits = from[at];
        for (i32 j = 0; j < used; ++j)
            reinterpret_cast<uint4*>(sorted)[i64(places[token * used + j]) * cols8 + at] = bits;
    }
}

template <bool Biased>
SP_DEVICE void combine(const u16* __restrict__ y, const i32* __restrict__ places, const f32* __restrict__ weights,
                       const u16* __restrict__ h, const f32* __restrict__ mix, const u16* __restrict__ shared,
                       f32* __restrict__ x, i32 used, i32 cols8, const i32* __restrict__ experts,
                       const f32* __restrict__ bias, f32* sums) {
    const i64 token = blockIdx.x;
    f32 share = 0;
    if (shared) {
        f32 dot = 0;
        for (i32 at = threadIdx.x; at < cols8; at += THREADS) {
            f32 v[8];
            spread(v, reinterpret_cast<const uint4*>(h)[token * cols8 + at]);
#pragma unroll
            for (int i = 0; i < 8; ++i) dot += v[i] * mix[8 * at + i];
        }
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = dot;
        __syncthreads();
        dot = 0;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) dot += sums[i];
        share = 1.0f / (1.0f + expf(-dot));
    }
    for (i32 at = threadIdx.x; at < cols8; at += THREADS) {
        float4* to = reinterpret_cast<float4*>(x) + (token * cols8 + at) * 2;
        const float4 low = to[0], high = to[1];
        f32 sum[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, v[8];
        for (i32 j = 0; j < used; ++j) {
            spread(v, reinterpret_cast<const uint4*>(y)[i64(places[token * used + j]) * cols8 + at]);
            const f32 weight = weights[token * used + j];
            if constexpr (Biased) {
                const float4* more = reinterpret_cast<const float4*>(bias) + (i64(experts[token * used + j]) * cols8 + at) * 2;
                const float4 first = more[0], second = more[1];
                v[0] += first.x, v[1] += first.y, v[2] += first.z, v[3] += first.w;
                v[4] += second.x, v[5] += second.y, v[6] += second.z, v[7] += second.w;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += weight * v[i];
        }
        if (shared) {
            spread(v, reinterpret_cast<const uint4*>(shared)[token * cols8 + at]);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += share * v[i];
        }
        to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    combine_rows(const u16* __restrict__ y, const i32* __restrict__ places, const f32* __restrict__ weights,
                 const u16* __restrict__ h, const f32* __restrict__ mix, const u16* __restrict__ shared, f32* __restrict__ x,
                 i32 used, i32 cols8) {
    __shared__ f32 sums[WARPS];
    combine<false>(y, places, weights, h, mix, shared, x, used, cols8, nullptr, nullptr, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    combine_biased(const u16* __restrict__ y, const i32* __restrict__ places, const f32* __restrict__ weights,
                   const u16* __restrict__ h, const f32* __restrict__ mix, const u16* __restrict__ shared,
                   f32* __restrict__ x, i32 used, i32 cols8, const i32* __restrict__ experts, const f32* __restrict__ bias) {
    __shared__ f32 sums[WARPS];
    combine<true>(y, places, weights, h, mix, shared, x, used, cols8, experts, bias, sums);
}
