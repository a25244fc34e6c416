// Short names of the scalar types, the by-value TMA descriptor, and conversions of bf16 and f16 held as raw bits.
//
// bf16 arrays are `u16` on both sides of a launch; f16 arrays are `u16` here and float16 in Python. No header is needed.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

// What cuTensorMapEncodeTiled fills; a kernel takes it as `const __grid_constant__ TensorMap map`.
struct alignas(64) TensorMap {
    u64 words[16];
};

#define SP_DEVICE __device__ __forceinline__

SP_DEVICE u16 bf16_from(f32 value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

SP_DEVICE f32 f32_from_bf16(u16 bits) { return __uint_as_float(u32(bits) << 16); }

// Two bf16 in one register, `low` in the low half, which comes first in memory.
SP_DEVICE u32 pack_bf16(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

SP_DEVICE f32 low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
SP_DEVICE f32 high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

SP_DEVICE u16 f16_from(f32 value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

SP_DEVICE f32 f32_from_f16(u16 bits) {
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// 2^(e - 128) of the byte e of a scale of MXFP4; the smallest two are denormal.
SP_DEVICE f32 power_of_two(u32 e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

SP_DEVICE u32 pack_f16(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Two f16, values past the range cut to +-65504 so that no infinity meets the tensor cores; `low` in the low half.
SP_DEVICE u32 pack_f16_finite(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

SP_DEVICE f32 low_f16(u32 pair) { return f32_from_f16(u16(pair)); }
SP_DEVICE f32 high_f16(u32 pair) { return f32_from_f16(u16(pair >> 16)); }
