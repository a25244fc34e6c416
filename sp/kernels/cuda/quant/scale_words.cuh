// Compact scales -> words of two bf16, one for a row and a group of 32 inputs, as the prefill kernels read them; what the
// halves mean is said at `a_fragment` in fragment.cuh.
//
// Every product below is exact in float32 (an f16 has 11 bits, a scale at most 8, the other factors are powers of two), so that
// a word does not depend on the kernel that makes it. Integers become floats as in fragment.cuh: a byte put into the
// fraction of 2^23 counts ones. Arches: 80+.
#pragma once
#include "fragment.cuh"

// Byte i of a word, less `middle`.
SP_DEVICE f32 byte_value(u32 word, u32 i, f32 middle) {
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7550u + i)) - (8388608.0f + middle);
}

// The word of a scale that covers 32 inputs, and what is added to a format's numbers besides.
template <int F>
SP_DEVICE u32 scale_word(f32 scale, f32 minimum = 0) {
    using P = Packing<F>;
    const f32 low = P::stride > 1 ? P::stride * scale : scale;
    if constexpr (P::lookup)
        return pack_bf16(low, -128.0f * scale);
    else if constexpr (P::minima)
        return pack_bf16(low, P::middle * scale + minimum);
    else if constexpr (P::centre != 0)
        return pack_bf16(low, P::centre * scale);
    else
        return pack_bf16(low, 0);
}

// A row's scales in one super-block, unpacked once for its 8 words. `Header`: its bytes of the plane `scales`; `delta`: its f16
// of the plane `deltas`, where there is one.
template <int F, bool Steps = Packing<F>::delta_bytes != 0, int Group = Packing<F>::group>
struct RowWords {
    typedef uint4 Header;
    f32 step, least;           // of scales and of minima
    u32 scales[2], minima[2];  // a byte a group

    SP_DEVICE void unpack(const Header& header, u16) {
        step = f32_from_f16(u16(header.x)), least = f32_from_f16(u16(header.x >> 16));
        scales[0] = header.y & 0x3F3F3F3Fu, minima[0] = header.z & 0x3F3F3F3Fu;
        scales[1] = (header.w & 0x0F0F0F0Fu) | (header.y >> 2 & 0x30303030u);
        minima[1] = (header.w >> 4 & 0x0F0F0F0Fu) | (header.z >> 2 & 0x30303030u);
    }

    // Of groups 2 k and 2 k + 1, k = 0..3.
    SP_DEVICE uint2 words(u32 k) const {
        const u32 scale = k < 2 ? scales[0] : scales[1], minimum = k < 2 ? minima[0] : minima[1], at = k % 2 * 2;
        return make_uint2(word(scale, minimum, at), word(scale, minimum, at + 1));
    }

    SP_DEVICE u32 word(u32 scale, u32 minimum, u32 at) const {
        const f32 low = step * byte_value(scale, at, 0);
        return pack_bf16(low, Packing<F>::middle * low - least * byte_value(minimum, at, 0));
    }
};

template <int F>
struct RowWords<F, true, 16> {
    typedef uint4 Header;
    f32 step;
    uint4 scales;  // a signed byte 16 inputs

    SP_DEVICE void unpack(const Header& header, u16 delta) { step = f32_from_f16(delta), scales = header; }

    SP_DEVICE uint2 words(u32 k) const {
        const u32 raised = (k < 2 ? k == 0 ? scales.x : scales.y : k == 2 ? scales.z : scales.w) ^ 0x80808080u;
        return make_uint2(pack_bf16(value(raised, 0), value(raised, 1)), pack_bf16(value(raised, 2), value(raised, 3)));
    }

    SP_DEVICE f32 value(u32 raised, u32 i) const { return step * byte_value(raised, i, 128); }
};

template <int F>
struct RowWords<F, true, 32> {
    typedef uint2 Header;
    f32 step;
    uint2 scales;  // a signed byte 32 inputs

    SP_DEVICE void unpack(const Header& header, u16 delta) { step = f32_from_f16(delta), scales = header; }

    SP_DEVICE uint2 words(u32 k) const {
        const u32 raised = (k < 2 ? scales.x : scales.y) ^ 0x80808080u, at = k % 2 * 2;
        return make_uint2(scale_word<F>(step * byte_value(raised, at, 128)),
                          scale_word<F>(step * byte_value(raised, at + 1, 128)));
    }
};

// The word of a block of 32 inputs: `scale` is its bytes of the plane `scales`, the lowest first. A power of two that is
// a denormal counts as 0, as products with it would.
template <int F>
SP_DEVICE u32 block_word(u32 scale) {
    using P = Packing<F>;
    if constexpr (P::scale_bytes == 1)
        return scale_word<F>((scale & 255) < 2 ? 0.0f : power_of_two(scale & 255));
    else if constexpr (P::minima)
        return scale_word<F>(f32_from_f16(u16(scale)), f32_from_f16(u16(scale >> 16)));
    else
        return scale_word<F>(f32_from_f16(u16(scale)));
}
