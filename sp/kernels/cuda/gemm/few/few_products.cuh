// Two strips of a packed weight times up to 32 tokens, a stage at a time.
//
// A B fragment, read once from shared memory, serves both strips: with one strip a multiprocessor would spend more
// time on reading inputs than on reading weights. What has to be done for every weight is kept short:
//
//   super-blocks  in f16, see small_codes.cuh; d and the factor of the inputs (few_inputs.cuh) come last. The minima of
//                 Q4_K and Q5_K take one more product: (rows x groups) codes times (groups x tokens) sums of inputs,
//                 each sum as two bf16.
//   others        in bf16: codes as integers, whose scales multiply the float32 sums of a group of 32; minima multiply
//                 the sums of inputs, which an A of ones gives both strips; BF16 as it is.
#pragma once
#include "few_layout.cuh"
#include "small_codes.cuh"
#include "strip_products.cuh"

// Four 8x8 matrices as ldmatrix_x4 of mma.cuh reads them, but free to be moved over other reads.
SP_DEVICE void input_fragments(u32 (&b)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(address));
}

// acc += W X for one strip's super-block `index` of the slice, whose f16 sums are `sum`.
template <int F>
SP_DEVICE void add_super(f32 (&acc)[NT][4], const f32 (&sum)[NT][4], const Scales& scales, int index, int lane) {
    const f32* factors = reinterpret_cast<const f32*>(shared + FACTORS_AT) + index * TOKENS + lane % 4 * 2;
    const f32 d[2] = {scales.d[0] * SMALL_UNIT<F>, scales.d[1] * SMALL_UNIT<F>};
    u32 minima[4] = {};
    if constexpr (Packing<F>::minima)
#pragma unroll
        for (int r = 0; r < 2; ++r) minima[r] = minima[r + 2] = small_pair(scales.minima[r], lane & 1);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
        const float2 factor = *reinterpret_cast<const float2*>(factors + nt * 8);
        f32 lowest[4] = {};
        if constexpr (Packing<F>::minima) {
            const u8* sums = shared + SUMS_AT + (index * TOKENS + nt * 8 + lane / 4) * 32 + lane % 4 * 4;
            multiply_add(lowest, minima, load_u32(sums), load_u32(sums + 16));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            f32 value = d[i / 2] * sum[nt][i];
            if constexpr (Packing<F>::minima) value = fmaf(-scales.dmin[i / 2], lowest[i], value);
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
    const Scales scales[2] = {load_scales<S>(slots[0], lane), load_scales<S>(slots[1], lane)};
    f32 sums[2][NT][4] = {};
#pragma unroll
    for (int t = 0; t < S::tiles; ++t) {
        Quants<F> q[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) load_codes<S>(q[m], slots[m], t, lane);
#pragma unroll
        for (int p = 0; p < 2; ++p) {  // groups of 32 inputs: steps 2 p and 2 p + 1
            u32 a[2][2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    if constexpr (S::super) {
                        const int group = Packing<F>::group == 16 ? 4 * t + 2 * p + s : 2 * t + p;
                        SmallScale by[2];
#pragma unroll
                        for (int r = 0; r < 2; ++r) by[r] = small_scale<F>(scales[m].codes[r][group / 4], r, group % 4, 0x64646464u);
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            const u32 codes = small_codes<F>(q[m], 2 * p + s, j);
                            a[m][s][j] = Packing<F>::minima ? mul_f16x2(codes, by[j % 2].scale)
                                                            : fma_f16x2(codes, by[j % 2].scale, by[j % 2].bias);
                        }
                    } else if constexpr (Packing<F>::plain) {
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
                f32 inputs[4] = {};
                if constexpr (!S::super && Packing<F>::minima) {
                    multiply_ones(inputs, b[0], b[1]);
                    multiply_ones(inputs, b[2], b[3]);
                }
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    if constexpr (S::super) {
                        mma_f16(sums[m][nt], a[m][0], b[0], b[1]);
                        mma_f16(sums[m][nt], a[m][1], b[2], b[3]);
                    } else if constexpr (Packing<F>::plain) {
                        multiply_add(acc[m][nt], a[m][0], b[0], b[1]);
                        multiply_add(acc[m][nt], a[m][1], b[2], b[3]);
                    } else {
                        f32 sum[4] = {};
                        multiply_add(sum, a[m][0], b[0], b[1]);
                        multiply_add(sum, a[m][1], b[2], b[3]);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const f32 scale = group_scale<S>(scales[m], slots[m], i / 2, t, p, 0, lane);
                            acc[m][nt][i] = fmaf(scale, sum[i], acc[m][nt][i]);
                            if constexpr (Packing<F>::minima) {
                                const f32 offset = block_offset<S>(slots[m], 2 * t + p, lane / 4 + i / 2 * 8);
                                acc[m][nt][i] = fmaf(offset, inputs[i], acc[m][nt][i]);
                            }
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
