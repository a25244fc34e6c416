// Products of delta_tree.cu on the tensor cores, every number as a sum of two f16, and the solution of its equations.
//
// Two f16 hold 22 bits of numbers that a power of two brings to the top of f16's range: unit vectors times UNIT, a share
// of S so that its largest entry lies in 2^14 .. 2^15. What is 2^18 times smaller than the largest keeps all of them.
// Defines: HEAD_DIM, NODES, PARTS, and E, the numbers of a row that a lane holds. `parts` in shared memory is f16 (2, ROWS,
// PART): row t is k of node t, row NODES + t its q. Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores
// while surpassing the FP32 theoretical peak performance", 2022.
#pragma once
#include "mma.cuh"

#define STEPS (HEAD_DIM / 16)
#define ROWS (2 * NODES)
#define PART (HEAD_DIM + 8)  // no two rows of eight begin in the same banks
#define GRAM (ROWS + 4)      // row of the products between nodes
#define COLUMNS (HEAD_DIM / PARTS)   // of S that a block has
#define TILES (2 / PARTS)            // of 8 columns that a warp has of them
#define LINE (COLUMNS + 8 * TILES)   // two rows next to each other begin in other banks
#define PANEL (NODES % 16 ? 24 : 16)  // nodes whose equations a thread solves in registers

constexpr f32 UNIT = 16384.0f;

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

SP_DEVICE void take_parts(u32& high, u32& low, f32 x, f32 y) {
    high = pack_f16(x, y);
    low = pack_f16(x - low_f16(high), y - high_f16(high));
}

SP_DEVICE void store_parts(u16* target, const f32 (&values)[E]) {
    u32 high[E / 2], low[E / 2];
#pragma unroll
    for (int i = 0; i < E; i += 2) take_parts(high[i / 2], low[i / 2], values[i], values[i + 1]);
    store_words<E / 2>(target, high);
    store_words<E / 2>(target + ROWS * PART, low);
}

// A warp's share of S, keys 16 step + 2 pair + {0, 1, 8, 9} and TILES columns a lane, as the B operand of as many tiles.
// Returns what brings its products with unit vectors back.
SP_DEVICE f32 take_state(u32 (&B)[STEPS][TILES][2][2], const f32 (&S)[STEPS][4][TILES]) {
    f32 most = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) most = fmaxf(most, fabsf(S[step][i][tile]));
    const u32 exponent = max(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23, 64);
    const f32 scale = __uint_as_float((127 + 127 + 14 - exponent) << 23);
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                take_parts(B[step][tile][0][i], B[step][tile][1][i], scale * S[step][2 * i][tile],
                           scale * S[step][2 * i + 1][tile]);
    return __uint_as_float((exponent - 14) << 23) / UNIT;
}

// acc += a tile of 16 rows (at `rows`, ldmatrix addresses) times TILES 16 x 8 tiles of B: the products of parts i and j with
// i + j < LIMIT, in CHAINS sums of each: the tensor cores work on four at a time.
#define CHAINS (4 / TILES)
template <int LIMIT>
SP_DEVICE void multiply(f32 (&acc)[CHAINS][TILES][4], u32 rows, const u32 (&B)[STEPS][TILES][2][2]) {
    int turn = 0;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < LIMIT; ++i) {
            u32 A[4];
            ldmatrix_x4(A, rows + 2 * (i * ROWS * PART + step * 16));
#pragma unroll
            for (int j = 0; i + j < LIMIT; ++j, ++turn)
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
                    mma_f16(acc[turn % CHAINS][tile], A, B[step][tile][j][0], B[step][tile][j][1]);
        }
}

// The same with the keys of eight nodes (at `keys`) in place of B; in four sums.
SP_DEVICE void multiply_keys(f32 (&acc)[4][4], u32 rows, u32 keys) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        u32 A[2][4], K[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            ldmatrix_x4(A[i], rows + 2 * (i * ROWS * PART + step * 16));
            ldmatrix_x2(K[i], keys + 2 * (i * ROWS * PART + step * 16));
        }
        mma_f16(acc[step % 2], A[0], K[0][0], K[0][1]);
        mma_f16(acc[2 + step % 2], A[0], K[1][0], K[1][1]);
        mma_f16(acc[2 + step % 2], A[1], K[0][0], K[0][1]);
    }
}

// One column of u = R - A u, by one thread: `own` has R of a node every LINE numbers and becomes u. `gram` is (NODES, GRAM):
// row j begins with A[i][j] of all nodes i > j.
SP_DEVICE void solve(f32* own, const f32* gram, i32 nodes) {
#pragma unroll 1
    for (i32 first = 0; first < nodes; first += PANEL) {
        f32 u[PANEL], A[4];
#pragma unroll
        for (int i = 0; i < PANEL; ++i) u[i] = own[(first + i) * LINE];
#pragma unroll 2
        for (i32 j = 0; j < first; ++j) {
            const f32 above = own[j * LINE];
#pragma unroll
            for (int i = 0; i < PANEL; i += 4) {
                load_words<4>(reinterpret_cast<u32*>(A), gram + j * GRAM + first + i);
#pragma unroll
                for (int c = 0; c < 4; ++c) u[i + c] -= A[c] * above;
            }
        }
#pragma unroll
        for (int j = 0; j < PANEL - 1; ++j)
#pragma unroll
            for (int i = (j + 1) / 4 * 4; i < PANEL; i += 4) {
                load_words<4>(reinterpret_cast<u32*>(A), gram + (first + j) * GRAM + first + i);
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    if (i + c > j) u[i + c] -= A[c] * u[j];
            }
#pragma unroll
        for (int i = 0; i < PANEL; ++i) own[(first + i) * LINE] = u[i];
    }
}
