// Blocks as they lie in a GGUF file: the code and the float32 value of one element, bit for bit as sp.quant decodes it.
//
// `block` is a row's block, at an even address; k counts inside it. Products and sums are kept apart (no fused
// multiply-add), as NumPy rounds them. A K-quant value is a multiple of 2^-24 and so never a float32 denormal, which
// the compiler's -ftz would flush. Formats: https://github.com/ggml-org/ggml.
#pragma once
#include "fragment.cuh"

SP_DEVICE u16 load_u16(const u8* p) { return *reinterpret_cast<const u16*>(p); }

// Unsigned code; Q8_0 with 128 added, BF16 and F16 their bits. Where the bits of a plane lie is told at `Plane` in
// sp/quant/packing.py; `both`: values that share a run of bytes.
template <int F>
SP_DEVICE u32 raw_code(const u8* block, u32 k) {
    using P = Packing<F>;
    if constexpr (P::low_bits == 16) {
        return load_u16(block);
    } else if constexpr (P::low_bits == 8) {
        return block[P::low_at + k] ^ P::flip;
    } else {
        constexpr int low_both = P::low_run * 8 / P::low_bits;
        const u8* low = block + (P::low_at + k / low_both * P::low_run + k % P::low_run);
        u32 code = *low >> (k % low_both / P::low_run * P::low_bits) & ((1 << P::low_bits) - 1);
        if constexpr (P::high_bits > 0) {
            constexpr int high_both = P::high_run * 8 / P::high_bits;
            const u8* high = block + (P::high_at + k / high_both * P::high_run + k % P::high_run);
            code |= (*high >> (k % high_both / P::high_run * P::high_bits) & ((1 << P::high_bits) - 1)) << P::low_bits;
        }
        return code;
    }
}

// 6-bit scale and minimum j = 0..7 from the 12 bytes after d and dmin of Q4_K and Q5_K.
SP_DEVICE void affine_scale(const u8* s, int j, u32& scale, u32& minimum) {
    if (j < 4) {
        scale = s[j] & 63;
        minimum = s[j + 4] & 63;
    } else {
        scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        minimum = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

// Value of a code, given its scales: `header` the 16 bytes of K-quants or the f16 of a group of 32, `delta` Q6_K's f16;
// k counts inside the super-block (K-quants only).
template <int F>
SP_DEVICE f32 code_value(u32 code, const u8* header, const u8* delta, int k) {
    using P = Packing<F>;
    if constexpr (P::super && P::minima) {
        u32 scale, minimum;
        affine_scale(header + 4, k / 32, scale, minimum);
        f32 step = __fmul_rn(f32_from_f16(load_u16(header)), f32(scale));
        return __fsub_rn(__fmul_rn(f32(code), step), __fmul_rn(f32_from_f16(load_u16(header + 2)), f32(minimum)));
    } else if constexpr (P::super) {
        f32 step = __fmul_rn(f32_from_f16(load_u16(delta)), f32(reinterpret_cast<const i8*>(header)[k / P::group]));
        return __fmul_rn(f32(int(code) - P::zero), step);
    } else if constexpr (!P::plain) {
        return __fmul_rn(f32(int(code) - P::zero), f32_from_f16(load_u16(header)));
    } else if constexpr (F == F16) {
        return f32_from_f16(u16(code));
    } else {
        return f32_from_bf16(u16(code));
    }
}

template <int F>
SP_DEVICE f32 raw_value(const u8* block, int k) {
    if constexpr (F == F32) {
        return *reinterpret_cast<const f32*>(block);
    } else {
        using P = Packing<F>;
        return code_value<F>(raw_code<F>(block, k), block + P::scale_at, block + P::delta_at, k);
    }
}
