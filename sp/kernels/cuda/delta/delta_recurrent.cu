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
// Grid (value_heads), 4 * HEAD_DIM threads; tokens in 1 .. TOKENS. Block p takes value head p and key head
// p % key_heads. A warp keeps 32 columns of HEAD_DIM / 4 keys of S in registers, a thread 4 columns of HEAD_DIM / 16; a
// token needs one reduction over the keys, because o = exp(g) S^T q + (k . q) d with the state before the token.
// history and state are moved on in place: history of the q and k channels is read by value_heads / key_heads blocks,
// and the last of them to arrive writes it. Capturable. 16-byte aligned rows. sm_80+. The state is 2 * 4 * HEAD_DIM^2
// bytes of traffic a block, but one token is bound by latency: loads are issued in the order they are waited for, all
// before the first use, and the state is brought to the L2 cache while the kernel before still runs. Dividing a head
// over a cluster of 2 or 4 blocks was slower.
#include "pdl.cuh"
#include "activations.cuh"
#include "mma.cuh"

#define THREADS (4 * HEAD_DIM)
#define WARPS (THREADS / 32)
#define ROWS (HEAD_DIM / 16)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    delta_recurrent(const u16* x, const u16* z, const f32* alpha, const f32* beta, const f32* __restrict__ taps,
                    const f32* __restrict__ a, const f32* __restrict__ dt_bias, const f32* __restrict__ norm,
                    f32* history, f32* state, u16* y, u32* arrivals, i32 tokens, i32 rows, i32 key_heads,
                    i32 value_heads, f32 eps) {
    __shared__ __align__(16) f32 mixed[TOKENS][3 * HEAD_DIM];  // q, k, v after the convolution; o replaces v
    __shared__ f32 scales[2][TOKENS];            // 1 / |q| sqrt(HEAD_DIM), 1 / |k|
    __shared__ f32 dots[TOKENS];                 // k . q of the scaled vectors
    __shared__ f32 decays[TOKENS], strengths[TOKENS];
    __shared__ __align__(16) f32 partial[2][4][HEAD_DIM];  // of S^T k and S^T q
    __shared__ __align__(16) f32 delta[HEAD_DIM];
    __shared__ f32 squares[TOKENS][HEAD_DIM / 32];
    __shared__ u32 order;
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const i32 p = blockIdx.x, column = thread % HEAD_DIM;
    i32 head = p;
    u32 readers = 0;  // blocks of this key head
    for (i32 left = value_heads; left > 0; left -= key_heads) ++readers;
    while (head >= key_heads) head -= key_heads;
    // 4 columns and ROWS keys of this thread
    const i32 mine = warp % (HEAD_DIM / 32) * 32 + lane % 8 * 4;
    const i32 keys = warp / (HEAD_DIM / 32) * (HEAD_DIM / 4) + lane / 8 * ROWS;
    const i64 channels = i64(2 * key_heads + value_heads) * HEAD_DIM;

    const i32 part = thread / HEAD_DIM;  // q, k, v; the last quarter of the threads has no channel
    const i64 channel = i64(part == 0 ? head : part == 1 ? key_heads + head : 2 * key_heads + p) * HEAD_DIM + column;
    float4 tap = make_float4(0, 0, 0, 0);
    f32 past[3] = {}, rate = 0.0f, bias = 0.0f, raw = 0.0f, strength = 0.0f;
    u16 now = 0;
    const i32 gate = thread - 3 * HEAD_DIM;  // token whose gates this thread computes
    for (i32 line = thread; line < HEAD_DIM * HEAD_DIM / 32; line += THREADS)
        prefetch_l2(state + i64(p) * HEAD_DIM * HEAD_DIM + line * 32);
    if (part < 3) {
        tap = *reinterpret_cast<const float4*>(taps + channel * 4);
        if (lane == 0)
            for (int j = 0; j < 3; ++j) prefetch_l2(history + j * channels + channel);
    } else if (gate < tokens) {
        rate = a[p], bias = dt_bias[p];
    }
    const f32 weight = norm[column];
    pdl_wait();
    if (part < 3) {
        now = x[channel];
#pragma unroll
        for (int j = 0; j < 3; ++j) past[j] = history[j * channels + channel];
    } else if (gate < tokens) {
        raw = alpha[i64(gate) * value_heads + p], strength = beta[i64(gate) * value_heads + p];
    }
    float4* const own = reinterpret_cast<float4*>(state + (i64(p) * HEAD_DIM + keys) * HEAD_DIM + mine);
    float4 S[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) S[i] = own[i * (HEAD_DIM / 4)];
    const bool early = part < rows;  // the first outputs of a thread: their gate and weight are fetched now
    const u16 first_z = early ? z[(i64(part) * value_heads + p) * HEAD_DIM + column] : u16(0);

    if (part < 3) {
#pragma unroll 4
        for (i32 t = 0; t < tokens; ++t) {
            const f32 u = f32_from_bf16(now);
            if (t + 1 < tokens) now = x[(t + 1) * channels + channel];
            mixed[t][thread] = silu(tap.x * past[0] + tap.y * past[1] + tap.z * past[2] + tap.w * u);
            past[0] = past[1], past[1] = past[2], past[2] = u;
        }
    } else if (gate < tokens) {
        decays[gate] = expf(rate * softplus(raw + bias));
        strengths[gate] = sigmoid(strength);
    }
    __syncthreads();
    pdl_launch_dependents();  // not before the state is here: the next kernel's reads would delay it
    // Past the barrier every read of history has returned, so the arrival needs no fence; its answer is used last.
    u32 arrived = 0;
    if (thread == THREADS - 1) arrived = atomicInc(arrivals + head, readers - 1);
    for (i32 t = warp; t < tokens; t += WARPS) {
        f32 qq = 0.0f, kk = 0.0f, qk = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; ++i) {
            const f32 q = mixed[t][32 * i + lane], k = mixed[t][HEAD_DIM + 32 * i + lane];
            qq += q * q, kk += k * k, qk += q * k;
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            qq += __shfl_xor_sync(~0u, qq, offset);
            kk += __shfl_xor_sync(~0u, kk, offset);
            qk += __shfl_xor_sync(~0u, qk, offset);
        }
        qq = rsqrtf(qq + eps) * rsqrtf(f32(HEAD_DIM)), kk = rsqrtf(kk + eps);
        if (lane == 0) scales[0][t] = qq, scales[1][t] = kk, dots[t] = qk * kk * qq;
    }

    for (i32 t = 0; t < tokens; ++t) {
        f32 q[ROWS], k[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(mixed[t] + keys + i);
            const float4 more = *reinterpret_cast<const float4*>(mixed[t] + HEAD_DIM + keys + i);
            q[i] = four.x, q[i + 1] = four.y, q[i + 2] = four.z, q[i + 3] = four.w;
            k[i] = more.x, k[i + 1] = more.y, k[i + 2] = more.z, k[i + 3] = more.w;
        }
        f32 sums[8] = {};  // S^T k, S^T q of four columns
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            sums[0] += S[i].x * k[i], sums[1] += S[i].y * k[i], sums[2] += S[i].z * k[i], sums[3] += S[i].w * k[i];
            sums[4] += S[i].x * q[i], sums[5] += S[i].y * q[i], sums[6] += S[i].z * q[i], sums[7] += S[i].w * q[i];
        }
#pragma unroll
        for (int offset = 8; offset < 32; offset *= 2)
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[i] += __shfl_xor_sync(~0u, sums[i], offset);
        if (lane < 16) {  // lanes 0-7 write S^T k, 8-15 S^T q
            const i32 which = lane / 8;
            *reinterpret_cast<float4*>(partial[which][warp / (HEAD_DIM / 32)] + mine) =
                make_float4(sums[which ? 4 : 0], sums[which ? 5 : 1], sums[which ? 6 : 2], sums[which ? 7 : 3]);
        }
        __syncthreads();
        const f32 decay = decays[t], unit = scales[1][t];
        f32 out = 0.0f;
        if (thread < HEAD_DIM) {
            f32 read = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) read += partial[0][i][thread], out += partial[1][i][thread];
            const f32 d = strengths[t] * (mixed[t][2 * HEAD_DIM + thread] - decay * unit * read);
            delta[thread] = d;
            out = decay * scales[0][t] * out + dots[t] * d;
        }
        __syncthreads();
        const float4 d = *reinterpret_cast<const float4*>(delta + mine);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const f32 ki = k[i] * unit;
            S[i].x = decay * S[i].x + ki * d.x, S[i].y = decay * S[i].y + ki * d.y;
            S[i].z = decay * S[i].z + ki * d.z, S[i].w = decay * S[i].w + ki * d.w;
        }
        if (thread < HEAD_DIM) {
            mixed[t][2 * HEAD_DIM + thread] = out;
            const f32 sum = warp_sum(out * out);
            if (lane == 0) squares[t][warp] = sum;
        }
    }
    if (thread == THREADS - 1) order = arrived;
    __syncthreads();
    for (i32 row = part; row < rows; row += 4) {
        const i32 t = tokens - rows + row;
        const i64 at = (i64(row) * value_heads + p) * HEAD_DIM + column;
        f32 sum = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; ++i) sum += squares[t][i];
        const f32 scale = rsqrtf(sum * (1.0f / HEAD_DIM) + eps) * weight;
        y[at] = bf16_from(mixed[t][2 * HEAD_DIM + column] * scale * silu(f32_from_bf16(row == part ? first_z : z[at])));
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) own[i * (HEAD_DIM / 4)] = S[i];
    if (part == 2 || (part < 2 && order == readers - 1)) {  // v channels are read by this block alone
#pragma unroll
        for (int j = 0; j < 3; ++j) history[j * channels + channel] = past[j];
    }
}
