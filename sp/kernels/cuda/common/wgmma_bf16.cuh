// wgmma m64nNk16, bf16 x bf16 -> float32, A from registers and B from K-major shared memory (PTX ISA 9.7.16.5).
//
// d[4 i + 0..1] = D[16 w + g][8 i + 2 c..], d[4 i + 2..3] = D[16 w + g + 8][8 i + 2 c..] for warp w of the warpgroup,
// g = lane / 4, c = lane % 4; `a` as in mma.cuh for the warp's 16 rows. `b` is a wgmma_descriptor. `accumulate` = 0
// starts from zero. Between wgmma_fence and wgmma_wait neither `d` nor `a` may be touched. sm_90a only.
#pragma once
#include "types.cuh"

#define SP_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SP_D16(d, i) SP_D4(d, i), SP_D4(d, i + 4), SP_D4(d, i + 8), SP_D4(d, i + 12)
#define SP_D64(d, i) SP_D16(d, i), SP_D16(d, i + 16), SP_D16(d, i + 32), SP_D16(d, i + 48)

#define SP_R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define SP_FIRST_64                                                                                          \
    SP_R8(0, 1, 2, 3, 4, 5, 6, 7)                                                                            \
    "," SP_R8(8, 9, 10, 11, 12, 13, 14, 15) "," SP_R8(16, 17, 18, 19, 20, 21, 22, 23) "," SP_R8(             \
        24, 25, 26, 27, 28, 29, 30, 31) "," SP_R8(32, 33, 34, 35, 36, 37, 38, 39) "," SP_R8(40, 41, 42, 43, 44, 45, \
                                                                                            46, 47) ","      \
        SP_R8(48, 49, 50, 51, 52, 53, 54, 55) "," SP_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define SP_FIRST_32                                   \
    SP_R8(0, 1, 2, 3, 4, 5, 6, 7)                     \
    "," SP_R8(8, 9, 10, 11, 12, 13, 14, 15) "," SP_R8(16, 17, 18, 19, 20, 21, 22, 23) "," SP_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define SP_SECOND_64                                                                                         \
    SP_R8(64, 65, 66, 67, 68, 69, 70, 71)                                                                    \
    "," SP_R8(72, 73, 74, 75, 76, 77, 78, 79) "," SP_R8(80, 81, 82, 83, 84, 85, 86, 87) "," SP_R8(           \
        88, 89, 90, 91, 92, 93, 94, 95) "," SP_R8(96, 97, 98, 99, 100, 101, 102, 103) "," SP_R8(104, 105, 106, 107, \
                                                                                             108, 109, 110, 111) ","   \
        SP_R8(112, 113, 114, 115, 116, 117, 118, 119) "," SP_R8(120, 121, 122, 123, 124, 125, 126, 127)

SP_DEVICE void wgmma_bf16(f32 (&d)[128], const u32 (&a)[4], u64 b, u32 accumulate) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %133, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SP_FIRST_64 "," SP_SECOND_64
        "}, {%128,%129,%130,%131}, %132, p, 1, 1, 0;\n\t}"
        : SP_D64(d, 0), SP_D64(d, 64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

SP_DEVICE void wgmma_bf16(f32 (&d)[64], const u32 (&a)[4], u64 b, u32 accumulate) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %69, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SP_FIRST_64
        "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n\t}"
        : SP_D64(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

SP_DEVICE void wgmma_bf16(f32 (&d)[32], const u32 (&a)[4], u64 b, u32 accumulate) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SP_FIRST_32
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n\t}"
        : SP_D16(d, 0), SP_D16(d, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

#undef SP_D4
#undef SP_D16
#undef SP_D64
#undef SP_R8
#undef SP_FIRST_64
#undef SP_FIRST_32
#undef SP_SECOND_64
