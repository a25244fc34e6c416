// Units of attention_decode.cu: 16 tokens of the keys or values of one head, as their rows lie in a page, in shared memory.
//
// Packed rows keep their layout, with a pitch that sets successive rows 4, 12, 20 or 28 banks apart; the 16-byte chunks of f16 rows
// are exchanged, for keys and values differently, so that what eight lanes load together lies in different banks.
#pragma once
#include "page_rows.cuh"

constexpr int D = HEAD_DIM, GROUPS = D / 64, STEPS = D / 16;
constexpr bool PACKED_KEYS = K_FORMAT != F16_ROWS, PACKED_VALUES = V_FORMAT != F16_ROWS;

SP_DEVICE constexpr int packed_pitch(int bytes) {
    const int words = (bytes + 15) / 16 * 4;  // a multiple of 4; of 8 it would bring rows to the same banks
    return 4 * (words % 8 ? words : words + 4);
}
SP_DEVICE constexpr int pitch_of(int format) { return format == F16_ROWS ? 2 * D : packed_pitch(row_bytes(format, D)); }

constexpr int K_PITCH = pitch_of(K_FORMAT), V_PITCH = pitch_of(V_FORMAT);
constexpr int UNIT = 16 * (K_PITCH > V_PITCH ? K_PITCH : V_PITCH);

// Two Q4_0 blocks are nine words: [d0 q0 q1] q2..q13 [q14 q15 d1] q0'..q15'. Logical word w of the first block holds bytes
// 4w-2..4w+1, counted round: word 0 is bytes 14, 15, 0, 1. Those of the second block, words 4 to 7, lie as they are.
SP_DEVICE int byte_of(int word, int b) { return word >= 4 ? 4 * (word - 4) + b : (4 * word - 2 + b) & 15; }

// Dim that row `half * 8 + g` of output fragment m stands for.
SP_DEVICE int output_dim(int m, int g, int half) {
    if (V_FORMAT == Q4_ROWS) return m / 4 * 64 + g / 4 * 32 + byte_of(g, m % 4) + 16 * half;
    if (V_FORMAT == F16_ROWS) return m / 4 * 64 + 8 * g + m % 4 * 2 + half;
    return m / 4 * 64 + 8 * g + m % 4 + 4 * half;
}

// Whole lines are asked for: what a row leaves of them belongs to other heads and tokens, which are read at the same time.
template <int CHUNK>
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

// 16 tokens from `rows` (of which `valid` exist, zeros follow) to a unit. A row is so many chunks that several rows fit the lanes,
// and some lanes may have nothing to do, so that addresses step by constants.
template <int LAYOUT>
SP_DEVICE void load_unit(u32 unit, const u8* rows, u32 token_bytes, int valid, bool values, u32 lane) {
    constexpr int CHUNK = row_chunk(LAYOUT, D), PITCH = pitch_of(LAYOUT);
    constexpr int CHUNKS = row_bytes(LAYOUT, D) / CHUNK, APART = 32 / CHUNKS;
    const int row = int(lane) / CHUNKS, chunk = int(lane) % CHUNKS;
    if (row >= APART) return;
    const u8* source = rows + u32(row) * token_bytes + chunk * CHUNK;
#pragma unroll
    for (int token = row; token - row < 16; token += APART) {
        if (16 % APART == 0 || token < 16) {
            const int place = LAYOUT != F16_ROWS ? chunk : values ? swizzled<true>(token, chunk) : swizzled<false>(token, chunk);
            copy_chunk<CHUNK>(unit + token * PITCH + place * CHUNK, source, token < valid);
        }
        source += APART * token_bytes;
    }
}
