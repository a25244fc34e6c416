// One unit of a weight, 64 rows x 256 inputs, times up to 64 tokens: the inner loop of gemm_small_m_sm90.cu.
//
// A warp takes the codes of its 16 rows out of the ring and makes A operands of them (small_codes.cuh), a group of 32 or
// 64 inputs while wgmma multiplies the one before; what it does so does not depend on the number of tokens. The minima of
// Q4_K and Q5_K take two more products: (rows x groups) codes times (groups x tokens) means of inputs, in two parts.
// Nothing is rounded but products of Q6_K and of numbers that are looked up, to 11 bits, and float32 sums.
#pragma once
#include "few_sm90_work.cuh"
#include "small_codes.cuh"
#include "wgmma_few.cuh"

constexpr int SUMS = TOKENS / 2;  // of a thread: D of wgmma_few

// A thread has 128 registers. Above 32 tokens two sets of sums leave room for operands of 32 inputs at a time, and none
// for sums of the minima: those are added before the others begin.
constexpr bool MANY = TOKENS > 32;
constexpr int STEPS = MANY ? 2 : 4;  // of 16 inputs, in a group

// Scales of rows g and g + 8 of a warp: `codes` a byte for each group of 32 (two words) or of 16 inputs (four words),
// raised by 128 where there are no minima; `minima` of 8 groups.
struct RowScales {
    u32 codes[2][4], minima[2][2];
    f32 d[2], dmin[2];
};

// `unit`: where the unit lies in shared memory, `row`: g of the warp's rows.
template <int F>
SP_DEVICE RowScales row_scales(const u8* unit, int row) {
    RowScales v;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if constexpr (Unit<F>::deltas > 0)
            v.d[r] = f32_from_f16(reinterpret_cast<const u16*>(unit + Unit<F>::deltas_at)[row + 8 * r]);
        if constexpr (Unit<F>::deltas > 0 && Packing<F>::group == 32) {
            const uint2 h = reinterpret_cast<const uint2*>(unit + Unit<F>::scales_at)[row + 8 * r];
            v.codes[r][0] = h.x ^ 0x80808080u, v.codes[r][1] = h.y ^ 0x80808080u;
        } else if constexpr (Unit<F>::deltas > 0) {
            const uint4 h = reinterpret_cast<const uint4*>(unit + Unit<F>::scales_at)[row + 8 * r];
#pragma unroll
            for (int i = 0; i < 4; ++i) v.codes[r][i] = word_of(h, i) ^ 0x80808080u;
        } else {
            const uint4 h = reinterpret_cast<const uint4*>(unit + Unit<F>::scales_at)[row + 8 * r];
            v.d[r] = low_f16(h.x), v.dmin[r] = high_f16(h.x);
            v.codes[r][0] = h.y & 0x3f3f3f3fu;
            v.codes[r][1] = (h.w & 0x0f0f0f0fu) | ((h.y >> 2) & 0x30303030u);
            v.minima[r][0] = h.z & 0x3f3f3f3fu;
            v.minima[r][1] = ((h.w >> 4) & 0x0f0f0f0fu) | ((h.z >> 2) & 0x30303030u);
        }
    }
    return v;
}

// A operands of STEPS steps of a tile, from step `first` on.
template <int F>
SP_DEVICE void make_operands(u32 (&a)[STEPS][4], const Quants<F>& q, const RowScales& scales, int tile, int first, u32 upper) {
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
        const int s = first + i;
        const int group = Packing<F>::group == 16 ? 4 * tile + s : 2 * tile + s / 2;
        SmallScale by[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const SmallScale pair = small_scales<F>(scales.codes[r][group / 4], r, group % 4 & 2, upper);
            by[r] = {half_twice(pair.scale, group % 2), half_twice(pair.bias, group % 2)};
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32 codes = small_codes<F>(q, s, j);
            a[i][j] = Packing<F>::minima ? mul_f16x2(codes, by[j % 2].scale) : fma_f16x2(codes, by[j % 2].scale, by[j % 2].bias);
        }
    }
}

// acc += W X for a unit, whose slot is given free by `release` as soon as it has been read. `x`, `means`: descriptors of
// the unit's inputs and of their means; `upper`: upper_bytes().
template <int F, class Release>
SP_DEVICE void multiply_unit(f32 (&acc)[SUMS], const u8* unit, u64 x, u64 means, u32 upper, int thread,
                             Release release) {
    constexpr bool minima = Packing<F>::minima;
    const int warp = thread / 32, lane = thread % 32;
    constexpr bool at_once = TOKENS < 32;  // all codes, as far as there are registers for them
    Quants<F> q[4];
    const auto load = [&](int t) {
        load_quants<F>(q[t], unit + t * Packing<F>::low_bytes, unit + Unit<F>::high_at + t * Packing<F>::high_bytes, thread);
    };
    const RowScales scales = row_scales<F>(unit, 16 * warp + lane / 4);
    constexpr int FIRST = at_once ? 4 : MANY ? 1 : 2;  // tiles whose codes are loaded before the first product
    const auto load_first = [&] {
#pragma unroll
        for (int t = 0; t < FIRST; ++t) load(t);
        if constexpr (at_once) release();
    };
    if constexpr (!MANY || !minima) load_first();

    f32 sums[MANY ? 1 : 2][SUMS];
    f32(&sum)[SUMS] = sums[0], (&lowest)[SUMS] = sums[MANY ? 0 : 1];
    u32 a[2][STEPS][4], m[4];
    const auto multiply_means = [&] {
        wgmma_few<false>(lowest, m, means);
        wgmma_few<true>(lowest, m, means + 2);
    };
    const auto add_means = [&] {
        accumulators_ready(lowest);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) acc[i] = fmaf(scales.dmin[i / 2 % 2] * -16.0f, lowest[i], acc[i]);
    };
    if constexpr (minima) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // two columns, of one group
            const u32 raised = __byte_perm(scales.minima[j % 2][j / 2], upper, 0x4040 | lane % 4 * 0x0101);
            m[j] = fma_f16x2(raised, 0x3C003C00u, 0xE400E400u);
        }
    }
    if constexpr (minima && MANY) {
        wgmma_fence();
        multiply_means();
        wgmma_commit();
        load_first();
        wgmma_wait<0>();
        add_means();
    }
#pragma unroll
    for (int g = 0; g < 16 / STEPS; ++g) {
        const int t = g * STEPS / 4, first = g * STEPS % 4;
        make_operands<F>(a[g % 2], q[t], scales, t, first, upper);
        wgmma_fence();
        if constexpr (minima && !MANY) {
            if (g == 0) multiply_means();
        }
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const u64 b = x + (t * (TOKENS * 128 / 16) + 2 * (first + i));
            if (g == 0 && i == 0)
                wgmma_few<false>(sum, a[g % 2][i], b);
            else
                wgmma_few<true>(sum, a[g % 2][i], b);
        }
        wgmma_commit();
        if constexpr (!at_once) {  // the codes of one tile more
            if (first + STEPS == 4 && t + FIRST < 4) {
                load(t + FIRST);
                if (t + FIRST == 3) release();
            }
        }
        if (g > 0) wgmma_wait<1>();
    }
    wgmma_wait<0>();
    accumulators_ready(sum);
#pragma unroll
    for (int i = 0; i < SUMS; ++i) acc[i] = fmaf(scales.d[i / 2 % 2] * SMALL_UNIT<F>, sum[i], acc[i]);
    if constexpr (minima && !MANY) add_means();
}
