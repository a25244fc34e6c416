// The matrices of one chunk of 64 tokens of the delta rule for the scan, for all value heads of a key head at once.
//
// With G the running sum of g = a softplus(alpha + dt_bias) inside the chunk, b = sigmoid(beta) and
// M[i, j] = exp(G_i - G_j) for j <= i:
//   A = strict_lower(diag(b) K K^T * M),  T = (I + A)^-1 diag(b),  P = lower(Q K^T * M) / sqrt(HEAD_DIM)
// so that the scan has D = T (V - exp(G) K S), O = exp(G) Q S / sqrt(HEAD_DIM) + P D.
//
// q, k         f16 (tokens, key_heads * HEAD_DIM), unit heads;  alpha, beta f32 (tokens, value_heads)
// a, dt_bias   f32 (value_heads)
// T, P         f16 (value_heads, chunks, 64, 64), zero above the diagonal
// decay        f32 (value_heads, chunks, 2, 64): exp(G), exp(G_end - G)
// x, history   bf16 (tokens, channels), f32 (3, channels): the last three inputs of the convolution are written to
//              `history` here, after the kernel that read it; tokens >= 3
//
// Grid (chunks, key_heads), 256 threads, value head p = key head + r * key_heads for r < REPEAT <= 4. Both products by
// mma.m16n8k16 f16 with f32 sums, a warp one or two of the ten 16 x 16 blocks on and below the diagonal; the inverse in
// f32, blocks of 16 by substitution, then merged with products of 22-bit operands: entries of T are at most 1, so one
// rounding to f16 at the end is harmless, while powers of A are not (repeated keys). Missing tokens count as k = b = g = 0. 16-byte aligned rows.
// sm_80+. Yang et al. 2024, sections on the chunked WY form.
#include "activations.cuh"
#include "mma.cuh"

#define CHUNK 64
#define PITCH (HEAD_DIM + 8)  // f16 a row of a tile: an odd number of 16-byte steps, free of bank conflicts
#define A_PITCH 68
#define TILES (2 * CHUNK * PITCH * 2)
#define SQUARES (REPEAT * CHUNK * A_PITCH * 4)
#define LARGER (TILES > SQUARES ? TILES : SQUARES)

extern __shared__ __align__(16) u8 shared[];

// Columns of the inverses of the four 16 x 16 diagonal blocks of I + A, over A: forward substitution, a thread a column.
SP_DEVICE void invert_diagonal(f32* A, i32 thread) {
    const i32 column = thread % 16;
    f32* const block = A + thread / 16 * 16 * (A_PITCH + 1);
    f32 x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        f32 sum[2] = {i == column ? 1.0f : 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 four = *reinterpret_cast<const float4*>(block + i * A_PITCH + j);
            sum[0] -= four.x * x[j];
            if (j + 1 < i) sum[1] -= four.y * x[j + 1];
            if (j + 2 < i) sum[0] -= four.z * x[j + 2];
            if (j + 3 < i) sum[1] -= four.w * x[j + 3];
        }
        x[i] = sum[0] + sum[1];
    }
    __syncwarp();  // the 16 threads of a block lie in one warp
#pragma unroll
    for (int i = 0; i < 16; ++i) block[i * A_PITCH + column] = x[i];
}

// 16 x 16 float32 values of a fragment as f16 pairs: x = hi + lo to 22 bits.
struct Split {
    u32 hi[4], lo[4];

    SP_DEVICE void set(int i, f32 first, f32 second) {
        hi[i] = pack_f16(first, second);
        lo[i] = pack_f16(first - low_f16(hi[i]), second - high_f16(hi[i]));
    }
};

// The transpose of a block as left factor.
SP_DEVICE Split left_of(const f32* block, i32 g, i32 c) {
    Split a;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const f32* const at = block + (2 * c + i / 2 * 8) * A_PITCH + g + i % 2 * 8;
        a.set(i, at[0], at[A_PITCH]);
    }
    return a;
}

// The transpose of a block as right factor: registers 2 n, 2 n + 1 for rows 8 n ...
SP_DEVICE Split right_of(const f32* block, i32 g, i32 c) {
    Split b;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = *reinterpret_cast<const float2*>(block + (i / 2 * 8 + g) * A_PITCH + 2 * c + i % 2 * 8);
        b.set(i, pair.x, pair.y);
    }
    return b;
}

SP_DEVICE Split left_of(const f32 (&d)[2][4]) {
    Split a;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.set(i, d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
    return a;
}

SP_DEVICE void add_product(f32 (&d)[2][4], const Split& a, const Split& b) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        mma_f16(d[n], a.lo, b.hi[2 * n], b.hi[2 * n + 1]);
        mma_f16(d[n], a.hi, b.lo[2 * n], b.lo[2 * n + 1]);
        mma_f16(d[n], a.hi, b.hi[2 * n], b.hi[2 * n + 1]);
    }
}

// block = minus the transpose of d.
SP_DEVICE void put_negative(f32* block, const f32 (&d)[2][4], i32 g, i32 c) {
#pragma unroll
    for (int i = 0; i < 8; ++i) block[(i / 4 * 8 + 2 * c + i % 2) * A_PITCH + g + i / 2 % 2 * 8] = -d[i / 4][i % 4];
}

// Blocks (row, column) of 16 x 16 that a warp computes.
SP_DEVICE i32 block_of(i32 warp, i32 turn) {
    const u32 rows = turn == 0 ? 0x12223333u : 0x10000000u, columns = turn == 0 ? 0x02103210u : 0x10000000u;
    return i32((rows >> 4 * warp & 15u) << 4 | (columns >> 4 * warp & 15u));
}

extern "C" __global__ void __launch_bounds__(256, 3)
    delta_chunk(const u16* __restrict__ q, const u16* __restrict__ k, const f32* __restrict__ alpha,
                const f32* __restrict__ beta, const f32* __restrict__ a, const f32* __restrict__ dt_bias,
                u16* __restrict__ T, u16* __restrict__ P, f32* __restrict__ decay, const u16* __restrict__ x,
                f32* __restrict__ history, i32 tokens, i32 key_heads) {
    u16* const tile_q = reinterpret_cast<u16*>(shared);
    u16* const tile_k = tile_q + CHUNK * PITCH;
    f32* const A = reinterpret_cast<f32*>(shared);  // (REPEAT, CHUNK, A_PITCH), after the tiles
    f32* const G = reinterpret_cast<f32*>(shared + LARGER);  // (REPEAT, CHUNK)
    f32* const b = G + REPEAT * CHUNK;                       // (REPEAT, CHUNK)
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const i32 chunk = blockIdx.x, chunks = gridDim.x, head = blockIdx.y;
    const i32 value_heads = REPEAT * key_heads, start = chunk * CHUNK;
    const i64 stride = i64(key_heads) * HEAD_DIM;

    const i32 own = head + min(warp, REPEAT - 1) * key_heads;
    f32 raw[2], strength[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const i64 at = i64(min(start + 2 * lane + i, tokens - 1)) * value_heads + own;
        raw[i] = alpha[at], strength[i] = beta[at];
    }
    const f32 rate = a[own], bias = dt_bias[own];
    for (i32 i = thread; i < CHUNK * HEAD_DIM / 8; i += 256) {
        const i32 row = i / (HEAD_DIM / 8), column = i % (HEAD_DIM / 8) * 8;
        const bool valid = start + row < tokens;
        const i64 source = (valid ? start + row : 0) * stride + head * HEAD_DIM + column;
        cp_async_16(shared_address(tile_q + row * PITCH + column), q + source, valid);
        cp_async_16(shared_address(tile_k + row * PITCH + column), k + source, valid);
    }
    cp_async_commit();
    if (warp < REPEAT) {  // gates of one value head: two tokens a lane, running sum over the warp
        f32 g[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const bool valid = start + 2 * lane + i < tokens;
            g[i] = valid ? rate * softplus(raw[i] + bias) : 0.0f;
            b[warp * CHUNK + 2 * lane + i] = valid ? sigmoid(strength[i]) : 0.0f;
        }
        f32 total = g[0] + g[1];
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
            const f32 before = __shfl_up_sync(~0u, total, offset);
            if (lane >= offset) total += before;
        }
        const f32 end = __shfl_sync(~0u, total, 31), sums[2] = {total - g[1], total};
        f32* const out = decay + (i64(own) * chunks + chunk) * 2 * CHUNK + 2 * lane;
        *reinterpret_cast<float2*>(G + warp * CHUNK + 2 * lane) = make_float2(sums[0], sums[1]);
        *reinterpret_cast<float2*>(out) = make_float2(__expf(sums[0]), __expf(sums[1]));
        *reinterpret_cast<float2*>(out + CHUNK) = make_float2(__expf(end - sums[0]), __expf(end - sums[1]));
    } else {  // P is zero in the blocks above the diagonal: 6, 4, 2 steps of 8 columns for rows below 16, 32, 48
        for (i32 i = thread - 32 * REPEAT; i < REPEAT * 48 * 6; i += 256 - 32 * REPEAT) {
            const i32 r = i / (48 * 6), row = i / 6 % 48, step = i % 6;
            if (step < row / 16 * 2) continue;
            u16* const out = P + (i64(head + r * key_heads) * chunks + chunk) * CHUNK * CHUNK;
            *reinterpret_cast<uint4*>(out + row * CHUNK + 16 + 8 * step) = make_uint4(0, 0, 0, 0);
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

    const i32 g = lane / 4, c = lane % 4;
    f32 kk[2][2][4] = {}, qk[2][2][4] = {};  // of up to two blocks
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
        if (turn == 1 && warp < 6) break;
        const i32 row = block_of(warp, turn) / 16 * 16, column = block_of(warp, turn) % 16 * 16;
        const u32 left = (row + lane % 16) * PITCH * 2 + 16 * (lane / 16);
        const u32 right = (column + 8 * (lane / 16) + lane % 8) * PITCH * 2 + 16 * (lane / 8 % 2);
#pragma unroll
        for (int k16 = 0; k16 < HEAD_DIM / 16; ++k16) {
            u32 ka[4], qa[4], kb[4];
            ldmatrix_x4(kb, shared_address(tile_k) + right + 32 * k16);
            ldmatrix_x4(ka, shared_address(tile_k) + left + 32 * k16);
            ldmatrix_x4(qa, shared_address(tile_q) + left + 32 * k16);
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                mma_f16(kk[turn][tile], ka, kb[2 * tile], kb[2 * tile + 1]);
                mma_f16(qk[turn][tile], qa, kb[2 * tile], kb[2 * tile + 1]);
            }
        }
    }
    __syncthreads();  // A takes the place of the tiles
    const f32 root = rsqrtf(f32(HEAD_DIM));
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
        if (turn == 1 && warp < 6) break;
        const i32 row = block_of(warp, turn) / 16 * 16, column = block_of(warp, turn) % 16 * 16;
        for (i32 r = 0; r < REPEAT; ++r) {
            const f32* const sum = G + r * CHUNK;
            u16* const out = P + (i64(head + r * key_heads) * chunks + chunk) * CHUNK * CHUNK;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const i32 i = row + g + 8 * half;
                const f32 here = sum[i], scale = b[r * CHUNK + i];
#pragma unroll
                for (int tile = 0; tile < 2; ++tile) {
                    const i32 j = column + 8 * tile + 2 * c;
                    const float2 there = *reinterpret_cast<const float2*>(sum + j);
                    const f32 m0 = j <= i ? __expf(here - there.x) : 0.0f;
                    const f32 m1 = j + 1 <= i ? __expf(here - there.y) : 0.0f;
                    const f32 *const own = kk[turn][tile] + 2 * half, *const cross = qk[turn][tile] + 2 * half;
                    *reinterpret_cast<float2*>(A + (r * CHUNK + i) * A_PITCH + j) =
                        make_float2(own[0] * m0 * scale, own[1] * m1 * scale);
                    *reinterpret_cast<u32*>(out + i * CHUNK + j) = pack_f16(cross[0] * m0 * root, cross[1] * m1 * root);
                }
            }
        }
    }
    __syncthreads();
    if (thread < 64 * REPEAT) invert_diagonal(A + thread / 64 * CHUNK * A_PITCH, thread % 64);
    __syncthreads();

    // [[X, 0], [A, Y]] inverts to [[X', 0], [-Y' A X', Y']]: blocks of 16 to 32, then of 32 to 64. Computed transposed,
    // X'^T A^T first, so that an accumulator is the next left factor; float32 values as sums of two f16.
    const auto block = [&](i32 r, i32 i, i32 j) { return A + (r * CHUNK + 16 * i) * A_PITCH + 16 * j; };
    const i32 r = warp / 2, part = warp % 2;
    if (r < REPEAT) {
        const i32 i = 2 * part;
        f32 inner[2][4] = {}, outer[2][4] = {};
        add_product(inner, left_of(block(r, i, i), g, c), right_of(block(r, i + 1, i), g, c));
        add_product(outer, left_of(inner), right_of(block(r, i + 1, i + 1), g, c));
        __syncwarp();
        put_negative(block(r, i + 1, i), outer, g, c);
    }
    __syncthreads();
    f32 outer[2][2][4] = {};  // blocks (2, part) and (3, part) of the inverse
    if (r < REPEAT) {
        f32 inner[2][2][4] = {};
        for (i32 k16 = part; k16 < 2; ++k16) {
            const Split a = left_of(block(r, k16, part), g, c);
            add_product(inner[0], a, right_of(block(r, 2, k16), g, c));
            add_product(inner[1], a, right_of(block(r, 3, k16), g, c));
        }
        const Split top = left_of(inner[0]);
        add_product(outer[0], top, right_of(block(r, 2, 2), g, c));
        add_product(outer[1], top, right_of(block(r, 3, 2), g, c));
        add_product(outer[1], left_of(inner[1]), right_of(block(r, 3, 3), g, c));
    }
    __syncthreads();
    if (r < REPEAT) {
        put_negative(block(r, 2, part), outer[0], g, c);
        put_negative(block(r, 3, part), outer[1], g, c);
    }
    __syncthreads();
    for (i32 i = thread; i < REPEAT * CHUNK * 8; i += 256) {
        const i32 r = i / (CHUNK * 8), line = i / 8 % CHUNK, step = i % 8 * 8;
        const f32* const from = A + (r * CHUNK + line) * A_PITCH + step;
        const f32* const strength = b + r * CHUNK + step;
        uint4 out = make_uint4(0, 0, 0, 0);
        if (step / 16 <= line / 16)
            out = make_uint4(pack_f16(from[0] * strength[0], from[1] * strength[1]),
                             pack_f16(from[2] * strength[2], from[3] * strength[3]),
                             pack_f16(from[4] * strength[4], from[5] * strength[5]),
                             pack_f16(from[6] * strength[6], from[7] * strength[7]));
        u16* const to = T + (i64(head + r * key_heads) * chunks + chunk) * CHUNK * CHUNK;
        *reinterpret_cast<uint4*>(to + line * CHUNK + step) = out;
    }
}
