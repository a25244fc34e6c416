// Loads the activations of gemv.cu to shared memory, with an RMS norm where NORM is set.
#pragma once
#include "gemv_layout.cuh"

// The norm's weights of this warp's super-block; no kernel writes them.
SP_DEVICE void load_norm(float4 (&scale)[2], const f32* norm, int super, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
        scale[i] = super < K / 256 ? reinterpret_cast<const float4*>(norm + super * 256 + i * 128)[lane] : float4{};
}

// The only token to shared memory as 16-bit integers, a super-block a warp at a time. `scale` as `load_norm` left it if
// EAGER_NORM.
SP_DEVICE void load_one(const u16* x, const f32* wide, const f32* norm, const float4 (&scale)[2], int warp, int lane) {
    constexpr int SUPERS = K / 256, ROUNDS = (SUPERS + ALL_WARPS - 1) / ALL_WARPS, MOST = NORM ? 2 : 5;
    constexpr int BATCH = ROUNDS < 1 ? 1 : ROUNDS < MOST ? ROUNDS : MOST;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round += BATCH) {
        f32 v[BATCH][2][4];
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int super = (round + b) * ALL_WARPS + warp, k = super * 256 + i * 128 + lane * 4;
                const bool valid = super < SUPERS;
                if constexpr (NORM) {
                    const float4 a = valid ? *reinterpret_cast<const float4*>(wide + k) : float4{};
                    v[b][i][0] = a.x, v[b][i][1] = a.y, v[b][i][2] = a.z, v[b][i][3] = a.w;
                } else {
                    const uint2 a = valid ? *reinterpret_cast<const uint2*>(x + k) : uint2{};
                    v[b][i][0] = low_bf16(a.x), v[b][i][1] = high_bf16(a.x);
                    v[b][i][2] = low_bf16(a.y), v[b][i][3] = high_bf16(a.y);
                }
            }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int super = (round + b) * ALL_WARPS + warp;
            if (super >= SUPERS) break;
            if constexpr (NORM) {
                f32 square[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float4 w =
                        EAGER_NORM ? scale[i] : reinterpret_cast<const float4*>(norm + super * 256 + i * 128)[lane];
                    f32(&u)[4] = v[b][i];
                    square[i] = u[0] * u[0] + u[1] * u[1] + (u[2] * u[2] + u[3] * u[3]);
                    u[0] *= w.x, u[1] *= w.y, u[2] *= w.z, u[3] *= w.w;
                }
                const f32 sum = warp_sum(square[0] + square[1]);
                if (lane < 2) reinterpret_cast<f32*>(shared + SQUARES_AT)[2 * super + lane] = lane == 0 ? sum : 0;
            }
            store_one<ONE32, ONE16>(shared + ONE_AT, reinterpret_cast<f32*>(shared + ONE_SUMS32_AT),
                                    reinterpret_cast<f32*>(shared + ONE_SUMS16_AT),
                                    reinterpret_cast<f32*>(shared + ONE_FACTORS_AT), super, v[b], lane);
        }
    }
}

// x to shared memory as bf16; with NORM the squares of a token's inputs too, summed in an order of their own, unless
// `load_one` does it.
SP_DEVICE void load_inputs(const u16* x, const f32* wide, const f32* norm, int tokens, int warp, int lane) {
    f32* squares = reinterpret_cast<f32*>(shared + SQUARES_AT);
    constexpr int PIECES = TOKENS * CHUNKS, ROUNDS = (PIECES + ALL_WARPS - 1) / ALL_WARPS;
    constexpr int BATCH = ROUNDS < 5 ? ROUNDS : 4;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round += BATCH) {
        float4 v[BATCH] = {}, w[BATCH] = {};
        uint2 packed[BATCH] = {};
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = (round + b) * ALL_WARPS + warp, token = piece / CHUNKS;
            const int k = piece % CHUNKS * 128 + lane * 4;
            if (token < tokens && k < K) {
                if constexpr (NORM) {
                    v[b] = *reinterpret_cast<const float4*>(wide + i64(token) * K + k);
                    w[b] = *reinterpret_cast<const float4*>(norm + k);
                } else {
                    packed[b] = *reinterpret_cast<const uint2*>(x + i64(token) * K + k);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = (round + b) * ALL_WARPS + warp, token = piece / CHUNKS;
            const int k = piece % CHUNKS * 128 + lane * 4;
            if (piece >= PIECES) break;
            if constexpr (NORM) {
                if constexpr (!ONE) {
                    f32 square = warp_sum(v[b].x * v[b].x + v[b].y * v[b].y + (v[b].z * v[b].z + v[b].w * v[b].w));
                    if (lane == 0) squares[piece] = square;
                }
                packed[b].x = pack_bf16(v[b].x * w[b].x, v[b].y * w[b].y);
                packed[b].y = pack_bf16(v[b].z * w[b].z, v[b].w * w[b].w);
            }
            store_inputs<TOKENS, PITCH, WITH32, WITH16>(shared + X_AT, shared + SUMS32_AT, shared + SUMS16_AT, token, k,
                                                        k < K, packed[b].x, packed[b].y);
        }
    }
}
