// wgmma of one warpgroup, f16 x f16 into float32, for few columns: D (64, N) = A (64, 16) B (16, N), or D += A B.
//
// N, 8 to 64 in steps of 8, follows from D (N / 2 registers a thread). A comes from registers, B K-major from shared memory.
// Fragments, fences and waits as in wgmma_f16.cuh. PTX ISA 9.7.16.
#pragma once
#include "wgmma_f16.cuh"

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[4], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %9, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
                 "{%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, %8, p, 1, 1, 0;\n\t}"
                 : SP_D4(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[8], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %13, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, p, 1, 1, 0;\n\t}"
                 : SP_D4(d, 0), SP_D4(d, 4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[12], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %17, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
                 "{%12, %13, %14, %15}, %16, p, 1, 1, 0;\n\t}"
                 : SP_D4(d, 0), SP_D4(d, 4), SP_D4(d, 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[16], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n\t}"
                 : SP_D4(d, 0), SP_D4(d, 4), SP_D4(d, 8), SP_D4(d, 12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[20], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %25, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n40k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19}, "
                 "{%20, %21, %22, %23}, %24, p, 1, 1, 0;\n\t}"
                 : SP_D16(d, 0), SP_D4(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[24], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %29, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23}, "
                 "{%24, %25, %26, %27}, %28, p, 1, 1, 0;\n\t}"
                 : SP_D16(d, 0), SP_D4(d, 16), SP_D4(d, 20)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[28], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %33, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n56k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27}, "
                 "{%28, %29, %30, %31}, %32, p, 1, 1, 0;\n\t}"
                 : SP_D16(d, 0), SP_D4(d, 16), SP_D4(d, 20), SP_D4(d, 24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}

template <bool Accumulate>
SP_DEVICE void wgmma_few(f32 (&d)[32], const u32 (&a)[4], u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t}"
                 : SP_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(Accumulate)));
}
