// The scales of a stage of a strip (strip.cuh), out of its ring slot.
#pragma once
#include "strip.cuh"

// Byte i (< 64) as 128 + byte, any byte as 32768 + byte.
SP_DEVICE f32 small_float(u32 bytes, int i) {
    return __uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044 | i << 8));
}
SP_DEVICE f32 large_float(u32 bytes, int i) {
    return __uint_as_float(__byte_perm(bytes, 0x47000000u, 0x7404 | i << 4));
}

// Bytes 2 i and 2 i + 1 as two bf16: bytes below 64; any byte, less 128.
SP_DEVICE u32 small_pair(u32 bytes, int i) {
    return fma_bf16x2(__byte_perm(bytes, 0x43434343u, i == 0 ? 0x4140 : 0x4342), BF16_ONE, 0xC300C300u);
}
SP_DEVICE u32 signed_pair(u32 bytes, int i) {
    const u32 b = __byte_perm(bytes, 0, i == 0 ? 0x4140 : 0x4342);
    return fma_bf16x2(masked_or(b, 0x007F007Fu, BF16_128), BF16_ONE, (b & 0x00800080u) ^ 0xC380C380u);
}

// The scales of a super-block for rows g and g + 8, as they come: `codes` a byte for each group of 32 (two words) or of 16
// inputs (four words), raised by 128 where there are no minima; `minima` the four bytes of which this lane needs two.
struct Scales {
    u32 codes[2][4], minima[2];
    f32 d[2], dmin[2];
};

template <class S>
SP_DEVICE Scales load_scales(const u8* slot, int lane) {
    using F = Packing<S::format>;
    Scales v = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = lane / 4 + 8 * r;
        if constexpr (!S::super) {
        } else if constexpr (F::minima) {
            const uint4 h = reinterpret_cast<const uint4*>(slot + S::scales_at)[row];
            v.d[r] = low_f16(h.x), v.dmin[r] = high_f16(h.x);
            v.codes[r][0] = h.y & 0x3f3f3f3fu, v.codes[r][1] = (h.w & 0x0f0f0f0fu) | ((h.y >> 2) & 0x30303030u);
            v.minima[r] = lane % 4 < 2 ? h.z & 0x3f3f3f3fu : ((h.w >> 4) & 0x0f0f0f0fu) | ((h.z >> 2) & 0x30303030u);
        } else if constexpr (F::group == 16) {
            const uint4 h = reinterpret_cast<const uint4*>(slot + S::scales_at)[row];
            v.d[r] = f32_from_f16(reinterpret_cast<const u16*>(slot + S::deltas_at)[row]);
#pragma unroll
            for (int i = 0; i < 4; ++i) v.codes[r][i] = word_of(h, i) ^ 0x80808080u;
        } else {
            const uint2 h = reinterpret_cast<const uint2*>(slot + S::scales_at)[row];
            v.d[r] = f32_from_f16(reinterpret_cast<const u16*>(slot + S::deltas_at)[row]);
            v.codes[r][0] = h.x ^ 0x80808080u, v.codes[r][1] = h.y ^ 0x80808080u;
        }
    }
    return v;
}

// Scale of group `group` of a stage of blocks of 32, for row `row` of the strip; and its minimum.
template <class S>
SP_DEVICE f32 block_scale(const u8* slot, int group, int row) {
    constexpr int bytes = Packing<S::format>::scale_bytes;
    const u8* at = slot + S::scales_at + (group * STAGE_ROWS + row) * bytes;
    if constexpr (bytes == 1)
        return power_of_two(*at);
    else
        return f32_from_f16(*reinterpret_cast<const u16*>(at));
}
template <class S>
SP_DEVICE f32 block_minimum(const u8* slot, int group, int row) {
    return f32_from_f16(reinterpret_cast<const u16*>(slot + S::scales_at)[(group * STAGE_ROWS + row) * 2 + 1]);
}

// Factors of group p (and where a scale covers 16 inputs its half s) of tile t of a stage, for rows g and g + 8.
template <class S>
SP_DEVICE f32 group_scale(const Scales& v, const u8* slot, int r, int t, int p, int s, int lane) {
    using F = Packing<S::format>;
    if constexpr (!S::super)
        return block_scale<S>(slot, 2 * t + p, lane / 4 + 8 * r);
    else if constexpr (F::minima)
        return fmaf(small_float(v.codes[r][t / 2], t % 2 * 2 + p), v.d[r], -128 * v.d[r]);
    else if constexpr (F::group == 16)
        return fmaf(large_float(v.codes[r][t], 2 * p + s), v.d[r], -32896 * v.d[r]);
    else
        return fmaf(large_float(v.codes[r][t / 2], t % 2 * 2 + p), v.d[r], -32896 * v.d[r]);
}

// What a minimum of blocks of 32 adds for a sum of inputs of 1, their integers being counted from the middle.
template <class S>
SP_DEVICE f32 block_offset(const u8* slot, int group, int row) {
    return fmaf(f32(Packing<S::format>::middle), block_scale<S>(slot, group, row), block_minimum<S>(slot, group, row));
}
