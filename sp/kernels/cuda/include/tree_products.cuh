// Products of delta_tree.cu on the tensor cores, every number as a sum of two f16, and the solution of its equations.
//
// Two f16 hold 22 bits of numbers that a power of two brings to the top of f16's range: unit vectors times UNIT, a share of
// S so that its largest entry lies in 2^14 .. 2^15. What is 2^18 times smaller than the largest keeps all of them.
// Defines: HEAD_DIM, NODES, THREADS, and E, the numbers of a row that a lane holds. `parts` in shared memory is f16
// (2, ROWS, PART): row t is k of node t, row NODES + t its q. Ootomo, Yokota, "Recovering single precision accuracy from
// Tensor Cores while surpassing the FP32 theoretical peak performance", 2022.
#pragma once
#include "mma.cuh"

#define STEPS (HEAD_DIM / 16)
#define ROWS (2 * NODES)
#define PART (HEAD_DIM + 8)  // no two rows of eight begin in the same banks
#define GRAM (ROWS + 4)      // row of the products between nodes
#define PANEL (NODES % 16 ? 12 : 16)  // nodes whose equations a thread solves in registers

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

// All warps, from different places of the code.
SP_DEVICE void meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

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

// A warp's share of S, keys 16 step + 2 pair + {0, 1, 8, 9} and 2 columns a lane, as the B operand of two tiles. Returns what
// brings its products with unit vectors back.
SP_DEVICE f32 take_state(u32 (&B)[STEPS][2][2][2], const float2 (&S)[STEPS][4]) {
    f32 most = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) most = fmaxf(most, fmaxf(fabsf(S[step][i].x), fabsf(S[step][i].y)));
    const u32 exponent = max(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23, 64);
    const f32 scale = __uint_as_float((127 + 127 + 14 - exponent) << 23);
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float2 even = S[step][2 * i], odd = S[step][2 * i + 1];
            take_parts(B[step][0][0][i], B[step][0][1][i], scale * even.x, scale * odd.x);
            take_parts(B[step][1][0][i], B[step][1][1][i], scale * even.y, scale * odd.y);
        }
    return __uint_as_float((exponent - 14) << 23) / UNIT;
}

// acc += a tile of 16 rows (at `rows`, ldmatrix addresses) times two 16 x 8 tiles of B: the products of parts i and j with
// i + j < LIMIT. Sums of even and odd steps are kept apart: the tensor cores work on four at a time.
template <int LIMIT>
SP_DEVICE void multiply(f32 (&acc)[2][2][4], u32 rows, const u32 (&B)[STEPS][2][2][2]) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < LIMIT; ++i) {
            u32 A[4];
            ldmatrix_x4(A, rows + 2 * (i * ROWS * PART + step * 16));
#pragma unroll
            for (int j = 0; i + j < LIMIT; ++j)
#pragma unroll
                for (int tile = 0; tile < 2; ++tile) mma_f16(acc[step % 2][tile], A, B[step][tile][j][0], B[step][tile][j][1]);
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

// One column of u = R - A u and o += P u, by one thread: `own` has R of a node every HEAD_DIM numbers and becomes u, and o of
// node NODES + i. `gram` is (NODES, GRAM): row j has A[i][j] of all nodes i > j, then P[i][j] of all i >= j.
SP_DEVICE void solve(f32* own, const f32* gram, i32 nodes) {
#pragma unroll 1
    for (i32 first = 0; first < nodes; first += PANEL) {
        f32* const at = own + first * HEAD_DIM;
        f32 u[PANEL], o[PANEL], A[4], P[4];
#pragma unroll
        for (int i = 0; i < PANEL; ++i) u[i] = at[i * HEAD_DIM], o[i] = at[(NODES + i) * HEAD_DIM];
#pragma unroll 2
        for (i32 j = 0; j < first; ++j) {
            const f32 above = own[j * HEAD_DIM];
#pragma unroll
            for (int i = 0; i < PANEL; i += 4) {
                load_words<4>(reinterpret_cast<u32*>(A), gram + j * GRAM + first + i);
                load_words<4>(reinterpret_cast<u32*>(P), gram + j * GRAM + NODES + first + i);
#pragma unroll
                for (int c = 0; c < 4; ++c) u[i + c] -= A[c] * above, o[i + c] += P[c] * above;
            }
        }
#pragma unroll
        for (int j = 0; j < PANEL; ++j)
#pragma unroll
            for (int i = j / 4 * 4; i < PANEL; i += 4) {
                load_words<4>(reinterpret_cast<u32*>(A), gram + (first + j) * GRAM + first + i);
                load_words<4>(reinterpret_cast<u32*>(P), gram + (first + j) * GRAM + NODES + first + i);
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    if (i + c > j) u[i + c] -= A[c] * u[j];
                    if (i + c >= j) o[i + c] += P[c] * u[j];
                }
            }
#pragma unroll
        for (int i = 0; i < PANEL; ++i) at[i * HEAD_DIM] = u[i], at[(NODES + i) * HEAD_DIM] = o[i];
    }
}
