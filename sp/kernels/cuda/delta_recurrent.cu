// A whole Gated DeltaNet layer between its matrices, for the few tokens of a decoding step: convolution, SiLU, unit q
// and k, gates, the delta rule token by token, gated norm. One launch, the state read and written once.
//
//   S <- exp(g) S;  d = b (v - S^T k);  S <- S + k d^T;  o = S^T q / sqrt(HEAD_DIM);  y = rms_norm(o, norm) * silu(z)
//
// x            bf16 (tokens, channels), channels = (2 key_heads + value_heads) * HEAD_DIM: q | k | v
// z, y         bf16 (rows, value_heads * HEAD_DIM), the last `rows` tokens
// alpha, beta  f32 (tokens, value_heads);  a, dt_bias f32 (value_heads);  norm f32 (HEAD_DIM)
// taps         f32 (channels, 4);  history f32 (3, channels);  state f32 (value_heads, HEAD_DIM keys, HEAD_DIM values)
// arrivals     u32 (key_heads), zeros before and after
//
// Grid (value_heads), 512 threads; tokens in 1 .. TOKENS. Block p takes value head p and key head p % key_heads. A
// thread keeps 4 value columns of ROWS keys of S in registers; a token needs one reduction over the key groups, because
// o = exp(g) S^T q + (k . q) d with the state before the token. history and state are moved on in place: history of the
// q and k channels is read by value_heads / key_heads blocks, and the last of them to arrive writes it. Capturable.
// 16-byte aligned rows. sm_80+. Bound by memory: 2 * 4 * HEAD_DIM^2 bytes a value head.
#include "gates.cuh"
#include "mma.cuh"

#define QUADS (HEAD_DIM / 4)   // threads side by side over the value columns
#define GROUPS (512 / QUADS)   // groups of keys
#define ROWS (HEAD_DIM / GROUPS)

extern "C" __global__ void __launch_bounds__(512, 1)
    delta_recurrent(const u16* __restrict__ x, const u16* __restrict__ z, const f32* __restrict__ alpha,
                    const f32* __restrict__ beta, const f32* __restrict__ taps, const f32* __restrict__ a,
                    const f32* __restrict__ dt_bias, const f32* __restrict__ norm, f32* history, f32* state, u16* y,
                    u32* arrivals, i32 tokens, i32 rows, i32 key_heads, i32 value_heads, f32 eps) {
    __shared__ f32 mixed[3][TOKENS][HEAD_DIM];  // q, k, v after the convolution
    __shared__ f32 scales[2][TOKENS];           // 1 / |q|, 1 / |k|
    __shared__ f32 dots[TOKENS];                // k . q of the unit vectors
    __shared__ f32 decays[TOKENS], strengths[TOKENS];
    __shared__ float4 partial[2][GROUPS][QUADS];  // of S^T k and S^T q
    __shared__ float4 delta[QUADS];
    __shared__ f32 squares[HEAD_DIM / 32];
    __shared__ u32 order;
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const i32 p = blockIdx.x, head = p % key_heads;
    const i32 quad = thread % QUADS, group = thread / QUADS;
    const i64 channels = i64(2 * key_heads + value_heads) * HEAD_DIM;

    float4* const own = reinterpret_cast<float4*>(state + (i64(p) * HEAD_DIM + group * ROWS) * HEAD_DIM) + quad;
    float4 S[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) S[i] = own[i * QUADS];

    if (thread < 3 * HEAD_DIM) {
        const i32 part = thread / HEAD_DIM, i = thread % HEAD_DIM;
        const i64 channel = i64(part == 0 ? head : part == 1 ? key_heads + head : 2 * key_heads + p) * HEAD_DIM + i;
        const float4 tap = *reinterpret_cast<const float4*>(taps + channel * 4);
        f32 past[3] = {history[channel], history[channels + channel], history[2 * channels + channel]};
#pragma unroll 4
        for (i32 t = 0; t < tokens; ++t) {
            const f32 now = f32_from_bf16(x[t * channels + channel]);
            mixed[part][t][i] = silu(tap.x * past[0] + tap.y * past[1] + tap.z * past[2] + tap.w * now);
            past[0] = past[1], past[1] = past[2], past[2] = now;
        }
        if (part == 2) {  // only this block reads the v channels
#pragma unroll
            for (int j = 0; j < 3; ++j) history[j * channels + channel] = past[j];
        }
    }
    if (thread >= 512 - TOKENS && thread - (512 - TOKENS) < tokens) {
        const i32 t = thread - (512 - TOKENS);
        decays[t] = expf(a[p] * softplus(alpha[i64(t) * value_heads + p] + dt_bias[p]));
        strengths[t] = sigmoid(beta[i64(t) * value_heads + p]);
    }
    __syncthreads();
    if (thread == 0) {
        __threadfence();
        order = atomicInc(arrivals + head, u32(value_heads / key_heads - 1));
    }
    for (i32 t = warp; t < tokens; t += 16) {
        f32 qq = 0.0f, kk = 0.0f, qk = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; ++i) {
            const f32 q = mixed[0][t][32 * i + lane], k = mixed[1][t][32 * i + lane];
            qq += q * q, kk += k * k, qk += q * k;
        }
        qq = rsqrtf(warp_sum(qq) + eps), kk = rsqrtf(warp_sum(kk) + eps), qk = warp_sum(qk);
        if (lane == 0) {
            scales[0][t] = qq * rsqrtf(f32(HEAD_DIM));
            scales[1][t] = kk;
            dots[t] = qk * kk * qq * rsqrtf(f32(HEAD_DIM));
        }
    }
    __syncthreads();
    if (order == u32(value_heads / key_heads - 1) && thread < 2 * HEAD_DIM) {
        const i64 channel = i64(thread / HEAD_DIM ? key_heads + head : head) * HEAD_DIM + thread % HEAD_DIM;
        f32 past[3] = {history[channel], history[channels + channel], history[2 * channels + channel]};
        for (i32 t = max(tokens - 3, 0); t < tokens; ++t) {
            past[0] = past[1], past[1] = past[2], past[2] = f32_from_bf16(x[t * channels + channel]);
        }
#pragma unroll
        for (int j = 0; j < 3; ++j) history[j * channels + channel] = past[j];
    }

    for (i32 t = 0; t < tokens; ++t) {
        const f32* const q = mixed[0][t] + group * ROWS;
        const f32* const k = mixed[1][t] + group * ROWS;
        float4 sk = make_float4(0, 0, 0, 0), sq = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const f32 ki = k[i], qi = q[i];
            sk.x += S[i].x * ki, sk.y += S[i].y * ki, sk.z += S[i].z * ki, sk.w += S[i].w * ki;
            sq.x += S[i].x * qi, sq.y += S[i].y * qi, sq.z += S[i].z * qi, sq.w += S[i].w * qi;
        }
        partial[0][group][quad] = sk;
        partial[1][group][quad] = sq;
        __syncthreads();
        const f32 decay = decays[t], unit = scales[1][t];
        f32 out = 0.0f;
        if (thread < HEAD_DIM) {
            f32 read = 0.0f;
#pragma unroll
            for (int i = 0; i < GROUPS; ++i) {
                read += reinterpret_cast<const f32*>(partial[0][i])[thread];
                out += reinterpret_cast<const f32*>(partial[1][i])[thread];
            }
            const f32 d = strengths[t] * (mixed[2][t][thread] - decay * unit * read);
            reinterpret_cast<f32*>(delta)[thread] = d;
            out = decay * scales[0][t] * out + dots[t] * d;
            const f32 sum = warp_sum(out * out);
            if (lane == 0) squares[warp] = sum;
        }
        __syncthreads();
        const float4 d = delta[quad];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const f32 ki = k[i] * unit;
            S[i].x = decay * S[i].x + ki * d.x, S[i].y = decay * S[i].y + ki * d.y;
            S[i].z = decay * S[i].z + ki * d.z, S[i].w = decay * S[i].w + ki * d.w;
        }
        const i32 row = t - (tokens - rows);
        if (thread < HEAD_DIM && row >= 0) {
            f32 sum = 0.0f;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 32; ++i) sum += squares[i];
            const i64 at = (i64(row) * value_heads + p) * HEAD_DIM + thread;
            const f32 normed = out * rsqrtf(sum * (1.0f / HEAD_DIM) + eps) * norm[thread];
            y[at] = bf16_from(normed * silu(f32_from_bf16(z[at])));
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) own[i * QUADS] = S[i];
}
