// Two strips of a packed weight times up to 32 tokens, a stage at a time.
//
// A B fragment, read once from shared memory, serves both strips: with one strip a multiprocessor would spend more
// time on reading inputs than on reading weights. What has to be done for every weight is kept short:
//
//   K-quants  in f16, whose smallest numbers are exact multiples of 2^-24. A code masked in place is q 2^-24 or
//             16 q 2^-24; times its scale, an integer up to 127, or that over 16, it is an A operand, exact for Q4_K and
//             Q5_K (at most 11 bits) and rounded to 11 bits for Q6_K. So a super-block adds up in one accumulator, and
//             its d and the factor of its inputs (see few_inputs.cuh) come last. The minima of Q4_K and Q5_K take one
//             more product: (rows x groups) codes times (groups x tokens) sums of inputs, each sum as two bf16.
//   others    in bf16: codes as integers, whose scales multiply the float32 sums of a group of 32; BF16 as it is.
#pragma once
#include "few_layout.cuh"

// Four 8x8 matrices as ldmatrix_x4 of mma.cuh reads them, but free to be moved over other reads.
SP_DEVICE void input_fragments(u32 (&b)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(address));
}

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

template <int F>
SP_DEVICE void load_codes(Quants<F>& q, const u8* slot, int t, int lane) {
    using S = Stage<F>;
#pragma unroll
    for (int p = 0; p < Fragment<F>::low_parts; ++p)
        q.low[p] = reinterpret_cast<const uint4*>(slot + (t * Fragment<F>::low_parts + p) * 512)[lane];
    if constexpr (F == Q6_K) {
        const uint2 h = reinterpret_cast<const uint2*>(slot + S::high_at + t * 256)[lane];
        q.high[0] = h.x, q.high[1] = h.y;
    }
    if constexpr (F == Q5_K) q.high[0] = reinterpret_cast<const u32*>(slot + S::high_at + t * 128)[lane];
}

// Register j of step s as two f16: codes times 2^-24 (rows g: j even), or 2^-20 (rows g + 8).
template <int F>
SP_DEVICE u32 small_codes(const Quants<F>& q, int s, int j) {
    const int up = j % 2 * 4;
    const u32 word = j < 2 ? word_of(q.low[0], s) : word_of(q.low[0], s) >> 8;
    const u32 b = word & (0x000F000Fu << up);
    if constexpr (F == Q6_K)
        return masked_or(shifted(q.high[s >> 1], 2 * (4 * (s & 1) + j) - 4 - up), 0x00300030u << up, b);
    else if constexpr (F == Q5_K)
        return masked_or(shifted(q.high[0], 4 * s + j - 4 - up), 0x00100010u << up, b);
    else
        return b;
}

// The scale of row g (r = 0), or a sixteenth of that of row g + 8 (r = 1), twice as f16; what 32 codes too many make.
struct SmallScale {
    u32 scale, bias;
};

// `group`: of 32 inputs, or of 16 (Q6_K).
template <int F>
SP_DEVICE SmallScale small_scale(const Scales& v, int r, int group) {
    const int i = group % 4;
    const u32 raised = __byte_perm(v.codes[r][group / 4], 0x64646464u, 0x4040 | i * 0x0101);  // 1024 + the code
    constexpr u32 ONE = 0x3C003C00u, SIXTEENTH = 0x2C002C00u;
    if constexpr (F == Q6_K) {  // codes are raised by 128; -32 * 2^-24, and 16 times that
        const u32 scale = r == 0 ? fma_f16x2(raised, ONE, 0xE480E480u) : fma_f16x2(raised, SIXTEENTH, 0xD480D480u);
        return {scale, mul_f16x2(scale, r == 0 ? 0x80208020u : 0x82008200u)};
    } else {
        return {r == 0 ? fma_f16x2(raised, ONE, 0xE400E400u) : fma_f16x2(raised, SIXTEENTH, 0xD400D400u), 0};
    }
}

// acc += W X for one strip's super-block `index` of the slice, whose f16 sums are `sum`.
template <int F>
SP_DEVICE void add_super(f32 (&acc)[NT][4], const f32 (&sum)[NT][4], const Scales& scales, int index, int lane) {
    const f32* factors = reinterpret_cast<const f32*>(shared + FACTORS_AT) + index * TOKENS + lane % 4 * 2;
    const f32 d[2] = {scales.d[0] * 16777216.0f, scales.d[1] * 16777216.0f};
    u32 minima[4] = {};
    if constexpr (F != Q6_K)
#pragma unroll
        for (int r = 0; r < 2; ++r) minima[r] = minima[r + 2] = small_pair(scales.minima[r], lane & 1);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
        const float2 factor = *reinterpret_cast<const float2*>(factors + nt * 8);
        f32 lowest[4] = {};
        if constexpr (F != Q6_K) {
            const u8* sums = shared + SUMS_AT + (index * TOKENS + nt * 8 + lane / 4) * 32 + lane % 4 * 4;
            multiply_add(lowest, minima, load_u32(sums), load_u32(sums + 16));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            f32 value = d[i / 2] * sum[nt][i];
            if constexpr (F != Q6_K) value = fmaf(-scales.dmin[i / 2], lowest[i], value);
            acc[nt][i] = fmaf(i % 2 == 0 ? factor.x : factor.y, value, acc[nt][i]);
        }
    }
}

// acc[m] += W_m X for stage `index` of the slice; acc[m][nt] as D of mma.cuh: rows of strip m, tokens 8 nt and on.
// `x`: where this lane's row for ldmatrix begins.
template <int F>
SP_DEVICE void multiply_pair(f32 (&acc)[2][NT][4], const u8* slot, u32 x, int index, int lane) {
    using S = Stage<F>;
    x += index * (STAGE_K * 2);
    const u8* slots[2] = {slot, slot + S::bytes};
    const Scales scales[2] = {load_scales<F>(slots[0], lane), load_scales<F>(slots[1], lane)};
    f32 sums[2][NT][4] = {};
#pragma unroll
    for (int t = 0; t < S::tiles; ++t) {
        Quants<F> q[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) load_codes<F>(q[m], slots[m], t, lane);
#pragma unroll
        for (int p = 0; p < 2; ++p) {  // groups of 32 inputs: steps 2 p and 2 p + 1
            u32 a[2][2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    if constexpr (S::super) {
                        const int group = F == Q6_K ? 4 * t + 2 * p + s : 2 * t + p;
                        const SmallScale by[2] = {small_scale<F>(scales[m], 0, group), small_scale<F>(scales[m], 1, group)};
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            const u32 codes = small_codes<F>(q[m], 2 * p + s, j);
                            a[m][s][j] = F == Q6_K ? fma_f16x2(codes, by[j % 2].scale, by[j % 2].bias)
                                                   : mul_f16x2(codes, by[j % 2].scale);
                        }
                    } else if constexpr (Fragment<F>::plain) {
                        a_fragment<F>(a[m][s], q[m], 2 * p + s, 0, 0);
                    } else {
#pragma unroll
                        for (int j = 0; j < 4; ++j) a[m][s][j] = integer_pair<F>(q[m], 2 * p + s, j);
                    }
                }
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                u32 b[4];
                input_fragments(b, x + (2 * t + p) * 64 + nt * 8 * PITCH);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    if constexpr (S::super) {
                        mma_f16(sums[m][nt], a[m][0], b[0], b[1]);
                        mma_f16(sums[m][nt], a[m][1], b[2], b[3]);
                    } else if constexpr (Fragment<F>::plain) {
                        multiply_add(acc[m][nt], a[m][0], b[0], b[1]);
                        multiply_add(acc[m][nt], a[m][1], b[2], b[3]);
                    } else {
                        f32 sum[4] = {};
                        multiply_add(sum, a[m][0], b[0], b[1]);
                        multiply_add(sum, a[m][1], b[2], b[3]);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const f32 scale = group_scale<F>(scales[m], slots[m], i / 2, t, p, 0, lane);
                            acc[m][nt][i] = fmaf(scale, sum[i], acc[m][nt][i]);
                        }
                    }
                }
            }
        }
    }
    if constexpr (S::super)
#pragma unroll
        for (int m = 0; m < 2; ++m) add_super<F>(acc[m], sums[m], scales[m], index, lane);
}
