// causal_conv1d of a Gated DeltaNet prompt: 4 taps a channel, SiLU, then unit length for the q and k heads.
//
//   y[t, c] = silu( sum_j weight[c, j] u[t - 3 + j, c] ),  u = history followed by x;  q, k: y / sqrt(sum_head y^2 + eps)
//
// x        bf16 (tokens, channels), channels = (2 key_heads + value_heads) * HEAD_DIM: q | k | v
// weight   f32 (channels, 4), tap 3 meets the current token;  history f32 (3, channels), oldest first, only read
// q, k     f16 (tokens, key_heads * HEAD_DIM);  v f16 (tokens, value_heads * HEAD_DIM), cut to the range of f16
//
// A team of HEAD_DIM / 8 threads takes RUN tokens of one head, 8 channels a thread; the last three inputs stay in
// registers. 1-D grid of ceil(ceil(tokens / RUN) * heads / (256 / team)) blocks of 256; neighbouring teams take
// neighbouring heads. Rows of all arrays 16-byte aligned. sm_80+. One pass over the input; f16 rather than bf16 for
// what the chunk kernels multiply, because its 11 bits keep the delta rule's cancellations (Yang et al. 2024).
#include "gates.cuh"
#include "mma.cuh"

#define TEAM (HEAD_DIM / 8)
#define RUN 16
#define AHEAD 4

SP_DEVICE void unpack(f32 (&value)[8], uint4 bits) {
    const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        value[2 * i] = low_bf16(words[i]);
        value[2 * i + 1] = high_bf16(words[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    causal_conv1d(const u16* __restrict__ x, const f32* __restrict__ weight, const f32* __restrict__ history,
                  u16* __restrict__ q, u16* __restrict__ k, u16* __restrict__ v, i32 tokens, i32 key_heads,
                  i32 value_heads, f32 eps) {
    const i32 heads = 2 * key_heads + value_heads;
    const i64 channels = i64(heads) * HEAD_DIM;
    const i64 item = i64(blockIdx.x) * (256 / TEAM) + threadIdx.x / TEAM;
    const i32 head = i32(item % heads), lane = threadIdx.x % TEAM;
    const i32 first = min(i32(item / heads) * RUN, tokens);  // idle teams keep their lanes for the shuffles
    const i32 last = min(first + RUN, tokens);
    const i64 channel = i64(head) * HEAD_DIM + 8 * lane;
    const bool unit = head < 2 * key_heads;

    f32 tap[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(weight + (channel + i) * 4);
        tap[i][0] = four.x, tap[i][1] = four.y, tap[i][2] = four.z, tap[i][3] = four.w;
    }
    f32 past[3][8];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        const i32 t = first - 3 + j;
        if (t >= 0) {
            unpack(past[j], *reinterpret_cast<const uint4*>(x + t * channels + channel));
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) past[j][i] = history[(t + 3) * channels + channel + i];
        }
    }
    const i32 slot = head < key_heads ? head : head < 2 * key_heads ? head - key_heads : head - 2 * key_heads;
    u16* const target = (head < key_heads ? q : unit ? k : v) + i64(slot) * HEAD_DIM + 8 * lane;
    const i64 stride = i64(unit ? key_heads : value_heads) * HEAD_DIM;

    for (i32 begin = 0; begin < RUN; begin += AHEAD) {
        uint4 raw[AHEAD];
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            const i32 t = first + begin + s;
            raw[s] = t < last ? *reinterpret_cast<const uint4*>(x + t * channels + channel) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            f32 now[8], y[8], squares = 0.0f;
            unpack(now, raw[s]);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                y[i] = silu(tap[i][0] * past[0][i] + tap[i][1] * past[1][i] + tap[i][2] * past[2][i] +
                            tap[i][3] * now[i]);
                squares += y[i] * y[i];
                past[0][i] = past[1][i], past[1][i] = past[2][i], past[2][i] = now[i];
            }
#pragma unroll
            for (int offset = TEAM / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(~0u, squares, offset);
            const f32 scale = unit ? rsqrtf(squares + eps) : 1.0f;
            const i32 t = first + begin + s;
            if (t < last)
                *reinterpret_cast<uint4*>(target + t * stride) =
                    make_uint4(pack_f16_finite(y[0] * scale, y[1] * scale), pack_f16_finite(y[2] * scale, y[3] * scale),
                               pack_f16_finite(y[4] * scale, y[5] * scale), pack_f16_finite(y[6] * scale, y[7] * scale));
        }
    }
}
