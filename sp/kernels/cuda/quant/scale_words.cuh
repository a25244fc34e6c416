// Compact scales -> words of two bf16, one for a row and a group of 32 inputs, as the prefill kernels read them; what the
// halves mean is said at `a_fragment` in fragment.cuh.
//
// Every product below is exact in float32 (an f16 has 11 bits, a scale at most 8), so that a word does not depend on who
// makes it. Arches: 80+.
#pragma once
#include "fragment.cuh"

// Group j = 0..7 of a row's super-block. `header`: its 16 bytes of the plane `scales`; `delta`: Q6_K's f16.
template <int F>
SP_DEVICE u32 scale_word(const uint4& header, u16 delta, int j) {
    if constexpr (F == Q6_K) {
        const u32 pair = word_of(header, j / 2) >> (16 * (j % 2));
        const f32 d = f32_from_f16(delta);
        return pack_bf16(d * f32(i8(pair)), d * f32(i8(pair >> 8)));
    } else {
        static_assert(Fragment<F>::affine, "K-quants");
        const int shift = 8 * (j % 4);
        const u32 first = header.y >> shift, second = header.z >> shift, third = header.w >> shift;
        const u32 scale = j < 4 ? first & 63 : (third & 15) | (first >> 2 & 48);
        const u32 minimum = j < 4 ? second & 63 : (third >> 4 & 15) | (second >> 2 & 48);
        const f32 low = f32_from_f16(u16(header.x)) * f32(scale);
        return pack_bf16(low, (F == Q4_K ? 8 : 16) * low - f32_from_f16(u16(header.x >> 16)) * f32(minimum));
    }
}

// Of Q8_0 and Q4_0, whose scale is an f16.
SP_DEVICE u32 scale_word(u16 scale) { return pack_bf16(f32_from_f16(scale), 0); }
