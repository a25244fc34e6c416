// Blocks as they lie in a GGUF file: the code and the float32 value of one element, bit for bit as sp.quant decodes it.
//
// `block` is a row's block, at an even address; k counts inside it. Products and sums are kept apart (no fused
// multiply-add), as NumPy rounds them. A K-quant value is a multiple of 2^-24 and so never a float32 denormal, which
// the compiler's -ftz would flush. Formats: https://github.com/ggml-org/ggml.
#pragma once
#include "fragment.cuh"

enum { F32 = 0 };

template <int F>
struct RawBlock {
    static constexpr bool super = F == Q4_K || F == Q5_K || F == Q6_K;
    static constexpr int size = super ? 256 : F == Q8_0 || F == Q4_0 ? 32 : 1;
    static constexpr int super_bytes = F == Q4_K ? 144 : F == Q5_K ? 176 : 210;
    static constexpr int bytes = super ? super_bytes : F == Q8_0 ? 34 : F == Q4_0 ? 18 : F == F32 ? 4 : 2;
    static constexpr int span = super ? 256 : 64;  // the inputs that a tile's scales are stored for
    static constexpr int span_bytes = span / size * bytes;
};

SP_DEVICE u16 load_u16(const u8* p) { return *reinterpret_cast<const u16*>(p); }

// Unsigned code; Q8_0 with 128 added, BF16 and F16 their bits.
template <int F>
SP_DEVICE u32 raw_code(const u8* block, int k) {
    if constexpr (F == Q4_K || F == Q5_K) {
        int at = (F == Q4_K ? 16 : 48) + k / 64 * 32 + k % 32;
        u32 code = block[at] >> (k / 32 % 2 * 4) & 15;
        if constexpr (F == Q5_K) code |= (block[16 + k % 32] >> (k / 32) & 1) << 4;
        return code;
    } else if constexpr (F == Q6_K) {
        int half = k / 128, quarter = k / 32 % 4;
        u32 low = block[64 * half + k % 64] >> (quarter / 2 * 4) & 15;
        return low | (block[128 + 32 * half + k % 32] >> (2 * quarter) & 3) << 4;
    } else if constexpr (F == Q8_0) {
        return block[2 + k] ^ 128;
    } else if constexpr (F == Q4_0) {
        return block[2 + k % 16] >> (k / 16 * 4) & 15;
    } else {
        return load_u16(block);
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
    if constexpr (F == Q4_K || F == Q5_K) {
        u32 scale, minimum;
        affine_scale(header + 4, k / 32, scale, minimum);
        f32 step = __fmul_rn(f32_from_f16(load_u16(header)), f32(scale));
        return __fsub_rn(__fmul_rn(f32(code), step), __fmul_rn(f32_from_f16(load_u16(header + 2)), f32(minimum)));
    } else if constexpr (F == Q6_K) {
        f32 step = __fmul_rn(f32_from_f16(load_u16(delta)), f32(reinterpret_cast<const i8*>(header)[k / 16]));
        return __fmul_rn(f32(int(code) - 32), step);
    } else if constexpr (F == Q8_0 || F == Q4_0) {
        return __fmul_rn(f32(int(code) - (F == Q8_0 ? 128 : 8)), f32_from_f16(load_u16(header)));
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
        const u8* header = F == Q6_K ? block + 192 : block;
        return code_value<F>(raw_code<F>(block, k), header, block + 208, k);
    }
}
