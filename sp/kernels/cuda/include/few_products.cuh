// Two strips of a packed weight times up to 32 tokens, a stage at a time; strip.cuh says how products stay exact.
//
// A B fragment, read once from shared memory, serves both strips: with one strip a multiprocessor would spend more
// time on reading inputs than on reading weights.
#pragma once
#include "few_layout.cuh"

// Four 8x8 matrices as ldmatrix_x4 of mma.cuh reads them, but free to be moved over other reads.
SP_DEVICE void input_fragments(u32 (&b)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(address));
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

template <int F>
SP_DEVICE void codes_fragment(u32 (&a)[4], const Quants<F>& q, int s) {
    if constexpr (Fragment<F>::plain) {
        a_fragment<F>(a, q, s, 0, 0);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (Stage<F>::super)
                a[j] = raised_pair<F>(q, s, j);
            else
                a[j] = integer_pair<F>(q, s, j);
        }
    }
}

// What the raised codes of a super-block are too much, and the minima, come off: one product with the sums of inputs.
template <int F>
SP_DEVICE void correct(f32 (&acc)[NT][4], const Scales& scales, const u8* sums32, const u8* sums16, int lane) {
    u32 codes[4];
    if constexpr (F == Q6_K) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            codes[r] = signed_pair(lane % 4 < 2 ? scales.codes[r][0] : scales.codes[r][1], lane & 1);
            codes[r + 2] = signed_pair(lane % 4 < 2 ? scales.codes[r][2] : scales.codes[r][3], lane & 1);
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            const u8* sums = sums16 + nt * 512;
            f32 excess[4] = {};
            multiply_add(excess, codes, load_u32(sums), load_u32(sums + 16));
            multiply_add(excess, codes, load_u32(sums + 32), load_u32(sums + 48));
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[nt][i] = fmaf(-160 * scales.d[i / 2], excess[i], acc[nt][i]);
        }
    } else {
        u32 minima[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            minima[r] = minima[r + 2] = small_pair(scales.minima[r], lane & 1);
            codes[r] = codes[r + 2] = small_pair(lane % 4 < 2 ? scales.codes[r][0] : scales.codes[r][1], lane & 1);
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            const u8* sums = sums32 + nt * 256;
            const u32 high = load_u32(sums), low = load_u32(sums + 16);
            f32 lowest[4] = {}, excess[4] = {};
            multiply_add(lowest, minima, high, low);
            multiply_add(excess, codes, high, low);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                acc[nt][i] = fmaf(-scales.dmin[i / 2], lowest[i], acc[nt][i]);
                acc[nt][i] = fmaf(-128 * scales.d[i / 2], excess[i], acc[nt][i]);
            }
        }
    }
}

// acc[m] += W_m X for stage `index` of the slice; acc[m][nt] as D of mma.cuh: rows of strip m, tokens 8 nt and on.
// `x`: where this lane's row for ldmatrix begins; `sums32`, `sums16`: this lane's of the slice's first super-block.
template <int F>
SP_DEVICE void multiply_pair(f32 (&acc)[2][NT][4], const u8* slot, u32 x, const u8* sums32, const u8* sums16, int index,
                             int lane) {
    using S = Stage<F>;
    x += index * (STAGE_K * 2);
    const u8* slots[2] = {slot, slot + S::bytes};
    const Scales scales[2] = {load_scales<F>(slots[0], lane), load_scales<F>(slots[1], lane)};
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
                for (int s = 0; s < 2; ++s) codes_fragment<F>(a[m][s], q[m], 2 * p + s);
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                u32 b[4];
                input_fragments(b, x + (2 * t + p) * 64 + nt * 8 * PITCH);
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    f32(&to)[4] = acc[m][nt];
                    if constexpr (Fragment<F>::plain) {
                        multiply_add(to, a[m][0], b[0], b[1]);
                        multiply_add(to, a[m][1], b[2], b[3]);
                    } else {
                        f32 sum[4] = {};
                        multiply_add(sum, a[m][0], b[0], b[1]);
                        if constexpr (F == Q6_K) {  // a scale for 16 inputs
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                to[i] = fmaf(group_scale<F>(scales[m], slots[m], i / 2, t, p, 0, lane), sum[i], to[i]);
                                sum[i] = 0;
                            }
                        }
                        multiply_add(sum, a[m][1], b[2], b[3]);
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            to[i] = fmaf(group_scale<F>(scales[m], slots[m], i / 2, t, p, F == Q6_K, lane), sum[i], to[i]);
                    }
                }
            }
        }
    }
    if constexpr (S::super) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
            correct<F>(acc[m], scales[m], sums32 + index * (TOKENS * 32), sums16 + index * (TOKENS * 64), lane);
    }
}
