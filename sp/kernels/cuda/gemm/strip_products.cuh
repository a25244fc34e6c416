// A stage of a strip (strip.cuh) times tokens.
//
// Products are exact but for float32 sums: A holds integers, so nothing is rounded on the way to the tensor cores, and
// the scales multiply the float32 sums of a group. Of K-quants A holds the codes raised by 128; what that adds, and the
// minima of Q4_K and Q5_K, is taken off for a super-block at once, by one more product: (rows x groups) codes of scales
// or minima times (groups x tokens) sums of inputs, each sum as two bf16. The minima of blocks of 32 multiply the sums of
// their inputs, which an A of ones gives.
#pragma once
#include "strip_scales.cuh"

// Where a lane reads the inputs in shared memory, see strip_input.cuh. A lane whose token is not held reads another's,
// or nothing at all: its column of the result is never looked at.
struct Inputs {
    u32 x;            // bf16 in B-fragment order: 64 bytes a group of 32 inputs
    const u8* sums32; // 32 bytes a super-block and token: sums of 8 groups of 32 inputs as high and low bf16
    const u8* sums16; // 64 bytes: sums of 16 groups of 16
    bool held;
};

template <int T, int P>
SP_DEVICE Inputs inputs_of(const u8* x, const u8* sums32, const u8* sums16, int lane) {
    const int token = lane / 4 % T, c = lane % 4;
    const u32 at = shared_address(x) + token * P + c * 16;
    return {at, sums32 + token * 32 + c * 4, sums16 + token * 64 + c * 4, lane < 4 * T};
}

// B fragments of the two steps of a group of 32 inputs; whatever was in the registers where no token is held.
template <int T>
SP_DEVICE uint4 input_pair(u32 address, bool held) {
    uint4 v;
    if constexpr (T < 8)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0; @p ld.shared.v4.b32 {%0, %1, %2, %3}, [%5];}"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(int(held)), "r"(address));
    else
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(address));
    return v;
}

// d = a b + d as in mma.cuh, but free to be moved.
SP_DEVICE void multiply_add(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d = a b + d for an A of ones: of every row the sums of the columns.
SP_DEVICE void multiply_ones(f32 (&d)[4], u32 b0, u32 b1) {
    const u32 ones[4] = {BF16_ONE, BF16_ONE, BF16_ONE, BF16_ONE};
    multiply_add(d, ones, b0, b1);
}

SP_DEVICE u32 load_u32(const u8* p) { return *reinterpret_cast<const u32*>(p); }

// Whether A holds the codes raised by 128, for a super-block's one correction, and not the integers that they stand for.
template <class S>
constexpr bool RAISED = S::super && !Packing<S::format>::lookup && Packing<S::format>::stride == 1;

template <class S>
SP_DEVICE u32 operand(const Quants<S::format>& q, int s, int j) {
    using F = Packing<S::format>;
    if constexpr (RAISED<S>) {
        return raised_pair<S::format>(q, s, j);
    } else if constexpr (F::stride == 2) {  // 128 and twice the code, less 128 and what there is too much
        static_assert(F::low_bits == 4 && F::high_bits == 0, "codes of four bits");
        const u32 doubled = masked_or(shifted(word_of(q.low[0], s), 4 * j - 1), 0x001E001Eu, BF16_128);
        return fma_bf16x2(doubled, BF16_ONE, 0xC300C300u + (-F::first) * 0x00010001u);
    } else {
        return integer_pair<S::format>(q, s, j);
    }
}

// acc += W X for one stage; acc[nt][0..3] as D of mma.cuh: tokens 8 nt + 2 c, + 1 of rows g and g + 8.
template <class S, int T, int P, int N = (T + 7) / 8>
SP_DEVICE void multiply_stage(f32 (&acc)[N][4], const u8* slot, const Inputs& in, int index, int lane) {
    constexpr int FORMAT = S::format;
    using F = Packing<FORMAT>;
    const u32 x = in.x + index * (S::tiles * 128);
    const Scales scales = load_scales<S>(slot, lane);
#pragma unroll
    for (int t = 0; t < S::tiles; ++t) {
        Quants<FORMAT> q;
        load_codes<S>(q, slot, t, lane);
#pragma unroll
        for (int p = 0; p < 2; ++p) {  // groups of 32 inputs: steps 2 p and 2 p + 1
            u32 a[2][4];
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                if constexpr (F::plain) {
                    a_fragment<FORMAT>(a[s], q, 2 * p + s, 0, 0);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; ++j) a[s][j] = operand<S>(q, 2 * p + s, j);
                }
            }
#pragma unroll
            for (int nt = 0; nt < N; ++nt) {
                const uint4 b = input_pair<T>(x + (2 * t + p) * 64 + nt * 8 * P, in.held);
                if constexpr (F::plain) {
                    multiply_add(acc[nt], a[0], b.x, b.y);
                    multiply_add(acc[nt], a[1], b.z, b.w);
                } else if constexpr (F::group == 16) {
                    f32 first[4] = {}, second[4] = {};
                    multiply_add(first, a[0], b.x, b.y);
                    multiply_add(second, a[1], b.z, b.w);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        acc[nt][i] = fmaf(group_scale<S>(scales, slot, i / 2, t, p, 0, lane), first[i], acc[nt][i]);
                        acc[nt][i] = fmaf(group_scale<S>(scales, slot, i / 2, t, p, 1, lane), second[i], acc[nt][i]);
                    }
                } else {
                    f32 sum[4] = {};
                    multiply_add(sum, a[0], b.x, b.y);
                    multiply_add(sum, a[1], b.z, b.w);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        acc[nt][i] = fmaf(group_scale<S>(scales, slot, i / 2, t, p, 0, lane), sum[i], acc[nt][i]);
                    if constexpr (F::minima && !S::super) {
                        f32 inputs[4] = {};
                        multiply_ones(inputs, b.x, b.y);
                        multiply_ones(inputs, b.z, b.w);
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            acc[nt][i] = fmaf(block_offset<S>(slot, 2 * t + p, lane / 4 + i / 2 * 8), inputs[i], acc[nt][i]);
                    }
                }
            }
        }
    }
    if constexpr (F::minima && S::super) {
        u32 minima[4], codes[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            minima[r] = minima[r + 2] = small_pair(scales.minima[r], lane & 1);
            codes[r] = codes[r + 2] = small_pair(lane % 4 < 2 ? scales.codes[r][0] : scales.codes[r][1], lane & 1);
        }
#pragma unroll
        for (int nt = 0; nt < N; ++nt) {
            const u8* sums = in.sums32 + index * (T * 32) + nt * 256;
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
    } else if constexpr (RAISED<S>) {
        u32 codes[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            codes[r] = signed_pair(lane % 4 < 2 ? scales.codes[r][0] : scales.codes[r][1], lane & 1);
            codes[r + 2] = signed_pair(lane % 4 < 2 ? scales.codes[r][2] : scales.codes[r][3], lane & 1);
        }
#pragma unroll
        for (int nt = 0; nt < N; ++nt) {
            const u8* sums = in.sums16 + index * (T * 64) + nt * 512;
            f32 excess[4] = {};
            multiply_add(excess, codes, load_u32(sums), load_u32(sums + 16));
            multiply_add(excess, codes, load_u32(sums + 32), load_u32(sums + 48));
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[nt][i] = fmaf((-128 - F::middle) * scales.d[i / 2], excess[i], acc[nt][i]);
        }
    }
}
