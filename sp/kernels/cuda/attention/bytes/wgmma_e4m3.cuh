// wgmma of e4m3 values with A in registers: D (64, N) += A (64, 32) B (32, N) in float32, N 72 or 136 (PTX ISA 9.7.16.5).
//
// B is in shared memory, K-major (rows of B^T, 128 bytes each), see wgmma_bytes.cuh for D and for what 32 bytes on are.
// A, four bytes a register, lowest k in the lowest byte, with g = lane / 4 and c = lane % 4 of warp w of the warpgroup:
//   a[0] = A[16 w + g][4c..], a[1] = A[16 w + g + 8][4c..], a[2] = A[16 w + g][16 + 4c..], a[3] = A[16 w + g + 8][16 + 4c..]
// Tensor cores read A until wgmma_wait. Registers of A are to be written between the wait before and the product: what is
// made earlier and copied, the compiler copies before that wait.
// D holds columns 8 j + 2c and 8 j + 2c + 1 of a row where A wants four in a row: a product of weights that were sums takes
// its keys in the order of key_place. sm_90a only.
#pragma once
#include "hopper.cuh"
#include "wgmma_bytes.cuh"

#define SP_E4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SP_E16(d, i) SP_E4(d, i), SP_E4(d, i + 4), SP_E4(d, i + 8), SP_E4(d, i + 12)

SP_DEVICE void wgmma_e4m3(f32 (&d)[36], const u32* a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35"
                 "}, {%36, %37, %38, %39}, %40, 1, 1, 1;"
                 : SP_E16(d, 0), SP_E16(d, 16), SP_E4(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

SP_DEVICE void wgmma_e4m3(f32 (&d)[68], const u32* a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67"
                 "}, {%68, %69, %70, %71}, %72, 1, 1, 1;"
                 : SP_E16(d, 0), SP_E16(d, 16), SP_E16(d, 32), SP_E16(d, 48), SP_E4(d, 64)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SP_E4
#undef SP_E16

// Nearest e4m3 values, past 448 that; `low` in the low byte.
SP_DEVICE u32 pack_e4m3(f32 low, f32 high) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

SP_DEVICE u32 pack_e4m3(f32 a, f32 b, f32 c, f32 d) { return pack_e4m3(a, b) | pack_e4m3(c, d) << 16; }

// Nothing is complete before wgmma_wait; these keep the compiler from reading D ahead of it.
template <int Sums>
SP_DEVICE void sums_ready(f32 (&d)[Sums]) {
#pragma unroll
    for (int i = 0; i < Sums; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

SP_DEVICE void sums_ready(i32 (&d)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

SP_DEVICE void sums_ready(u32 (&d)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
