// Values rounded to a byte: KIND 0 int8, KIND 1 e4m3, with one scale for a row.
//
//   scale = largest / 127 (448); code = rint(x / scale), halves to even. A row whose largest is below 2^-100 has scale
//   and codes 0; one that holds a NaN or a value from 2^100 on the scale NaN, whatever its codes.
// e4m3: compute capability 8.9 and later.
#pragma once
#include "mma.cuh"

// Rounding of a row with this absmax, given by its bits; `told` is the scale that is stored.
struct Rounding {
    f32 inverse, told;
};

SP_DEVICE Rounding rounding_of(u32 largest_bits) {
    const f32 largest = __uint_as_float(largest_bits);
    if (largest >= 0x1p-100f && largest < 0x1p100f) {
        const f32 scale = __fdiv_rn(largest, KIND == 0 ? 127.0f : 448.0f);
        return {__fdiv_rn(1.0f, scale), scale};
    }
    return {0.0f, largest < 0x1p-100f ? 0.0f : __uint_as_float(0x7fc00000u)};
}

SP_DEVICE u32 magnitude(f32 x) { return __float_as_uint(x) & 0x7fffffffu; }

#if KIND == 1
// Two values to e4m3, the first lowest.
SP_DEVICE u32 e4m3_of(f32 a, f32 b) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    return pair;
}
#endif

// Four values to four bytes, the first lowest.
SP_DEVICE u32 bytes_of(f32 a, f32 b, f32 c, f32 d, f32 inverse) {
#if KIND == 0
    const f32 whole = 12582912.0f;  // 1.5 * 2^23: the sum's low byte is the rounded value
    const u32 low = __byte_perm(__float_as_uint(__fadd_rn(__fmul_rn(a, inverse), whole)),
                                __float_as_uint(__fadd_rn(__fmul_rn(b, inverse), whole)), 0x0040);
    const u32 high = __byte_perm(__float_as_uint(__fadd_rn(__fmul_rn(c, inverse), whole)),
                                 __float_as_uint(__fadd_rn(__fmul_rn(d, inverse), whole)), 0x0040);
    return __byte_perm(low, high, 0x5410);
#else
    return e4m3_of(a * inverse, b * inverse) | e4m3_of(c * inverse, d * inverse) << 16;
#endif
}
