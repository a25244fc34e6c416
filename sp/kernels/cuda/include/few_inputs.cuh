// The inputs of gemm_few.cu on their way to shared memory: as bf16, as they come, or for K-quants as f16, 256 of a
// token under one power of two that makes the largest of them 2^14 to 2^15. That loses nothing but what is below 2^-29
// of the largest.
#pragma once
#include "few_products.cuh"
#include "strip_input.cuh"

// 8 inputs of a lane, 256 of a warp, under one factor.
SP_DEVICE uint4 halves(const uint4& v, f32& factor) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    f32 x[8], largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[2 * i] = low_bf16(words[i]), x[2 * i + 1] = high_bf16(words[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[i]));
    const u32 exponent = max(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)) >> 23, 15u);
    const f32 scale = __uint_as_float((268 - exponent) << 23);
    factor = __uint_as_float((exponent - 14) << 23);
    u32 h[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) h[i] = pack_f16(x[2 * i] * scale, x[2 * i + 1] * scale);
    return make_uint4(h[0], h[1], h[2], h[3]);
}

// The slice of x that begins at `x` to shared memory, rows of zeros behind the last token.
SP_DEVICE void load_slice(const u16* x, i64 k, int width, int tokens, int warp, int lane) {
    constexpr int COLUMNS = (WIDTH + 255) / 256, PIECES = TOKENS * COLUMNS, ROUNDS = (PIECES + WARPS - 1) / WARPS;
    constexpr int BATCH = ROUNDS < 10 ? ROUNDS : 10;
    f32* factors = reinterpret_cast<f32*>(shared + FACTORS_AT);
#pragma unroll 1
    for (int first = warp; first < PIECES; first += BATCH * WARPS) {
        uint4 v[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = first + b * WARPS, token = piece / COLUMNS, at = piece % COLUMNS * 256 + lane * 8;
            v[b] = make_uint4(0, 0, 0, 0);
            if (token < tokens && at < width) v[b] = *reinterpret_cast<const uint4*>(x + token * k + at);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = first + b * WARPS, token = piece / COLUMNS, at = piece % COLUMNS * 256 + lane * 8;
            f32 factor;
            if constexpr (SUPER) v[b] = halves(v[b], factor);
            if (piece >= PIECES) continue;
            if constexpr (SUPER)
                if (lane == 0) factors[at / 256 * TOKENS + token] = factor;
            if (at < width) *reinterpret_cast<uint4*>(shared + X_AT + token * PITCH + at * 2) = v[b];
        }
    }
}

// Sums of 32 inputs of every token, on the tensor cores: row i of A is ones for group i of a super-block and zeros else,
// so that row i of D holds the sums of group i. `x` as in multiply_pair.
SP_DEVICE void sum_groups(u32 x, int supers, int warp, int lane) {
    const int g = lane / 4, c = lane % 4;
    for (int task = warp; task < supers * NT; task += WARPS) {
        const int super = task / NT, nt = task % NT;
        f32 d[4] = {};
#pragma unroll
        for (int p = 0; p < 8; ++p) {
            u32 b[4];
            input_fragments(b, x + super * 512 + p * 64 + nt * 8 * PITCH);
            const u32 ones = g == p ? 0x3C003C00u : 0, a[4] = {ones, 0, ones, 0};
            mma_f16(d, a, b[0], b[1]);
            mma_f16(d, a, b[2], b[3]);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
            store_sum<8>(shared + SUMS_AT + (super * TOKENS + nt * 8 + 2 * c + i) * 32, g, d[i]);
    }
}
