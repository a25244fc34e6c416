// What one chunk of 64 tokens of the delta rule needs before the scan, for all value heads of a key head at once.
//
// With G the running sum of g = a softplus(alpha + dt_bias) inside the chunk, b = sigmoid(beta) and
// M[i, j] = exp(G_i - G_j) for j <= i:
//   A = strict_lower(diag(b) K K^T * M),  T = (I + A)^-1 diag(b),  P = lower(Q K^T * M) / sqrt(HEAD_DIM)
// so that the scan has D = T (V - exp(G) K S), O = exp(G) Q S / sqrt(HEAD_DIM) + P D.
//
// q, k         f16 (tokens, key_heads * HEAD_DIM), unit heads;  alpha, beta f32 (tokens, value_heads)
// a, dt_bias   f32 (value_heads)
// T, P         f16 (value_heads, chunks, 64, 64); 16 x 16 blocks above the diagonal are left unwritten
// decay        f32 (value_heads, chunks, 2, 64): exp(G), exp(G_end - G)
// x, history   bf16 (tokens, channels), f32 (3, channels): the last three inputs of the convolution are written to
//              `history` here, after the kernel that read it; tokens >= 3
//
// Grid (chunks, key_heads), 256 threads, value head p = key head + r * key_heads for r < REPEAT. K K^T by warps 0-3,
// Q K^T by warps 4-7 (mma.m16n8k16 f16, f32 sums); the inverse by forward substitution in f32, one thread a column:
// entries of T are at most 1, so one rounding to f16 at the end is harmless, while powers of A are not (repeated keys).
// Missing tokens count as k = b = g = 0. 16-byte aligned rows. sm_80+. Yang et al. 2024, sections on the chunked WY form.
#include "gates.cuh"
#include "mma.cuh"

#define CHUNK 64
#define PITCH (HEAD_DIM + 8)  // f16 a row of a tile: an odd number of 16-byte steps, free of bank conflicts
#define A_PITCH 68

extern __shared__ __align__(16) u8 shared[];

// sums[j] = rows 16 * block .. +15 of `left` times rows 8 j .. of `right`, transposed; tiles above the diagonal skipped.
SP_DEVICE void row_products(f32 (&sums)[8][4], u32 left, u32 right, i32 block, i32 lane) {
#pragma unroll
    for (int k16 = 0; k16 < HEAD_DIM / 16; ++k16) {
        u32 a[4];
        ldmatrix_x4(a, left + ((16 * block + lane % 16) * PITCH + 16 * k16 + 8 * (lane / 16)) * 2);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            if (pair <= block) {
                u32 b[4];
                ldmatrix_x4(b, right + ((16 * pair + 8 * (lane / 16) + lane % 8) * PITCH + 16 * k16 +
                                        8 * (lane / 8 % 2)) * 2);
                mma_f16(sums[2 * pair], a, b[0], b[1]);
                mma_f16(sums[2 * pair + 1], a, b[2], b[3]);
            }
        }
    }
}

// Column `column` of (I + A)^-1 times b[column]; rows from 16 * first on, the ones before are zero.
SP_DEVICE void solve_column(const f32* A, const f32* b, u16* T, i32 column, i32 first) {
    f32 x[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
        if (i / 16 < first) {
            x[i] = 0.0f;
            continue;
        }
        f32 sum[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            if (j / 16 < first) continue;
            const float4 four = *reinterpret_cast<const float4*>(A + i * A_PITCH + j);
            sum[0] -= four.x * x[j];
            if (j + 1 < i) sum[1] -= four.y * x[j + 1];
            if (j + 2 < i) sum[2] -= four.z * x[j + 2];
            if (j + 3 < i) sum[3] -= four.w * x[j + 3];
        }
        x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    const f32 strength = b[column];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i)
        if (i / 16 >= first) T[i * CHUNK + column] = f16_from(x[i] * strength);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    delta_chunk(const u16* __restrict__ q, const u16* __restrict__ k, const f32* __restrict__ alpha,
                const f32* __restrict__ beta, const f32* __restrict__ a, const f32* __restrict__ dt_bias,
                u16* __restrict__ T, u16* __restrict__ P, f32* __restrict__ decay, const u16* __restrict__ x,
                f32* __restrict__ history, i32 tokens, i32 key_heads) {
    u16* const tile_q = reinterpret_cast<u16*>(shared);
    u16* const tile_k = tile_q + CHUNK * PITCH;
    f32* const A = reinterpret_cast<f32*>(tile_k + CHUNK * PITCH);  // (REPEAT, CHUNK, A_PITCH)
    f32* const G = A + REPEAT * CHUNK * A_PITCH;                    // (REPEAT, CHUNK)
    f32* const b = G + REPEAT * CHUNK;                              // (REPEAT, CHUNK)
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const i32 chunk = blockIdx.x, chunks = gridDim.x, head = blockIdx.y;
    const i32 value_heads = REPEAT * key_heads, start = chunk * CHUNK;
    const i64 stride = i64(key_heads) * HEAD_DIM;

    for (i32 i = thread; i < CHUNK * HEAD_DIM / 8; i += 256) {
        const i32 row = i / (HEAD_DIM / 8), column = i % (HEAD_DIM / 8) * 8;
        const bool valid = start + row < tokens;
        const i64 source = (valid ? start + row : 0) * stride + head * HEAD_DIM + column;
        cp_async_16(shared_address(tile_q + row * PITCH + column), q + source, valid);
        cp_async_16(shared_address(tile_k + row * PITCH + column), k + source, valid);
    }
    cp_async_commit();
    if (warp < REPEAT) {  // gates of one value head: two tokens a lane, running sum over the warp
        const i32 p = head + warp * key_heads;
        f32 g[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const i32 t = start + 2 * lane + i;
            const bool valid = t < tokens;
            g[i] = valid ? a[p] * softplus(alpha[i64(t) * value_heads + p] + dt_bias[p]) : 0.0f;
            b[warp * CHUNK + 2 * lane + i] = valid ? sigmoid(beta[i64(t) * value_heads + p]) : 0.0f;
        }
        f32 total = g[0] + g[1];
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
            const f32 before = __shfl_up_sync(~0u, total, offset);
            if (lane >= offset) total += before;
        }
        const f32 end = __shfl_sync(~0u, total, 31);
        f32* const out = decay + (i64(p) * chunks + chunk) * 2 * CHUNK + 2 * lane;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const f32 sum = i ? total : total - g[1];
            G[warp * CHUNK + 2 * lane + i] = sum;
            out[i] = __expf(sum);
            out[CHUNK + i] = __expf(end - sum);
        }
    }
    if (chunk == 0) {  // this key head's share of the convolution's memory
        const i32 share = (2 + REPEAT) * HEAD_DIM;
        const i64 channels = i64(share) * key_heads;
        for (i32 i = thread; i < 3 * share; i += 256) {
            const i64 channel = i64(head) * share + i % share;
            history[i / share * channels + channel] =
                f32_from_bf16(x[(i64(tokens) - 3 + i / share) * channels + channel]);
        }
    }
    cp_async_wait<0>();
    __syncthreads();

    f32 sums[8][4] = {};
    const i32 block = warp % 4, g = lane / 4, c = lane % 4;
    row_products(sums, shared_address(warp < 4 ? tile_k : tile_q), shared_address(tile_k), block, lane);
    const f32 root = rsqrtf(f32(HEAD_DIM));
    for (i32 r = 0; r < REPEAT; ++r) {
        const f32* const sum = G + r * CHUNK;
        u16* const out = P + (i64(head + r * key_heads) * chunks + chunk) * CHUNK * CHUNK;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const i32 i = 16 * block + g + 8 * half;
            const f32 own = sum[i], strength = b[r * CHUNK + i];
#pragma unroll
            for (int tile = 0; tile < 8; ++tile) {
                if (tile / 2 > block) continue;
                const i32 j = 8 * tile + 2 * c;
                const f32 left = j <= i ? sums[tile][2 * half] * __expf(own - sum[j]) : 0.0f;
                const f32 right = j + 1 <= i ? sums[tile][2 * half + 1] * __expf(own - sum[j + 1]) : 0.0f;
                if (warp < 4) {
                    *reinterpret_cast<float2*>(A + (r * CHUNK + i) * A_PITCH + j) =
                        make_float2(left * strength, right * strength);
                } else {
                    *reinterpret_cast<u32*>(out + i * CHUNK + j) = pack_f16(left * root, right * root);
                }
            }
        }
    }
    __syncthreads();
    if (warp < 2 * REPEAT) {
        const i32 r = warp / 2, p = head + r * key_heads;
        solve_column(A + r * CHUNK * A_PITCH, b + r * CHUNK, T + (i64(p) * chunks + chunk) * CHUNK * CHUNK,
                     warp % 2 * 32 + lane, warp % 2 * 2);
    }
}
