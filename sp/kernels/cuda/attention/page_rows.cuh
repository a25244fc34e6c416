// Formats of rows of HEAD_DIM keys or values in pages, and how they are decoded.
//
//   F16_ROWS  f16
//   Q8_ROWS   blocks of 32 of Q8_0: f16 d, 32 signed bytes; d * byte
//   Q4_ROWS   blocks of 32 of Q4_0: f16 d, then byte j = code j | code (j + 16) << 4; d * (code - 8)
//   K5_ROWS, V4_ROWS  blocks of 64, see sp/quant/cached.py: a word of four scales of 16 values each, byte b standing for the
//             f16 whose bits are b << 7; eight words of codes, word w of values 8 w ..: value 8 w + j is the low half of byte j
//             (j < 4), 8 w + 4 + j the high one; with t = code - 7.5 the value is d t (1 + t t / 200). In K5_ROWS the first 32
//             values have two upper bits more, value 8 c + 4 h + 2 p + r in bits 2 (2 h + r) .. of byte 2 c + p behind the codes,
//             and stand for d (code - 31.5)
#pragma once
#include "mma.cuh"

constexpr int F16_ROWS = 16, Q8_ROWS = 8, Q4_ROWS = 4, K5_ROWS = 5, V4_ROWS = 14;

SP_DEVICE constexpr int row_bytes(int rows, int d) {
    return rows == F16_ROWS ? 2 * d : rows == Q8_ROWS ? d / 32 * 34 : rows == K5_ROWS ? d / 64 * 44 : d / 64 * 36;
}

// Bytes of one copy to shared memory: what a packed row is aligned to.
SP_DEVICE constexpr int row_chunk(int rows, int d) { return rows == F16_ROWS || d >= 256 ? 16 : d == 128 ? 8 : 4; }

SP_DEVICE u32 h2_sub(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
SP_DEVICE u32 h2_add(u32 a, u32 b) {
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
SP_DEVICE u32 h2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
SP_DEVICE u32 h2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Codes 0 .. 15 in bits 0 .. 3 and 16 .. 19 (others are dropped), less 8, exactly.
SP_DEVICE u32 four_bits(u32 w) { return h2_sub((w & 0x000f000fu) | 0x64006400u, 0x64086408u); }

// (w & mask) | bits in one instruction; "r" makes the compiler keep a constant in a register.
SP_DEVICE u32 masked(u32 w, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "r"(mask), "r"(bits));
    return d;
}

// The low or the high half of a word, twice; no instruction where it becomes an operand.
SP_DEVICE u32 half_twice(u32 word, int half) {
    u32 d;
    if (half == 0)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(word));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(word));
    return d;
}

// Levels of four-bit codes at a scale d: d t (1 + t t / 200), t = code - 7.5. In quarters of t: no factor is more than f16 holds where
// the level is not, and the square's coefficient is an ordinary number for most d. Five instructions for two.
constexpr u32 LEVEL_BITS = 0x54005400u;  // 64, to whose f16 bits 4 to 7 are whole numbers
struct Levels {
    u32 size, bend;  // 4 d, 4 d 16 / 200, of two codes

    SP_DEVICE explicit Levels(u32 d) : size(h2_mul(d, 0x44004400u)), bend(h2_mul(size, 0x2d1f2d1fu)) {}
    SP_DEVICE Levels(u32 size, u32 bend) : size(size), bend(bend) {}
    // The same scale for both.
    SP_DEVICE Levels twice(int half) const { return {half_twice(size, half), half_twice(bend, half)}; }

    // Of place `r` of a word's four pairs: bytes 0 and 2, 1 and 3, low halves, then high ones; `bits` is LEVEL_BITS.
    SP_DEVICE u32 of(u32 w, int r, u32 bits) const {
        const u32 moved = r == 0 ? w << 4 : w >> (r == 1 ? 4 : r == 2 ? 0 : 8);
        const u32 t = h2_fma(masked(moved, 0x00f000f0u, bits), 0x34003400u, 0xcc78cc78u);  // (64 + code) / 4 - 71.5 / 4, exactly
        return h2_mul(t, h2_fma(h2_mul(t, t), bend, size));
    }
};

// Two bytes with their signs at bits 0 .. 7 and 16 .. 23, exactly.
SP_DEVICE u32 eight_bits(u32 w) { return h2_sub((w & 0x00ff00ffu ^ 0x00800080u) | 0x64006400u, 0x64806480u); }

// Word `w` of K5_ROWS's first four and its upper bits, bytes h and h + 1 of a block's last eight, in the low half of `upper`:
// what stands in place `r` of the four pairs (bytes 0 and 2, 1 and 3, low halves, then high ones), less 31.5, exactly.
SP_DEVICE u32 six_bits(u32 w, u32 upper, int r) {
    const u32 low = w >> (r & 1) * 8 + (r >> 1) * 4 & 0x000f000fu;
    const u32 spread = __byte_perm(upper, 0, 0x4140);
    const u32 high = (r < 2 ? spread << 4 - 2 * r : spread >> 2 * r - 4) & 0x00300030u;
    return h2_add(h2_sub(low | high | 0x64006400u, 0x64206420u), 0x38003800u);
}

// The f16 of byte `at` of a word of scales, twice.
SP_DEVICE u32 scale_pair(u32 word, int at) { return __byte_perm(word, 0, 0x4040 | at | at << 8) << 7; }

// A row that is aligned to 4 bytes, in global memory and in shared memory.
struct GlobalRow {
    const u8* at;
    SP_DEVICE u32 word(u32 byte) const { return *reinterpret_cast<const u32*>(at + byte); }
};
struct SharedRow {
    u32 at;
    SP_DEVICE u32 word(u32 byte) const {
        u32 found;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(found) : "r"(at + byte));
        return found;
    }
};

// Values 8 part .. 8 part + 7 of a packed row as f16.
template <int LAYOUT, class Row>
SP_DEVICE uint4 eight_of(const Row& row, u32 part) {
    u32 out[4];
    if constexpr (LAYOUT == Q4_ROWS || LAYOUT == Q8_ROWS) {
        // Two blocks are whole words; the second one's scale is the upper half of a word, and the first one's codes begin 2 bytes
        // past a word's start.
        constexpr u32 BYTES = LAYOUT == Q4_ROWS ? 18 : 34;
        const u32 odd = part / 4 % 2, eighth = part % 4, start = part / 8 * 2 * BYTES;
        const u32 d = __byte_perm(row.word(start + odd * (BYTES - 2)), 0, odd ? 0x3232 : 0x1010);
        const u32 codes = start + odd * (BYTES + 2) + (LAYOUT == Q4_ROWS ? eighth % 2 * 8 : eighth * 8);
        const u32 select = odd ? 0x3210 : 0x5432;
        u32 words[3] = {row.word(codes), row.word(codes + 4), 0};
        if (!odd) words[2] = row.word(codes + 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 bytes = __byte_perm(__byte_perm(words[i / 2], words[i / 2 + 1], select), 0, i % 2 ? 0x4342 : 0x4140);
            out[i] = h2_mul(LAYOUT == Q4_ROWS ? four_bits(bytes >> eighth / 2 * 4) : eight_bits(bytes), d);
        }
    } else {
        const u32 start = part / 8 * (LAYOUT == K5_ROWS ? 44 : 36), w = part % 8;
        const u32 d = scale_pair(row.word(start), int(w / 2)), word = row.word(start + 4 + 4 * w);
        u32 places[4];
        if (LAYOUT == K5_ROWS && w < 4) {
            const u32 upper = row.word(start + 36 + w / 2 * 4) >> w % 2 * 16;
#pragma unroll
            for (int r = 0; r < 4; r++) places[r] = h2_mul(six_bits(word, upper, r), d);
        } else {
            const Levels levels(d);
#pragma unroll
            for (int r = 0; r < 4; r++) places[r] = levels.of(word, r, LEVEL_BITS);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)  // pairs of bytes 0 and 2, and 1 and 3, to values in order
            out[i] = __byte_perm(places[i / 2 * 2], places[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// The same of a row in global memory, packed or not; f16 rows are aligned to 16 bytes.
template <int LAYOUT>
SP_DEVICE uint4 eight_at(const u8* row, u32 part) {
    if constexpr (LAYOUT == F16_ROWS) return reinterpret_cast<const uint4*>(row)[part];
    else return eight_of<LAYOUT>(GlobalRow{row}, part);
}
