// Online softmax of one warpgroup on wgmma sums of signed bytes, its weights as e4m3 straight from the scores.
//
// A row's score is c[r] times its sum, c = log2(e) scale and what queries and keys were divided by. Weights are about
// 2^y, y = score - reference + BIAS, reference a largest score seen earlier, which moves only when a score passes it by
// RISEN. The bits of an e4m3 number, read as a whole number, are 8 (7 + log2 of it) but for 0.7 at most in the middle of an
// octave (after Schraudolph, "A fast, compact approximation of the exponential function", 1999): so a weight is the
// rounded 8 (7 + y), at least 0, of (7 + y) / 16 in f16. Neither exponentials nor conversions to e4m3 are asked for, of
// which a multiprocessor makes 16 a clock. Outputs so far are to be scaled by keep.
#pragma once
#include "softmax_sm90.cuh"
#include "wgmma_e4m3.cuh"

#define RISEN 2.0f
#define BIAS 6.0f  // and RISEN are the twin's
#define UNSEEN i32(0xFF800000)  // -inf: the least of the sums, and a weight of 0
#define MAGIC 12582912.0f  // 1.5 * 2^23: its bits and a whole number below 2^22 are the bits of their sum
#define MAGIC_BITS 0x4B400000

SP_DEVICE i32 quad_most(i32 x) {
    x = max(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return max(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Sums of keys past the row's own position become UNSEEN; `key` is the tile's first, `position` that of the first row.
SP_DEVICE void hide(i32 (&s)[64], i32 key, i32 position) {
    const i32 limit = position - key - 2 * i32(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            if (8 * j + e > limit) s[4 * j + e] = UNSEEN;
            if (8 * j + e > limit + 8) s[4 * j + 2 + e] = UNSEEN;
        }
    }
}

// Sums of keys before the first that a row sees become UNSEEN; `reach` is that of the thread's two rows.
SP_DEVICE void hide_far(i32 (&s)[64], i32 key, const i32 (&reach)[2]) {
    const i32 first = key + 2 * i32(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < 64; ++i)
        if (first + i / 4 * 8 + i % 2 < reach[i / 2 % 2]) s[i] = UNSEEN;
}

// x * slope + shift within 0 and 1, NaN as 0, in one instruction; __saturatef would take two.
SP_DEVICE f32 saturated_fma(f32 x, f32 slope, f32 shift) {
    f32 share;
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(share) : "f"(x), "f"(slope), "f"(shift));
    return share;
}

// 1024 and 128 times each of two shares, in f16: their low bytes are the e4m3 of weights.
SP_DEVICE u32 bytes_of_shares(u32 shares) {
    u32 bytes;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(bytes) : "r"(shares), "r"(0x58005800), "r"(0x64006400));
    return bytes;
}

// The weights of two neighbours; each is a sum and the bits of MAGIC, or UNSEEN.
SP_DEVICE u32 weights_of(i32 one, i32 other, f32 slope, f32 shift) {
    return bytes_of_shares(pack_f16(saturated_fma(__int_as_float(one), slope, shift),
                                    saturated_fma(__int_as_float(other), slope, shift)));
}

// Sums -> weights, two neighbours a word. True when references of the warp moved, by `keep`.
template <bool Hidden>
SP_DEVICE bool soften(u32 (&w)[32], const i32 (&s)[64], f32 (&reference)[2], f32 (&keep)[2], const f32 (&c)[2]) {
    i32 high[4] = {s[0], s[2], s[4], s[6]};
#pragma unroll
    for (int i = 8; i < 64; ++i) high[i / 2 % 4] = max(high[i / 2 % 4], s[i]);
#pragma unroll
    for (int i = 1; i < 8; i += 2) high[i / 2] = max(high[i / 2], s[i]);
    f32 slope[2], shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const i32 most = quad_most(max(high[r], high[r + 2]));
        const f32 top = Hidden && most == UNSEEN ? -INFINITY_F : f32(most) * c[r], old = reference[r];
        if (top > old + RISEN) reference[r] = top;
        // While a row has seen no key both are -inf, and their difference would be NaN.
        const bool none = Hidden && reference[r] == -INFINITY_F;
        keep[r] = none ? 1.0f : exp2_fast(old - reference[r]);
        slope[r] = c[r] * 0.0625f;
        shift[r] = none ? 0.0f : fmaf(-MAGIC, slope[r], (7.0f + BIAS - reference[r]) * 0.0625f);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const i32 one = Hidden && s[2 * i] == UNSEEN ? UNSEEN : s[2 * i] + MAGIC_BITS;
        const i32 other = Hidden && s[2 * i + 1] == UNSEEN ? UNSEEN : s[2 * i + 1] + MAGIC_BITS;
        w[i] = weights_of(one, other, slope[i % 2], shift[i % 2]);
    }
    return __any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f);
}

// Weights as the A operand of the products with values in the order of key_place.
SP_DEVICE void pack_weights(u32 (&p)[16], const u32 (&w)[32]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const u32* pair = w + 8 * (i / 4) + 4 * (i % 4 / 2) + i % 2;
        p[i] = __byte_perm(pair[0], pair[2], 0x6420);
    }
}
