// Codes, or the numbers they stand for, as bytes: A operands of mma.m16n8k32.
#pragma once
#include "fragment.cuh"

// Whether the bytes are signed numbers: those that are looked up, and codes of 8 bits.
template <int F>
constexpr bool SIGNED_BYTES = Packing<F>::lookup || Packing<F>::low_bits == 8;

// The codes of rows g and g + 8 (r = 0, 1) in step s, or the numbers that are looked up, a byte each, in the order of
// strip_one.cuh.
template <int F>
SP_DEVICE u32 code_bytes(const Quants<F>& q, int s, int r) {
    if constexpr (Packing<F>::lookup) {
        constexpr Table table = numbers_of<F>(false, Packing<F>::raised);
        return look_up<is_paired(table)>(table, word_of(q.low[0], s), r);
    }
    if constexpr (Packing<F>::low_bits == 8) {
        const uint4& words = q.low[s >> 1];
        const int at = 2 * (s & 1);
        return __byte_perm(word_of(words, at), word_of(words, at + 1), r == 0 ? 0x5140 : 0x7362) ^ 0x80808080u;
    }
    u32 b = (word_of(q.low[0], s) >> (4 * r)) & 0x0F0F0F0Fu;
    if constexpr (Packing<F>::high_bits == 2) {
        const int at = 2 * (4 * (s & 1) + r);
        b = masked_or(shifted(q.high[s >> 1], at - 4), 0x00300030u, b);
        b = masked_or(shifted(q.high[s >> 1], at + 4 - 12), 0x30003000u, b);
    }
    if constexpr (Packing<F>::high_bits == 1) {
        b = masked_or(shifted(q.high[0], 4 * s + r - 4), 0x00100010u, b);
        b = masked_or(shifted(q.high[0], 4 * s + r + 2 - 12), 0x10001000u, b);
    }
    return b;
}

// Codes of three bits stay at the bits where their word has them, times a power of two that the row and the step decide; step
// 3's lower bits move below their upper one.
template <int F>
constexpr bool IN_PLACE = Packing<F>::low_bits == 2;
constexpr int place_of(int s, int r) { return s < 3 ? 3 * r : 4 + r; }

// A operands of steps 2 p and 2 p + 1.
template <int F>
SP_DEVICE void byte_operands(u32 (&a)[4], const Quants<F>& q, int p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int s = 2 * p + i / 2, r = i % 2;
        if constexpr (IN_PLACE<F>)
            a[i] = three_bits<F>(q, s, r, 0, place_of(s, r), 0x01010101u, 0);
        else
            a[i] = code_bytes<F>(q, s, r);
    }
}
