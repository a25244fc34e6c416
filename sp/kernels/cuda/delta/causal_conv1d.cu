// causal_conv1d of a Gated DeltaNet prompt: 4 taps a channel, SiLU, then unit length for the q and k heads.
//
//   y[t, c] = silu( sum_j weight[c, j] u[t - 3 + j, c] ),  u = history followed by x;  q, k: y / sqrt(sum_head y^2 + eps)
//
// x        bf16 (tokens, channels), channels = (2 key_heads + value_heads) * HEAD_DIM: q | k | v
// weight   f32 (channels, 4), tap 3 meets the current token;  history f32 (3, channels), oldest first, only read
// q, k     f16 (tokens, key_heads * HEAD_DIM);  v f16 (tokens, value_heads * HEAD_DIM), cut to the range of f16
//
// A team of HEAD_DIM / 4 threads takes RUN tokens of one head, 4 channels a thread; the last three inputs stay in
// registers, the next AHEAD tokens are loaded while these are worked on. 1-D grid of
// ceil(ceil(tokens / RUN) * heads / (256 / team)) blocks of 256; neighbouring teams take neighbouring heads. Rows of all
// arrays 16-byte aligned. sm_80+. Bound by memory: one pass over the input; f16 rather than bf16 for what the chunk
// kernels multiply, because its 11 bits keep the delta rule's cancellations (Yang et al. 2024).
#include "activations.cuh"
#include "mma.cuh"

#define TEAM (HEAD_DIM / 4)
#define AHEAD 4

extern "C" __global__ void __launch_bounds__(256)
    causal_conv1d(const u16* __restrict__ x, const f32* __restrict__ weight, const f32* __restrict__ history,
                  u16* __restrict__ q, u16* __restrict__ k, u16* __restrict__ v, i32 tokens, i32 key_heads,
                  i32 value_heads, f32 eps) {
    const i32 heads = 2 * key_heads + value_heads;
    const i64 channels = i64(heads) * HEAD_DIM;
    const i32 item = blockIdx.x * (256 / TEAM) + threadIdx.x / TEAM;
    const i32 head = item % heads, lane = threadIdx.x % TEAM;
    const i32 first = min(item / heads * RUN, tokens);  // idle teams keep their lanes for the shuffles
    const i32 last = min(first + RUN, tokens);
    const i64 channel = i64(head) * HEAD_DIM + 4 * lane;
    const bool unit = head < 2 * key_heads;
    x += channel;

    auto load = [&](i32 t) {
        return t < last ? *reinterpret_cast<const uint2*>(x + t * channels) : make_uint2(0, 0);
    };
    uint2 next[AHEAD];
#pragma unroll
    for (int s = 0; s < AHEAD; ++s) next[s] = load(first + s);
    f32 past[3][4], tap[4][4];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        const i32 t = first - 3 + j;
        if (t >= 0) {
            const uint2 pair = *reinterpret_cast<const uint2*>(x + t * channels);
            past[j][0] = low_bf16(pair.x), past[j][1] = high_bf16(pair.x);
            past[j][2] = low_bf16(pair.y), past[j][3] = high_bf16(pair.y);
        } else {
            const float4 four = *reinterpret_cast<const float4*>(history + (t + 3) * channels + channel);
            past[j][0] = four.x, past[j][1] = four.y, past[j][2] = four.z, past[j][3] = four.w;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(weight + (channel + i) * 4);
        tap[i][0] = four.x, tap[i][1] = four.y, tap[i][2] = four.z, tap[i][3] = four.w;
    }
    const i32 slot = head < key_heads ? head : unit ? head - key_heads : head - 2 * key_heads;
    u16* const target = (head < key_heads ? q : unit ? k : v) + i64(slot) * HEAD_DIM + 4 * lane;
    const i64 stride = i64(unit ? key_heads : value_heads) * HEAD_DIM;

#pragma unroll 1
    for (i32 begin = first; begin < first + RUN; begin += AHEAD) {
        uint2 own[AHEAD];
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) own[s] = next[s], next[s] = load(begin + AHEAD + s);
        f32 y[AHEAD][4], squares[AHEAD];
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            const f32 now[4] = {low_bf16(own[s].x), high_bf16(own[s].x), low_bf16(own[s].y), high_bf16(own[s].y)};
            squares[s] = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                y[s][i] = silu(tap[i][0] * past[0][i] + tap[i][1] * past[1][i] + tap[i][2] * past[2][i] +
                               tap[i][3] * now[i]);
                squares[s] += y[s][i] * y[s][i];
                past[0][i] = past[1][i], past[1][i] = past[2][i], past[2][i] = now[i];
            }
        }
        if (TEAM < 32 || unit)
#pragma unroll
            for (int offset = TEAM / 2; offset > 0; offset /= 2)
#pragma unroll
                for (int s = 0; s < AHEAD; ++s) squares[s] += __shfl_xor_sync(~0u, squares[s], offset);
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            const f32 scale = unit ? rsqrtf(squares[s] + eps) : 1.0f;
            if (begin + s < last)
                *reinterpret_cast<uint2*>(target + (begin + s) * stride) =
                    make_uint2(pack_f16_finite(y[s][0] * scale, y[s][1] * scale),
                               pack_f16_finite(y[s][2] * scale, y[s][3] * scale));
        }
    }
}
