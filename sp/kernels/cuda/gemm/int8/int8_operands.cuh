// Codes of weights as signed bytes, the A operand of mma.m16n8k32, and that product.
//
// Fragments of m16n8k32 (PTX ISA 9.7.15): lane 4 g + c has four consecutive k a register, from 4 c on: a[0] of row g, a[1] of
// row g + 8, a[2] and a[3] of the same rows 16 further; b[0] and b[1] likewise of column g. Which k these are is free as long
// as both sides agree: of 16 inputs a lane has 2 c, 2 c + 8, 2 c + 1, 2 c + 9, the order of masked words (fragment.cuh), and
// quantise_inputs.cu stores inputs in that order.
//
// A pieced code goes to the top of its byte: xor-ed with 128 it is the code less the middle of its range, times UNIT<F>.
// So no sum of inputs is needed to take a middle off, and formats without minima need none at all.
#pragma once
#include "fragment.cuh"
#include "mma.cuh"

// What a code's byte grows by when the code grows by one.
template <int F>
constexpr int UNIT = PIECED<F> == 0 ? 1 : 1 << (8 - PIECED<F>);

// (x & mask) ^ bits in one instruction.
SP_DEVICE u32 masked_xor(u32 x, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
    return d;
}

// Four signed bytes of row g (r = 0) or g + 8 in step s of 16 inputs.
template <int F>
SP_DEVICE u32 signed_bytes(const Quants<F>& q, int s, int r) {
    if constexpr (Packing<F>::lookup) {
        constexpr Table table = numbers_of<F>(false);
        return look_up<is_paired(table)>(table, word_of(q.low[0], s), r);
    } else if constexpr (Packing<F>::low_bits == 8) {
        const uint4& words = q.low[s >> 1];
        const int at = 2 * (s & 1);
        return __byte_perm(word_of(words, at), word_of(words, at + 1), r == 0 ? 0x5140 : 0x7362) ^ 0x80808080u;
    } else {
        constexpr int top = 8 - PIECED<F>;
        u32 bits = 0x80808080u;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const Piece p = piece_of<PIECED<F>>(s, r, i);
            if (p.bits > 0)
                bits = masked_xor(shifted(code_word<F>(q, p.word), p.at - p.to - top),
                                  (((1u << p.bits) - 1) << (p.to + top)) * 0x01010101u, bits);
        }
        return bits;
    }
}

// A sum that starts at MAGIC_BITS is, read as float32, 1.5 * 2^23 and the sum: |sum| < 2^22, of 32 products at most 2^19.
constexpr int MAGIC_BITS = 0x4B400000;
constexpr f32 MAGIC = 12582912.0f;

// d = MAGIC_BITS + a b, over 32 inputs.
SP_DEVICE void multiply_32(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(MAGIC_BITS));
}

// The same over 16: half of the registers.
SP_DEVICE void multiply_16(int (&d)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(MAGIC_BITS));
}
