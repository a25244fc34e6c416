// One token times one stage of a K-quant strip, in integers: the inner loop of plain decoding.
//
// Inputs are fixed-point numbers of 16 bits with one factor for 256 of them, v = 256 high + low, both bytes signed:
// closer to float32 than bf16 is. Codes are bytes as they are masked out of their words. One mma.m16n8k32 takes a group
// of 32 inputs, and since there is one token, the eight columns of B hold eight *groups*: B is zero but for the column
// of the group at hand. So all groups of a super-block add up in one accumulator, each in its own column, and a lane
// scales four sums where a column a token would have it scale every group's. Q6_K has a scale for 16 inputs: each k16
// half goes to its own column.
//
// Shared memory of a super-block: [group of 32][high bytes of 16, of 16, low bytes of 16, of 16], then 16 zero bytes,
// 528 in all. Inside 16 inputs, lane c of a quad owns bytes 2 c, 2 c + 8, 2 c + 1, 2 c + 9: the order the masked words
// have.
#pragma once
#include "strip.cuh"

enum OneToken { ONE_BYTES = 528, ONE_ZERO = 512 };

SP_DEVICE void multiply_bytes(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Where a lane finds its rows for ldmatrix: the group's bytes in its column, zeros in the others.
struct OneInputs {
    u32 base;
    u32 offset[8];  // by group
    const f32 *sums32, *sums16, *factors;  // of the integers, a group of 32 or 16; factor of a super-block

    // For the format of the strip at hand.
    SP_DEVICE void aim(bool halves, int lane) {
        const int part = lane / 8;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int column = halves ? (2 * j + part % 2) % 8 : j;
            offset[j] = lane % 8 == column ? j * 64 + part * 16 : ONE_ZERO;
        }
    }
};

// The codes of rows g and g + 8 (r = 0, 1) in step s, a byte each.
template <int F>
SP_DEVICE u32 code_bytes(const Quants<F>& q, int s, int r) {
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

// acc[r] += this lane's share of row g + 8 r; the row's sum is that of its four lanes.
template <int F>
SP_DEVICE void multiply_one(f32 (&acc)[2], const u8* slot, const OneInputs& in, int index, int lane) {
    using S = Stage<F>;
    constexpr int halves = Packing<F>::group == 16 ? 2 : 1;  // accumulators: Q6_K has sixteen groups
    const int c = lane % 4;
    const u32 base = in.base + index * ONE_BYTES;
    int high[halves][4] = {}, low[halves][4] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        Quants<F> q;
        q.low[0] = reinterpret_cast<const uint4*>(slot + t * 512)[lane];
        load_high<F>(q, slot + S::high_at + t * (S::high / S::tiles), lane);
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const int group = 2 * t + p, into = group / 4 % halves;
            u32 b[4];
            ldmatrix_x4(b, base + in.offset[group]);
            const u32 a[4] = {code_bytes<F>(q, 2 * p, 0), code_bytes<F>(q, 2 * p, 1), code_bytes<F>(q, 2 * p + 1, 0),
                              code_bytes<F>(q, 2 * p + 1, 1)};
            multiply_bytes(high[into], a, b[0], b[1]);
            multiply_bytes(low[into], a, b[2], b[3]);
        }
    }
    const f32 factor = in.factors[index];
    const u32 first = (c & 1) * 2;  // of this lane's two bytes in their word
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const uint4 h = reinterpret_cast<const uint4*>(slot + S::scales_at)[lane / 4 + 8 * r];
        f32 sum = 0;
        if constexpr (Packing<F>::group == 16) {
            const f32 d = f32_from_f16(reinterpret_cast<const u16*>(slot + S::deltas_at)[lane / 4 + 8 * r]);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 codes = i == 0 ? (c < 2 ? h.x : h.y) : (c < 2 ? h.z : h.w);
                const float2 s = reinterpret_cast<const float2*>(in.sums16 + index * 16 + i * 8)[c];
                const f32 scale0 = f32(i8(codes >> (8 * first))), scale1 = f32(i8(codes >> (8 * first + 8)));
                sum = fmaf(scale0, fmaf(-Packing<F>::zero, s.x, f32(high[i][2 * r] * 256 + low[i][2 * r])), sum);
                sum = fmaf(scale1, fmaf(-Packing<F>::zero, s.y, f32(high[i][2 * r + 1] * 256 + low[i][2 * r + 1])), sum);
            }
            acc[r] = fmaf(d * factor, sum, acc[r]);
        } else {
            const u32 codes = c < 2 ? h.y & 0x3f3f3f3fu : (h.w & 0x0f0f0f0fu) | ((h.y >> 2) & 0x30303030u);
            const u32 minima = c < 2 ? h.z & 0x3f3f3f3fu : ((h.w >> 4) & 0x0f0f0f0fu) | ((h.z >> 2) & 0x30303030u);
            const float2 s = reinterpret_cast<const float2*>(in.sums32 + index * 8)[c];
            const f32 scale0 = f32(codes >> (8 * first) & 255), scale1 = f32(codes >> (8 * first + 8) & 255);
            sum = scale0 * f32(high[0][2 * r] * 256 + low[0][2 * r]);
            sum = fmaf(scale1, f32(high[0][2 * r + 1] * 256 + low[0][2 * r + 1]), sum);
            f32 lowest = f32(minima >> (8 * first) & 255) * s.x;
            lowest = fmaf(f32(minima >> (8 * first + 8) & 255), s.y, lowest);
            acc[r] = fmaf(low_f16(h.x) * factor, sum, acc[r]);
            acc[r] = fmaf(-high_f16(h.x) * factor, lowest, acc[r]);
        }
    }
}

// 256 inputs of a super-block, 4 lane + 128 i + (0..3) in v[i], to shared memory as 16-bit fixed point with their sums.
template <bool With32, bool With16>
SP_DEVICE void store_one(u8* x, f32* sums32, f32* sums16, f32* factors, int super, const f32 (&v)[2][4], int lane) {
    f32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i / 4][i % 4]));
    largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)));
    const f32 scale = largest > 1e-33f ? 32512 / largest : 0;
    if (lane == 0) factors[super] = largest / 32512;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int k = 128 * i + 4 * lane;
        u32 high = 0, low = 0;
        int sum = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int q = __float2int_rn(v[i][j] * scale), top = (q + 128) >> 8;
            high |= u32(top & 255) << (8 * j);
            low |= u32(q & 255) << (8 * j);  // q - 256 top, whose low byte is q's
            sum += q;
        }
        const bool second = k & 8;  // the lane two on holds the inputs 8 further: each writes one of their two words
        const u32 high2 = __shfl_xor_sync(0xffffffffu, high, 2), low2 = __shfl_xor_sync(0xffffffffu, low, 2);
        u8* to = x + super * ONE_BYTES + k / 32 * 64 + k / 16 % 2 * 16 + (k % 8 / 2 + second) * 4;
        *reinterpret_cast<u32*>(to) = second ? __byte_perm(high2, high, 0x7362) : __byte_perm(high, high2, 0x5140);
        *reinterpret_cast<u32*>(to + 32) = second ? __byte_perm(low2, low, 0x7362) : __byte_perm(low, low2, 0x5140);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (With16 && lane % 4 == 0) sums16[super * 16 + k / 16] = f32(sum);
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        if (With32 && lane % 8 == 0) sums32[super * 8 + k / 32] = f32(sum);
    }
    if (lane < 4) reinterpret_cast<u32*>(x + super * ONE_BYTES + ONE_ZERO)[lane] = 0;
}
