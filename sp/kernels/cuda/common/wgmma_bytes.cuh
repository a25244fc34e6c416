// wgmma from K-major shared memory on both sides, 128-byte rows: m64nNk32 of signed bytes -> int32 and of e4m3 -> float32,
// m64nNk16 of bf16 -> float32 (PTX ISA 9.7.16.5). N is twice the length of `d`: 128 or 256.
// wgmma_halves of integers: they hold the bits of the float32 sums.
//
// d[4 i + 0..1] = D[16 w + g][8 i + 2 c..], d[4 i + 2..3] = D[16 w + g + 8][8 i + 2 c..] for warp w of the warpgroup,
// g = lane / 4, c = lane % 4. `a` and `b` are wgmma_descriptors; 32 bytes on is the next k-step. `accumulate` = 0 starts
// from zero. Between wgmma_fence and wgmma_wait `d` may not be touched. sm_90a only.
#pragma once
#include "types.cuh"

#define SP_O8(t, d, i) \
    t(d[i]), t(d[i + 1]), t(d[i + 2]), t(d[i + 3]), t(d[i + 4]), t(d[i + 5]), t(d[i + 6]), t(d[i + 7])
#define SP_O64(t, d)                                                                                            \
    SP_O8(t, d, 0), SP_O8(t, d, 8), SP_O8(t, d, 16), SP_O8(t, d, 24), SP_O8(t, d, 32), SP_O8(t, d, 40), SP_O8(t, d, 48), \
        SP_O8(t, d, 56)
#define SP_O128(t, d)                                                                                              \
    SP_O64(t, d), SP_O8(t, d, 64), SP_O8(t, d, 72), SP_O8(t, d, 80), SP_O8(t, d, 88), SP_O8(t, d, 96), SP_O8(t, d, 104), \
        SP_O8(t, d, 112), SP_O8(t, d, 120)
#define SP_FLOATS "+f"
#define SP_INTEGERS "+r"

#define SP_R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define SP_R64 \
    SP_R8(0, 1, 2, 3, 4, 5, 6, 7) \
    "," SP_R8(8, 9, 10, 11, 12, 13, 14, 15) \
    "," SP_R8(16, 17, 18, 19, 20, 21, 22, 23) \
    "," SP_R8(24, 25, 26, 27, 28, 29, 30, 31) \
    "," SP_R8(32, 33, 34, 35, 36, 37, 38, 39) \
    "," SP_R8(40, 41, 42, 43, 44, 45, 46, 47) \
    "," SP_R8(48, 49, 50, 51, 52, 53, 54, 55) \
    "," SP_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define SP_R128 \
    SP_R64 \
    "," SP_R8(64, 65, 66, 67, 68, 69, 70, 71) \
    "," SP_R8(72, 73, 74, 75, 76, 77, 78, 79) \
    "," SP_R8(80, 81, 82, 83, 84, 85, 86, 87) \
    "," SP_R8(88, 89, 90, 91, 92, 93, 94, 95) \
    "," SP_R8(96, 97, 98, 99, 100, 101, 102, 103) \
    "," SP_R8(104, 105, 106, 107, 108, 109, 110, 111) \
    "," SP_R8(112, 113, 114, 115, 116, 117, 118, 119) \
    "," SP_R8(120, 121, 122, 123, 124, 125, 126, 127)

// One function: its name, element of d, how many, N, shape and types, operands after the sums, what follows `p`.
#define SP_WGMMA(name, element, constraint, count, n, kinds, a_at, b_at, p_at, rest)                               \
    SP_DEVICE void name(element(&d)[count], u64 a, u64 b, u32 accumulate) {                                        \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, " p_at ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n    \
                     kinds " {" SP_R##count "}, " a_at ", " b_at ", p" rest ";\n\t}"                               \
                     : SP_O##count(constraint, d)                                                                  \
                     : "l"(a), "l"(b), "r"(accumulate));                                                           \
    }
#define SP_WGMMA_OF(count, n, a_at, b_at, p_at)                                                                      \
    SP_WGMMA(wgmma_bytes, i32, SP_INTEGERS, count, n, "k32.s32.s8.s8", a_at, b_at, p_at, "")                         \
    SP_WGMMA(wgmma_bytes, f32, SP_FLOATS, count, n, "k32.f32.e4m3.e4m3", a_at, b_at, p_at, ", 1, 1")                 \
    SP_WGMMA(wgmma_halves, i32, SP_INTEGERS, count, n, "k16.f32.bf16.bf16", a_at, b_at, p_at, ", 1, 1, 0, 0")        \
    SP_WGMMA(wgmma_halves, f32, SP_FLOATS, count, n, "k16.f32.bf16.bf16", a_at, b_at, p_at, ", 1, 1, 0, 0")

SP_WGMMA_OF(64, 128, "%64", "%65", "%66")
SP_WGMMA_OF(128, 256, "%128", "%129", "%130")

#undef SP_O8
#undef SP_O64
#undef SP_O128
#undef SP_FLOATS
#undef SP_INTEGERS
#undef SP_R8
#undef SP_R64
#undef SP_R128
#undef SP_WGMMA
#undef SP_WGMMA_OF
