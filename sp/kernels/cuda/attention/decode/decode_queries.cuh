// Query rows of a block of attention_decode.cu, and their way into B fragments of mma.m16n8k16.
#pragma once
#include "decode_units.cuh"
#include "head_row.cuh"

constexpr int ROWS = 8 * TILES;

struct Queries {
    int n, group, heads, kv_head, first;  // first row of this block's ROWS among the n * group of the kv head

    SP_DEVICE bool exists(int row) const { return first + row < n * group; }
    SP_DEVICE int token(int row) const { return (first + row) / group; }
    SP_DEVICE i64 head_row(int row) const {
        return i64(token(row)) * heads + kv_head * group + (first + row) % group;
    }
};

constexpr int STAGE_STEP = 8 * 32 + 8;  // bytes of a k16-step of 8 queries; eight more keep the writers' banks apart

// Where dim `dim` of query row g stands among the staged B fragments: [step][row g][word c][register][half]; what a lane's words
// of packed keys hold in a step, see scores() in decode_products.cuh.
SP_DEVICE u32 staged(int dim, int g) {
    if (K_FORMAT == Q4_ROWS) {
        const int at = (dim % 16 + (dim / 32 % 2 ? 0 : 2)) % 16;
        return dim / 16 * STAGE_STEP + (g * 4 + at / 4) * 8 + at % 2 * 4 + at / 2 % 2 * 2;
    }
    const int half = dim / 32 % 2, c = dim / 8 % 4, j = dim % 8;
    return (dim / 64 * 4 + 2 * half + j / 4) * STAGE_STEP + (g * 4 + c) * 8 + j % 2 * 4 + j / 2 % 2 * 2;
}

SP_DEVICE void load_queries(u32 (&fragments)[STEPS][TILES][2], const u16* q, const Queries& rows, u8* stage, u32 warp,
                            u32 lane) {
    const int g = int(lane) / 4, c = int(lane) % 4;
    if (PACKED_KEYS) {
#pragma unroll 1
        for (int row = int(warp); row < ROWS; row += WARPS) {
            HeadWords words = {};
            if (rows.exists(row)) words = reinterpret_cast<const HeadWords*>(q + rows.head_row(row) * D)[lane];
            u8* tile = stage + row / 8 * STEPS * STAGE_STEP;
#pragma unroll
            for (int i = 0; i < E; i++)
                *reinterpret_cast<u16*>(tile + staged(int(lane) * E + i, row % 8)) = u16(words.w[i / 2] >> i % 2 * 16);
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (PACKED_KEYS) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const u8* at = stage + (t * STEPS + step) * STAGE_STEP + lane * 8;
                const uint2 pair = *reinterpret_cast<const uint2*>(at);
                fragments[step][t][0] = pair.x, fragments[step][t][1] = pair.y;
            }
        } else {
            const bool exists = rows.exists(8 * t + g);
            const uint4* row = reinterpret_cast<const uint4*>(q + (exists ? rows.head_row(8 * t + g) : 0) * D);
#pragma unroll
            for (int j = 0; j < STEPS / 2; j++) {
                const uint4 w = exists ? row[4 * j + c] : make_uint4(0, 0, 0, 0);
                fragments[2 * j][t][0] = w.x, fragments[2 * j][t][1] = w.y;
                fragments[2 * j + 1][t][0] = w.z, fragments[2 * j + 1][t][1] = w.w;
            }
        }
    }
}
