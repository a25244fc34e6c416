// Units of attention_decode.cu: 16 tokens of the keys or values of one head, as their rows lie in a page, in shared memory.
//
// Packed rows keep their layout, with a pitch that sets successive rows 4 banks apart; the 16-byte chunks of f16 rows are
// exchanged, for keys and values differently, so that what eight lanes load together lies in different banks.
#pragma once
#include "mma.cuh"

constexpr int D = HEAD_DIM, GROUPS = D / 64, STEPS = D / 16;
constexpr int ROW = Q4 ? D / 32 * 18 : 2 * D;
constexpr int PITCH = Q4 ? (D == 256 ? 144 : D == 128 ? 80 : 48) : 2 * D;  // Q4: 4 banks on from row to row
constexpr int CHUNK = !Q4 || D == 256 ? 16 : D == 128 ? 8 : 4;             // a row of a page is that aligned
constexpr int UNIT = 16 * PITCH;

// Two Q4_0 blocks are nine words: [d0 q0 q1] q2..q13 [q14 q15 d1] q0'..q15'. Logical word w of the first block holds bytes
// 4w-2..4w+1, counted round: word 0 is bytes 14, 15, 0, 1. Those of the second block, words 4 to 7, lie as they are.
SP_DEVICE int byte_of(int word, int b) { return word >= 4 ? 4 * (word - 4) + b : (4 * word - 2 + b) & 15; }

// Dim that row `half * 8 + g` of output fragment m stands for.
SP_DEVICE int output_dim(int m, int g, int half) {
    return Q4 ? m / 4 * 64 + g / 4 * 32 + byte_of(g, m % 4) + 16 * half : m / 4 * 64 + 8 * g + m % 4 * 2 + half;
}

// Whole lines are asked for: what a row leaves of them belongs to other heads and tokens, which are read at the same time.
SP_DEVICE void copy_chunk(u32 target, const u8* source, bool valid) {
    if (CHUNK == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(target), "l"(source),
                     "n"(CHUNK == 16 ? 8 : CHUNK), "r"(valid ? CHUNK : 0)
                     : "memory");
}

// Where 16-byte chunk `chunk` of a token's f16 row lies, so that the eight lanes of a load meet eight different bank groups.
template <bool VALUES>
SP_DEVICE int swizzled(int token, int chunk) {
    return VALUES ? chunk ^ (token / 2 % 4 * 2) : chunk ^ (token % 2 * 4);
}

// 16 tokens from `rows` (of which `valid` exist, zeros follow) to a unit. Packed rows are nine chunks, and 27 lanes copy
// three of them at a time, so that addresses step by constants.
SP_DEVICE void load_unit(u32 unit, const u8* rows, u32 token_bytes, int valid, bool values, u32 lane) {
    constexpr int CHUNKS = ROW / CHUNK, APART = 32 / CHUNKS;
    const int row = int(lane) / CHUNKS, chunk = int(lane) % CHUNKS;
    if (row >= APART) return;
    const u8* source = rows + u32(row) * token_bytes + chunk * CHUNK;
#pragma unroll
    for (int token = row; token - row < 16; token += APART) {
        if (16 % APART == 0 || token < 16) {
            const int place = Q4 ? chunk : values ? swizzled<true>(token, chunk) : swizzled<false>(token, chunk);
            copy_chunk(unit + token * PITCH + place * CHUNK, source, token < valid);
        }
        source += APART * token_bytes;
    }
}
