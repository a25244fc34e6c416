// Online softmax of one warpgroup on wgmma accumulators (wgmma_f16.cuh), two rows a thread, four threads a row.
//
// Weights are 2^(c (score - reference)), c = scale log2(e). A row's reference is a maximum seen earlier. It moves,
// and sums and outputs are rescaled, only when a score passes it by 2^RISE: f16 weights hold that, and most tiles
// move nothing (after FlashAttention-4, 2026). So most tiles need no maximum: soften_below leaves it out, and says
// when it was wrong to.
#pragma once
#include "hopper.cuh"

#define INFINITY_F __int_as_float(0x7f800000)
#define RISE 8.0f
#define MOST 32768.0f  // of a thread's weights together, so that each fits f16

// References and sums of a thread's two rows (the sum over its own columns), and what to scale older outputs by.
struct Rows {
    f32 reference[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {0, 0}, keep[2] = {1, 1};
};

SP_DEVICE f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SP_DEVICE f32 quad_max(f32 x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

SP_DEVICE f32 quad_sum(f32 x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Scores of keys past the row's own position become -inf; `key` is the tile's first, `position` that of the first row.
template <int Scores>
SP_DEVICE void mask(f32 (&s)[Scores], i32 key, i32 position) {
    const i32 limit = position - key - 2 * i32(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < Scores / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            if (8 * j + e > limit) s[4 * j + e] = -INFINITY_F;
            if (8 * j + e > limit + 8) s[4 * j + 2 + e] = -INFINITY_F;
        }
    }
}

// Scores of keys before the first one that a row sees, `reached`, become -inf; `key` as above.
template <int Scores>
SP_DEVICE void mask_far(f32 (&s)[Scores], i32 key, const i32 (&reached)[2]) {
    const i32 mine = key + 2 * i32(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < Scores; ++i)
        if (mine + i / 4 * 8 + i % 2 < reached[i / 2 % 2]) s[i] = -INFINITY_F;
}

// Scores -> weights in place. True when references of the warp moved: outputs must then be scaled by rows.keep.
template <int Scores>
SP_DEVICE bool soften(f32 (&s)[Scores], Rows& rows, f32 c) {
    f32 high[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < Scores; ++i) high[i / 2 % 2] = fmaxf(high[i / 2 % 2], s[i]);
    high[0] = quad_max(high[0]), high[1] = quad_max(high[1]);
    const f32 rise = RISE / c;
    const bool above = high[0] > rows.reference[0] + rise || high[1] > rows.reference[1] + rise;
    const bool moved = __any_sync(0xffffffffu, above);
    if (moved) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const f32 reference = fmaxf(rows.reference[r], high[r]);
            // While a row has seen no key both are -inf, and their difference would be NaN.
            rows.keep[r] = reference == -INFINITY_F ? 0.0f : exp2_fast((rows.reference[r] - reference) * c);
            rows.sum[r] *= rows.keep[r];
            rows.reference[r] = reference;
        }
    }
    const f32 shift[2] = {rows.reference[0] == -INFINITY_F ? 0.0f : -rows.reference[0] * c,
                          rows.reference[1] == -INFINITY_F ? 0.0f : -rows.reference[1] * c};
#pragma unroll
    for (int i = 0; i < Scores; ++i) {
        s[i] = exp2_fast(fmaf(s[i], c, shift[i / 2 % 2]));
        rows.sum[i / 2 % 2] += s[i];
    }
    return moved;
}

// The same against the references as they are, for tiles that mask nothing. False when a weight of the warp is too
// large or a row has no reference yet: the scores are then lost, the rows untouched.
template <int Scores>
SP_DEVICE bool soften_below(f32 (&s)[Scores], Rows& rows, f32 c) {
    const f32 shift[2] = {-rows.reference[0] * c, -rows.reference[1] * c};
    f32 sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < Scores; ++i) {
        s[i] = exp2_fast(fmaf(s[i], c, shift[i / 2 % 2]));
        sum[i / 2 % 2] += s[i];
    }
    const bool fits = sum[0] <= MOST && sum[1] <= MOST;  // false for NaN
    if (!__all_sync(0xffffffffu, fits)) return false;
    rows.sum[0] += sum[0], rows.sum[1] += sum[1];
    return true;
}

// Weights as the f16 A operand of the next product.
template <int Scores>
SP_DEVICE void pack_weights(u32 (&p)[Scores / 2], const f32 (&s)[Scores]) {
#pragma unroll
    for (int i = 0; i < Scores / 2; ++i) p[i] = pack_f16(s[2 * i], s[2 * i + 1]);
}

// Lane i of a quad gives four words, one for each lane of the quad, and gets back the four words given to it.
SP_DEVICE uint4 quad_transpose(const u32 (&w)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    u32 x[2][2], y[2][2];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        const u32 mine = odd ? w[2 * p + 1] : w[2 * p], theirs = odd ? w[2 * p] : w[2 * p + 1];
        const u32 got = __shfl_xor_sync(0xffffffffu, theirs, 1);
        x[p][0] = odd ? got : mine, x[p][1] = odd ? mine : got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 mine = upper ? x[1][i] : x[0][i], theirs = upper ? x[0][i] : x[1][i];
        const u32 got = __shfl_xor_sync(0xffffffffu, theirs, 2);
        y[0][i] = upper ? got : mine, y[1][i] = upper ? mine : got;
    }
    return uint4{y[0][0], y[0][1], y[1][0], y[1][1]};
}

// Row r (0 or 1) of the thread, times `factor`, as bf16 to `row`, 64 bytes at a time. All lanes of a warp must call.
template <int Outs>
SP_DEVICE void store_row(u16* row, const f32 (&o)[Outs], int r, f32 factor, bool valid) {
#pragma unroll
    for (int j = 0; j < Outs / 16; ++j) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = 4 * (4 * j + i) + 2 * r;
            words[i] = pack_bf16(o[at] * factor, o[at + 1] * factor);
        }
        const uint4 chunk = quad_transpose(words);
        if (valid) *reinterpret_cast<uint4*>(row + 32 * j + 8 * (threadIdx.x % 4)) = chunk;
    }
}
