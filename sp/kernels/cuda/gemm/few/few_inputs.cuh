// Loads the inputs of gemm_small_m.cu to shared memory: as bf16, as they come, or for super-blocks as f16, 256 of a
// token under one power of two that makes the largest of them 2^14 to 2^15. That loses nothing but what is below 2^-29
// of the largest.
#pragma once
#include "few_layout.cuh"
#include "strip_input.cuh"

constexpr int COLUMNS = (WIDTH + 255) / 256, PIECES = TOKENS * COLUMNS;  // of 256 inputs of a token, a warp at a time

// Starts the copies of the slice of x that begins at `x`; rows behind the last token become zeros.
SP_DEVICE void fetch_slice(const u16* x, i64 k, int width, int tokens, int warp, int lane) {
    const u32 to = shared_address(shared + X_AT);
#pragma unroll 4
    for (int piece = warp; piece < PIECES; piece += WARPS) {
        const int token = piece / COLUMNS, at = piece % COLUMNS * 256 + lane * 8;
        const bool valid = token < tokens && at < width;
        if (at < WIDTH) cp_async_16(to + token * PITCH + at * 2, x + (valid ? token * k + at : 0), valid);
    }
    cp_async_commit();
}

// What this warp's copies have brought becomes f16, in place, with factors and for Q4_K and Q5_K sums of 32 inputs.
SP_DEVICE void convert_slice(int warp, int lane) {
    constexpr int ROUNDS = (PIECES + WARPS - 1) / WARPS, BATCH = ROUNDS < 5 ? ROUNDS : 5;  // pieces under way at a time
#pragma unroll 1
    for (int first = warp; first < PIECES; first += BATCH * WARPS) {
        uint4 v[BATCH];
        u32 largest[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int next = first + b * WARPS, piece = next < PIECES ? next : first;
            const int token = piece / COLUMNS, super = piece % COLUMNS;
            v[b] = reinterpret_cast<const uint4*>(shared + X_AT + token * PITCH + super * 512)[lane];
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const u32 words[4] = {v[b].x, v[b].y, v[b].z, v[b].w};
            f32 most[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) most[i] = fmaxf(fabsf(low_bf16(words[i])), fabsf(high_bf16(words[i])));
            const f32 all = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
            largest[b] = __reduce_max_sync(0xffffffffu, __float_as_uint(all));
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = first + b * WARPS, token = piece / COLUMNS, super = piece % COLUMNS;
            const u32 words[4] = {v[b].x, v[b].y, v[b].z, v[b].w}, exponent = max(largest[b] >> 23, 15u);
            const f32 scale = __uint_as_float((268 - exponent) << 23);
            f32 x[8], sum = 0;
            u32 h[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[2 * i] = low_bf16(words[i]) * scale, x[2 * i + 1] = high_bf16(words[i]) * scale;
                h[i] = pack_f16(x[2 * i], x[2 * i + 1]);
            }
            if constexpr (MINIMA) {
                sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            }
            if (piece >= PIECES) continue;
            const int row = super * TOKENS + token;
            reinterpret_cast<uint4*>(shared + X_AT + token * PITCH + super * 512)[lane] = make_uint4(h[0], h[1], h[2], h[3]);
            if (lane == 0) reinterpret_cast<f32*>(shared + FACTORS_AT)[row] = __uint_as_float((exponent - 14) << 23);
            if constexpr (MINIMA)
                if (lane % 4 == 0) store_sum<8>(shared + SUMS_AT + row * 32, lane / 4, sum);
        }
    }
}
