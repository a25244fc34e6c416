// Blocks as they lie in a GGUF file: the code and the float32 value of one element, bit for bit as sp.quant decodes it.
//
// `block` is a row's block, at an even address; k counts inside it. Products and sums are kept apart (no fused
// multiply-add), as NumPy rounds them. A value under float16 scales is a multiple of 2^-48 and so never a float32
// denormal, which the compiler's -ftz would flush; one of MXFP4 can be. Formats: https://github.com/ggml-org/ggml.
#pragma once
#include "fragment.cuh"

SP_DEVICE u16 load_u16(const u8* p) { return *reinterpret_cast<const u16*>(p); }

// The vectors of IQ3_S, a number a byte.
SP_DEVICE u32 iq3_s_vector(u32 which) {
    static const u32 grid[] = {SP_GRID_IQ3_S};
    return grid[which];
}

// Places in -15, -13, .. 15 of the signed numbers of a block of IQ3_S.
SP_DEVICE u32 iq3_s_code(const u8* block, u32 k) {
    const u8 *low = block + 2, *high = block + 66, *signs = block + 74;
    const u32 which = low[k / 4] | (high[k / 32] >> (k / 4 % 8) & 1) << 8;
    const u32 size = iq3_s_vector(which) >> (k % 4 * 8) & 255, negative = signs[k / 8] >> (k % 8) & 1;
    return (negative ? 15 - size : 15 + size) / 2;
}

// Unsigned code as the device holds it; Q8_0 with 128 added, BF16 and F16 their bits. The bits of a plane are described
// at `Plane` in sp/quant/packing.py; `both`: values that share a run of bytes.
template <int F>
SP_DEVICE u32 raw_code(const u8* block, u32 k) {
    using P = Packing<F>;
    if constexpr (P::vectors) {
        static_assert(F == IQ3_S);
        return iq3_s_code(block, k);
    } else if constexpr (P::low_bits == 16) {
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
        if constexpr (P::lookup) code = (code & 3) | (code & 4) << 1 | (code & 8) >> 1;
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

// The signed byte of a group, of formats whose scales the device keeps as such.
template <int F>
SP_DEVICE int raw_step(const u8* block, u32 group) {
    const u8* s = block + Packing<F>::scale_at;
    if constexpr (F == Q3_K) {
        return int((s[group % 8] >> (group / 8 * 4) & 15) | (s[8 + group % 4] >> (group / 4 * 2) & 3) << 4) - 32;
    } else if constexpr (F == IQ4_XS) {
        return int((s[2 + group / 2] >> (group % 2 * 4) & 15) | (s[group / 4] >> (group % 4 * 2) & 3) << 4) - 32;
    } else {
        static_assert(F == IQ3_S);
        return 1 + 2 * int(s[group / 2] >> (group % 2 * 4) & 15);
    }
}

// What a code stands for, but for its scale and minimum.
template <int F>
SP_DEVICE f32 code_number(u32 code) {
    using P = Packing<F>;
    if constexpr (P::lookup) {
        constexpr Table table = numbers_of<F>(false);
        const u32 word = code < 8 ? code < 4 ? table.words[0] : table.words[1] : code < 12 ? table.words[2] : table.words[3];
        return f32(i8(word >> (code % 4 * 8)));
    } else if constexpr (P::stride > 1) {
        return f32(P::stride * int(code) + P::first);
    } else {
        return f32(int(code) - P::zero);
    }
}

// a b, also where that is a denormal.
SP_DEVICE f32 multiply_denormals(f32 a, f32 b) {
    f32 product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

// Value of a code, given its scales as the device has them: `header` of the super-block or of a group of 32, `delta` an f16;
// k counts inside the super-block.
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
        return __fmul_rn(code_number<F>(code), step);
    } else if constexpr (P::minima) {
        return __fadd_rn(__fmul_rn(f32(code), f32_from_f16(load_u16(header))), f32_from_f16(load_u16(header + 2)));
    } else if constexpr (P::scale_bytes == 1) {
        return multiply_denormals(code_number<F>(code), power_of_two(*header));
    } else if constexpr (!P::plain) {
        return __fmul_rn(code_number<F>(code), f32_from_f16(load_u16(header)));
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
        const u32 code = raw_code<F>(block, k);
        if constexpr (P::steps)
            return __fmul_rn(code_number<F>(code),
                             __fmul_rn(f32_from_f16(load_u16(block + P::delta_at)), f32(raw_step<F>(block, k / P::group))));
        else
            return code_value<F>(code, block + P::scale_at, block + P::delta_at, k);
    }
}
