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
        constexpr Table table = numbers_of<F>(false);
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

// Codes whose lower bits are two: a word has those of two steps, and what a mask leaves of it is an operand as it stands, of
// bytes of both steps in turn; rows g + 8 then hold four times their codes.
template <int F>
constexpr bool MIXES_STEPS = Packing<F>::low_bits == 2;
constexpr int MIXED_ROWS = 4;

template <int F>
SP_DEVICE void mixed_operands(u32 (&a)[4], const Quants<F>& q, int p) {
    static_assert(Packing<F>::high_bits == 1, "codes of three bits");
    const u32 low = word_of(q.low[0], p), next = low >> 4, all = q.high[0];
    // A nibble of upper bits to each byte: rows g, g + 8 of the first eight inputs, then of the others.
    const u32 high = masked_or(shifted(all, 8 * p - 4), 0x0F000F00u, (all >> (8 * p)) & 0x000F000Fu);
    a[0] = masked_or(high << 2, 0x04040404u, low & 0x03030303u);
    a[1] = masked_or(high << 3, 0x10101010u, low & 0x0C0C0C0Cu);
    a[2] = masked_or(high, 0x04040404u, next & 0x03030303u);
    a[3] = masked_or(high << 1, 0x10101010u, next & 0x0C0C0C0Cu);
}

// B operands, of high and of low bytes, in the order of `mixed_operands`.
SP_DEVICE void mix_steps(u32 (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 first = b[i], second = b[i + 1];
        b[i] = __byte_perm(first, second, 0x6240), b[i + 1] = __byte_perm(first, second, 0x7351);
    }
}

// A operands of steps 2 p and 2 p + 1.
template <int F>
SP_DEVICE void byte_operands(u32 (&a)[4], const Quants<F>& q, int p) {
    if constexpr (MIXES_STEPS<F>) {
        mixed_operands<F>(a, q, p);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = code_bytes<F>(q, 2 * p + i / 2, i % 2);
    }
}
