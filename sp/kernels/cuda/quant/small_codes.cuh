// Super-blocks as f16 operands: f16's smallest numbers are exact multiples of 2^-24, so that a code masked in place is
// q 2^-24 or 16 q 2^-24; times its scale, an integer up to 127, or that over 16, it is an A operand in units of 2^-24,
// exact for all formats (at most 11 bits) but Q6_K, of which it is rounded to 11 bits. Numbers that are looked up become
// operands in units of 1, rounded to 11 bits of at most 12. So all of a super-block adds up in one accumulator, and its d
// is applied last.
#pragma once
#include "fragment.cuh"

SP_DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

SP_DEVICE u32 mul_f16x2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// Units of the operands in a 1.
template <int F>
constexpr f32 SMALL_UNIT = Packing<F>::lookup ? 1.0f : 16777216.0f;

// Register j of step s as two f16: codes times 2^-24 (rows g: j even), or 2^-20 (rows g + 8), where the numbers are two
// apart doubled; or 1152 and the number that is looked up.
template <int F>
SP_DEVICE u32 small_codes(const Quants<F>& q, int s, int j) {
    using P = Packing<F>;
    const int up = j % 2 * 4;
    if constexpr (P::lookup) {
        constexpr Table table = numbers_of<F>(false, 128);
        constexpr bool paired = is_paired(table);
        const u32 bytes = look_up<paired>(table, word_of(q.low[0], s), j % 2);
        return __byte_perm(bytes, 0x64646464u, j < 2 ? 0x4240 : 0x4341);
    } else if constexpr (P::stride == 2) {
        static_assert(P::low_bits == 4 && P::high_bits == 0, "codes of four bits");
        return shifted(word_of(q.low[0], s), (j < 2 ? 0 : 8) - 1) & (0x001E001Eu << up);
    } else {
        return put_together<F>(q, s, j & 1, j >> 1, up, 0x00010001u, 0);
    }
}

// The scale of row g (r = 0), or a sixteenth of that of row g + 8 (r = 1), of numbers that are looked up the scale of
// both, twice as f16; what is added to products with it, without minima.
struct SmallScale {
    u32 scale, bias;
};

// 0x64646464, four upper bytes of the f16 1024. Hidden from the compiler, a kernel of one row of threads having no
// threadIdx.y but 0: it would keep the constant in each instruction and the other operand in a register.
SP_DEVICE u32 upper_bytes() { return 0x64646464u + threadIdx.y; }

SP_DEVICE u32 half_twice(u32 pair, int half) {
    u32 d;
    if (half == 0)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(pair));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(pair));
    return d;
}

// Two scales from 1024 and their codes. Signed ones are raised by 128.
template <int F>
SP_DEVICE SmallScale small_scale_of(u32 raised, int r) {
    using P = Packing<F>;
    constexpr u32 ONE = 0x3C003C00u, SIXTEENTH = 0x2C002C00u;
    if constexpr (P::lookup) {
        const u32 scale = fma_f16x2(raised, ONE, 0xE480E480u);
        return {scale, mul_f16x2(scale, 0xE480E480u)};  // exact: 1152 is 9 * 128, and a scale has 6 bits
    } else if constexpr (!P::minima) {
        constexpr u32 first = 0x80008000u + (-P::first) * 0x00010001u;  // times 2^-24, and 16 times that
        const u32 scale = r == 0 ? fma_f16x2(raised, ONE, 0xE480E480u) : fma_f16x2(raised, SIXTEENTH, 0xD480D480u);
        return {scale, mul_f16x2(scale, r == 0 ? first : 0x80008000u + (-P::first) * 0x00100010u)};
    } else {
        return {r == 0 ? fma_f16x2(raised, ONE, 0xE400E400u) : fma_f16x2(raised, SIXTEENTH, 0xD400D400u), 0};
    }
}

// `codes`: of four groups, a byte each; of groups i and i + 1, one in each half.
template <int F>
SP_DEVICE SmallScale small_scales(u32 codes, int r, int i, u32 upper) {
    return small_scale_of<F>(__byte_perm(codes, upper, 0x4040 | i | (i + 1) << 8), r);
}

// Of group i, twice.
template <int F>
SP_DEVICE SmallScale small_scale(u32 codes, int r, int i, u32 upper) {
    return small_scale_of<F>(__byte_perm(codes, upper, 0x4040 | i * 0x0101), r);
}
