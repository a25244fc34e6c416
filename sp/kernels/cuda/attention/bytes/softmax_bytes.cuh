// Online softmax of one warpgroup on wgmma sums of signed bytes, its weights in e4m3 at once.
//
// A row's score is c[r] times its sum, c = log2(e) scale and what queries and keys were divided by. Weights are
// 2^(score - reference + BIAS), reference a largest score seen earlier, which moves only when a score passes it by RISEN:
// e4m3 holds 2^-9 to 448, so most of its range lies below the largest weight. Outputs so far are to be scaled by keep.
#pragma once
#include "softmax_sm90.cuh"
#include "wgmma_e4m3.cuh"

#define RISEN 2.0f
#define BIAS 6.0f  // and RISEN are the twin's
#define UNSEEN i32(0x80000000)
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

// Sums -> weights. True when references of the warp moved, by `keep`.
template <bool Hidden>
SP_DEVICE bool soften(f32 (&w)[64], const i32 (&s)[64], f32 (&reference)[2], f32 (&keep)[2], const f32 (&c)[2]) {
    i32 high[4] = {s[0], s[2], s[4], s[6]};
#pragma unroll
    for (int i = 8; i < 64; ++i) high[i / 2 % 4] = max(high[i / 2 % 4], s[i]);
#pragma unroll
    for (int i = 1; i < 8; i += 2) high[i / 2] = max(high[i / 2], s[i]);
    f32 shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const i32 most = quad_most(max(high[r], high[r + 2]));
        const f32 top = Hidden && most == UNSEEN ? -INFINITY_F : f32(most) * c[r], old = reference[r];
        if (top > old + RISEN) reference[r] = top;
        // While a row has seen no key both are -inf, and their difference would be NaN.
        const bool none = Hidden && reference[r] == -INFINITY_F;
        keep[r] = none ? 1.0f : exp2_fast(old - reference[r]);
        shift[r] = none ? 0.0f : fmaf(-MAGIC, c[r], BIAS - reference[r]);
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int r = i / 2 % 2;
        w[i] = exp2_fast(fmaf(__int_as_float(s[i] + MAGIC_BITS), c[r], shift[r]));
        if (Hidden && s[i] == UNSEEN) w[i] = 0.0f;
    }
    return __any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f);
}

// Weights as the A operand of the products with values in the order of key_place.
SP_DEVICE void pack_weights(u32 (&p)[16], const f32 (&w)[64]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const f32* four = w + 16 * (i / 4) + 8 * (i % 4 / 2) + 2 * (i % 2);
        p[i] = pack_e4m3(four[0], four[1], four[4], four[5]);
    }
}
