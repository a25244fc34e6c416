// The scan of the chunked delta rule: one pass over the chunks of a sequence, state in registers.
//
// Per chunk of 64 tokens, with e_i = exp(G_i), t_i = exp(G_end - G_i) from delta_chunk.cu:
//   D = T (V - e K S);   O = e Q S / sqrt(HEAD_DIM) + P D;   S <- e_end S + K^T (t D)
//
// q, k    f16 (tokens, key_heads * HEAD_DIM)
// values  f16 (tokens, value_heads * HEAD_DIM): V before, O after
// T, P    f16 (value_heads, chunks, 64, 64);  decay f32 (value_heads, chunks, 2, 64)
// state   f32 (value_heads, HEAD_DIM keys, HEAD_DIM values), moved on in place
//
// Grid (HEAD_DIM / (16 * WARPS), value_heads), 32 * WARPS threads. All products are transposed, so that a warp owns 16
// value columns of S^T in the accumulators of mma.m16n8k16 and an accumulator, rounded to f16, is the A operand of the
// next product: S^T K^T, then D^T = R^T T^T, then S^T += D^T K. No value crosses warps; shared memory holds only what
// all warps read (K, Q, T, P, V, decay), one chunk ahead by cp.async; rows are swizzled in 16-byte steps. The state is
// float32 throughout; only its copies inside products are f16. WIDE 1 double-buffers Q and P as well, WIDE 0 loads
// them inside the chunk, for GPUs with 99 KiB. 16-byte aligned rows. sm_80+. Yang et al. 2024; keeping a state column
// in a warp's registers follows the recurrent kernels of llama.cpp.
#include "activations.cuh"
#include "mma.cuh"

#define CHUNK 64
#define COLUMNS (16 * WARPS)
#define TILE (CHUNK * HEAD_DIM * 2)       // bytes of K or Q
#define SQUARE (CHUNK * CHUNK * 2)        // bytes of T or P
#define VALUES (CHUNK * COLUMNS * 2)      // bytes of V
#define FIRST (TILE + SQUARE + VALUES + 512)  // K, T, V, decay
#define SECOND (TILE + SQUARE)                // Q, P

extern __shared__ __align__(128) u8 shared[];

// Byte offset of 16-byte step `step` in row `row` of a tile with `Steps` steps a row.
template <int Steps>
SP_DEVICE u32 place(i32 row, i32 step) {
    return u32(row * Steps + (Steps >= 8 ? step ^ (row & 7) : step ^ (row / (8 / Steps) & (Steps - 1)))) * 16;
}

// `Steps` 16-byte steps of 64 rows, `stride` elements apart; rows from `valid` on become zeros.
template <int Steps>
SP_DEVICE void load_tile(u32 target, const u16* source, i64 stride, i32 valid) {
#pragma unroll 3  // whole, its addresses would spill
    for (i32 i = threadIdx.x; i < CHUNK * Steps; i += 32 * WARPS) {
        const i32 row = i / Steps, step = i % Steps;
        const bool live = row < valid;
        cp_async_16(target + place<Steps>(row, step), source + (live ? row : 0) * stride + 8 * step, live);
    }
}

SP_DEVICE u32 transpose_8x8(u32 pair) {
    u32 out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
    return out;
}

// Accumulators of 16 columns of the product, as the A operand of the next one.
SP_DEVICE void operand(u32 (&a)[4], const f32 (&low)[4], const f32 (&high)[4]) {
    a[0] = pack_f16_finite(low[0], low[1]);
    a[1] = pack_f16_finite(low[2], low[3]);
    a[2] = pack_f16_finite(high[0], high[1]);
    a[3] = pack_f16_finite(high[2], high[3]);
}

// sums (16, 16 * Pairs) += a (16, 16 * Steps) times what fetch(b, step, pair) loads, 16 x 16 at a time. The next step's
// fragments are on their way while this one's are multiplied; Lower skips blocks above the diagonal.
template <int Steps, int Pairs, bool Lower, typename Fetch>
SP_DEVICE void products(f32 (&sums)[2 * Pairs][4], const u32 (&a)[Steps][4], Fetch fetch) {
    u32 b[2][Pairs][4];
#pragma unroll
    for (int pair = 0; pair < Pairs; ++pair) fetch(b[0][pair], 0, pair);
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
#pragma unroll
        for (int pair = 0; pair < Pairs; ++pair)
            if (step + 1 < Steps && !(Lower && step + 1 > pair)) fetch(b[(step + 1) % 2][pair], step + 1, pair);
#pragma unroll
        for (int pair = 0; pair < Pairs; ++pair) {
            if (Lower && step > pair) continue;
            mma_f16(sums[2 * pair], a[step], b[step % 2][pair][0], b[step % 2][pair][1]);
            mma_f16(sums[2 * pair + 1], a[step], b[step % 2][pair][2], b[step % 2][pair][3]);
        }
    }
}

// The transpose of a tile of 64 rows of 16 * K16 values as right factor.
template <int K16, bool Lower>
SP_DEVICE void times_rows(f32 (&sums)[8][4], const u32 (&a)[K16][4], u32 tile, i32 lane) {
    products<K16, 4, Lower>(sums, a, [&](u32(&b)[4], i32 step, i32 pair) {
        ldmatrix_x4(b, tile + place<2 * K16>(16 * pair + 8 * (lane / 16) + lane % 8, 2 * step + lane / 8 % 2));
    });
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    delta_scan(const u16* __restrict__ q, const u16* __restrict__ k, u16* values, const u16* __restrict__ T,
               const u16* __restrict__ P, const f32* __restrict__ decay, f32* state, i32 tokens, i32 key_heads,
               i32 value_heads) {
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const i32 p = blockIdx.y, head = p % key_heads, column = blockIdx.x * COLUMNS;
    const i32 chunks = (tokens + CHUNK - 1) / CHUNK;
    const i64 key_stride = i64(key_heads) * HEAD_DIM, value_stride = i64(value_heads) * HEAD_DIM;
    const u32 base = shared_address(shared);
    q += head * HEAD_DIM, k += head * HEAD_DIM, values += p * HEAD_DIM + column;
    T += i64(p) * chunks * CHUNK * CHUNK, P += i64(p) * chunks * CHUNK * CHUNK, decay += i64(p) * chunks * 2 * CHUNK;

    auto load_first = [&](i32 chunk) {
        if (chunk < chunks) {
            const u32 at = base + chunk % 2 * FIRST;
            const i32 start = chunk * CHUNK, valid = tokens - start;
            load_tile<HEAD_DIM / 8>(at, k + start * key_stride, key_stride, valid);
            load_tile<8>(at + TILE, T + i64(chunk) * CHUNK * CHUNK, CHUNK, CHUNK);
            load_tile<COLUMNS / 8>(at + TILE + SQUARE, values + start * value_stride, value_stride, valid);
            if (threadIdx.x < 32)
                cp_async_16(at + TILE + SQUARE + VALUES + threadIdx.x * 16,
                            decay + i64(chunk) * 2 * CHUNK + threadIdx.x * 4);
        }
        cp_async_commit();
    };
    auto load_second = [&](i32 chunk) {
        if (chunk < chunks) {
            const u32 at = base + 2 * FIRST + (WIDE ? chunk % 2 * SECOND : 0);
            const i32 start = chunk * CHUNK;
            load_tile<HEAD_DIM / 8>(at, q + start * key_stride, key_stride, tokens - start);
            load_tile<8>(at + TILE, P + i64(chunk) * CHUNK * CHUNK, CHUNK, CHUNK);
        }
        cp_async_commit();
    };

    load_first(0);
    if (WIDE) load_second(0);
    f32 S[HEAD_DIM / 8][4];  // S^T: value columns g, g + 8; keys 8 tile + 2c, + 1
    f32* const own = state + (i64(p) * HEAD_DIM + 2 * c) * HEAD_DIM + column + 16 * warp + g;
#pragma unroll
    for (int tile = 0; tile < HEAD_DIM / 8; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) S[tile][i] = own[(8 * tile + i % 2) * HEAD_DIM + i / 2 * 8];

    for (i32 chunk = 0; chunk < chunks; ++chunk) {
        const u32 first = base + chunk % 2 * FIRST;
        const u32 second = base + 2 * FIRST + (WIDE ? chunk % 2 * SECOND : 0);
        const f32* const e = reinterpret_cast<const f32*>(shared + chunk % 2 * FIRST + TILE + SQUARE + VALUES);
        cp_async_wait<0>();
        __syncthreads();  // this chunk has arrived, and every warp has left the buffers of the one before
        if (!WIDE) load_second(chunk);
        load_first(chunk + 1);
        if (WIDE) load_second(chunk + 1);

        u32 a[HEAD_DIM / 16][4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; ++i) operand(a[i], S[2 * i], S[2 * i + 1]);

        f32 D[8][4] = {};
        times_rows<HEAD_DIM / 16, false>(D, a, first, lane);
        u32 r[4][4];
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            u32 old[4];
            ldmatrix_x4_trans(old, first + TILE + SQUARE +
                                       place<COLUMNS / 8>(16 * pair + 8 * (lane / 16) + lane % 8,
                                                          2 * warp + lane / 8 % 2));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 grown = *reinterpret_cast<const float2*>(e + 16 * pair + 8 * half + 2 * c);
                f32(&d)[4] = D[2 * pair + half];
                d[0] = low_f16(old[2 * half]) - grown.x * d[0];
                d[1] = high_f16(old[2 * half]) - grown.y * d[1];
                d[2] = low_f16(old[2 * half + 1]) - grown.x * d[2];
                d[3] = high_f16(old[2 * half + 1]) - grown.y * d[3];
            }
            operand(r[pair], D[2 * pair], D[2 * pair + 1]);
        }
#pragma unroll
        for (int tile = 0; tile < 8; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) D[tile][i] = 0.0f;
        times_rows<4, true>(D, r, first + TILE, lane);

        if (!WIDE) {
            cp_async_wait<1>();
            __syncthreads();
        }
        f32 O[8][4] = {};
        times_rows<HEAD_DIM / 16, false>(O, a, second, lane);
        const f32 root = rsqrtf(f32(HEAD_DIM));
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) operand(r[pair], D[2 * pair], D[2 * pair + 1]);
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
            const float2 grown = *reinterpret_cast<const float2*>(e + 8 * tile + 2 * c);
            O[tile][0] *= grown.x * root, O[tile][1] *= grown.y * root;
            O[tile][2] *= grown.x * root, O[tile][3] *= grown.y * root;
        }
        times_rows<4, true>(O, r, second + TILE, lane);

        const f32 end = e[CHUNK - 1];
#pragma unroll
        for (int tile = 0; tile < HEAD_DIM / 8; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) S[tile][i] *= end;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 left = *reinterpret_cast<const float2*>(e + CHUNK + 16 * step + 8 * half + 2 * c);
                f32(&d)[4] = D[2 * step + half];
                d[0] *= left.x, d[1] *= left.y, d[2] *= left.x, d[3] *= left.y;
            }
            operand(r[step], D[2 * step], D[2 * step + 1]);
        }
        products<4, HEAD_DIM / 16, false>(S, r, [&](u32(&b)[4], i32 step, i32 pair) {
            ldmatrix_x4_trans(b, first + place<HEAD_DIM / 8>(16 * step + lane % 16, 2 * pair + lane / 16));
        });

        // O goes through the place of this warp's columns of V, which all its lanes have read, for stores of 16 bytes.
        __syncwarp();
        u8* const tile_v = shared + chunk % 2 * FIRST + TILE + SQUARE;
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
            const i32 row = 8 * tile + g;
            *reinterpret_cast<u32*>(tile_v + place<COLUMNS / 8>(row, 2 * warp) + 4 * c) =
                transpose_8x8(pack_f16_finite(O[tile][0], O[tile][1]));
            *reinterpret_cast<u32*>(tile_v + place<COLUMNS / 8>(row, 2 * warp + 1) + 4 * c) =
                transpose_8x8(pack_f16_finite(O[tile][2], O[tile][3]));
        }
        __syncwarp();
        u16* const out = values + i64(chunk) * CHUNK * value_stride + 16 * warp + lane % 2 * 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i32 row = 16 * i + lane / 2;
            if (chunk * CHUNK + row < tokens)
                *reinterpret_cast<uint4*>(out + row * value_stride) =
                    *reinterpret_cast<const uint4*>(tile_v + place<COLUMNS / 8>(row, 2 * warp + lane % 2));
        }
    }
#pragma unroll
    for (int tile = 0; tile < HEAD_DIM / 8; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) own[(8 * tile + i % 2) * HEAD_DIM + i / 2 * 8] = S[tile][i];
}
