// Products of delta_tree.cu in float32's precision on the tensor cores: every number as a sum of three bf16.
//
// Defines: HEAD_DIM, NODES, WARPS, and E, the numbers of a row that a lane holds. `parts` in shared memory is bf16
// (3, ROWS, PART): row t is k of node t, row NODES + t its q. Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial
// Intelligence Datatype For Higher-Precision Computations", 2019.
#pragma once
#include "mma.cuh"

#define STEPS (HEAD_DIM / 16)
#define HALF (STEPS / 2)
#define ROWS (2 * NODES)
#define PART (HEAD_DIM + 8)  // no two rows of eight begin in the same banks
#define GRAM (ROWS + 4)      // row of the products between nodes
#define SETS ((NODES + 31) / 32)  // nodes of a lane, where a warp takes them all

template <int COUNT>
SP_DEVICE void load_words(u32* words, const void* source) {
    if (COUNT == 4) *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(source);
    if (COUNT == 2) *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(source);
    if (COUNT == 1) *words = *reinterpret_cast<const u32*>(source);
}

template <int COUNT>
SP_DEVICE void store_words(void* target, const u32* words) {
    if (COUNT == 4) *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(words);
    if (COUNT == 2) *reinterpret_cast<uint2*>(target) = *reinterpret_cast<const uint2*>(words);
    if (COUNT == 1) *reinterpret_cast<u32*>(target) = *words;
}

SP_DEVICE void take_part(u32& part, f32& low, f32& high) {  // the rounded pair, and what is left of it
    part = pack_bf16(low, high);
    low -= low_bf16(part), high -= high_bf16(part);
}

// E numbers of a row as three bf16 each.
SP_DEVICE void store_parts(u16* target, const f32 (&values)[E]) {
    f32 left[E];
#pragma unroll
    for (int i = 0; i < E; ++i) left[i] = values[i];
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        u32 words[E / 2];
#pragma unroll
        for (int i = 0; i < E; i += 2) take_part(words[i / 2], left[i], left[i + 1]);
        store_words<E / 2>(target + part * ROWS * PART, words);
    }
}

// A warp's share of S, keys 16 step + 2 pair + {0, 1, 8, 9} and 2 columns a lane, as the B operand of two tiles.
SP_DEVICE void take_state(u32 (&B)[HALF][2][3][2], const float2 (&S)[HALF][4]) {
#pragma unroll
    for (int step = 0; step < HALF; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float2 low = S[step][2 * i], high = S[step][2 * i + 1];
#pragma unroll
            for (int part = 0; part < 3; ++part) {
                take_part(B[step][0][part][i], low.x, high.x);
                take_part(B[step][1][part][i], low.y, high.y);
            }
        }
}

// acc += rows of a tile (16, half of their keys; at `rows`, ldmatrix addresses) times two 16 x 8 tiles of B: the products of
// parts i and j with i + j < LIMIT. Sums of even and odd steps are kept apart: the tensor cores work on four at a time.
template <int LIMIT>
SP_DEVICE void multiply(f32 (&acc)[2][2][4], u32 rows, const u32 (&B)[HALF][2][3][2]) {
#pragma unroll
    for (int step = 0; step < HALF; step += 2) {
        u32 A[2][LIMIT][4];
#pragma unroll
        for (int i = 0; i < LIMIT; ++i)
#pragma unroll
            for (int s = 0; s < 2; ++s) ldmatrix_x4(A[s][i], rows + 2 * (i * ROWS * PART + (step + s) * 16));
#pragma unroll
        for (int i = 0; i < LIMIT; ++i)
#pragma unroll
            for (int j = 0; i + j < LIMIT; ++j)
#pragma unroll
                for (int s = 0; s < 2; ++s)
#pragma unroll
                    for (int tile = 0; tile < 2; ++tile)
                        mma_bf16(acc[s][tile], A[s][i], B[step + s][tile][j][0], B[step + s][tile][j][1]);
    }
}

// The same with the keys of eight nodes (at `keys`) in place of B, over all steps; in four sums.
template <int LIMIT>
SP_DEVICE void multiply_keys(f32 (&acc)[4][4], u32 rows, u32 keys) {
#pragma unroll 1
    for (int step = 0; step < STEPS; step += 4) {
        int sum = 0;
#pragma unroll
        for (int s = step; s < step + 4; ++s) {
            u32 A[LIMIT][4], K[LIMIT][2];
#pragma unroll
            for (int i = 0; i < LIMIT; ++i) {
                ldmatrix_x4(A[i], rows + 2 * (i * ROWS * PART + s * 16));
                ldmatrix_x2(K[i], keys + 2 * (i * ROWS * PART + s * 16));
            }
#pragma unroll
            for (int i = 0; i < LIMIT; ++i)
#pragma unroll
                for (int j = 0; i + j < LIMIT; ++j) mma_bf16(acc[sum++ % 4], A[i], K[j][0], K[j][1]);
        }
    }
}

// (I + A)^-1 in place of A, then P (I + A)^-1 in place of P, 32 columns at a time; by one warp, a lane a column, which needs no
// rows of A and P before its own. `gram` is (NODES, GRAM): row j has A[i][j] of all nodes i > j, then P[i][j]. Entries of both
// stay below 1, since every step of the delta rule contracts.
SP_DEVICE void solve(f32* gram, i32 lane, i32 first) {
    const i32 column = first + lane;
    f32* const own = gram + min(column, NODES - 1) * GRAM;
    auto store = [&](const f32 (&t)[8], i32 at) {
        __syncwarp();
        if (column < NODES) {
            store_words<4>(own + at, reinterpret_cast<const u32*>(t));
            store_words<4>(own + at + 4, reinterpret_cast<const u32*>(t + 4));
        }
        __syncwarp();
    };
    auto load = [&](f32 (&t)[8], const f32* from) {
        load_words<4>(reinterpret_cast<u32*>(t), from);
        load_words<4>(reinterpret_cast<u32*>(t + 4), from + 4);
    };
#pragma unroll 1
    for (i32 start = first; start < NODES; start += 8) {
        f32 t[8], A[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) t[i] = start + i == column ? 1.0f : 0.0f;
#pragma unroll 4
        for (i32 j = first; j < start; ++j) {
            const f32 above = own[j];
            load(A, gram + j * GRAM + start);
#pragma unroll
            for (int i = 0; i < 8; ++i) t[i] -= A[i] * above;
        }
#pragma unroll
        for (int j = 0; j < 7; ++j) {
            load(A, gram + (start + j) * GRAM + start);
#pragma unroll
            for (int i = j + 1; i < 8; ++i) t[i] -= A[i] * t[j];
        }
        store(t, start);
    }
#pragma unroll 1
    for (i32 start = first; start < NODES; start += 8) {
        f32 t[8] = {}, P[8];
#pragma unroll 4
        for (i32 j = first; j < start + 8; ++j) {
            const f32 above = own[j];
            load(P, gram + j * GRAM + NODES + start);
#pragma unroll
            for (int i = 0; i < 8; ++i) t[i] += P[i] * above;
        }
        store(t, NODES + start);
    }
}
