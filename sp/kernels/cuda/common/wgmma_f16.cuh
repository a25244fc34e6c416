// wgmma of one warpgroup (128 threads), f16 x f16 into float32: D (64, N) += A (64, 16) B (16, N), PTX ISA 9.7.16.
//
// Names say where A lives: `ss` in shared memory, `rs` in registers; N follows from D. B is in shared memory: `ss`
// takes it K-major (rows of B^T, as K in Q K^T), `rs` MN-major (rows of B, as V in P V). Descriptors: hopper.cuh.
// D of thread t, with row = 16 * (t / 32) + (t % 32) / 4 and column = 2 * (t % 4):
//   d[4j + 0..1] = D[row][8j + column + 0..1], d[4j + 2..3] = D[row + 8][8j + column + 0..1]
// A in registers is the fragment of mma.cuh, 16 rows a warp: two neighbouring groups j of D, packed, are an A.
// Nothing is complete before wgmma_wait; accumulators_ready then keeps the compiler from reading D ahead of that wait.
#pragma once
#include "hopper.cuh"

#define SP_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SP_D16(d, i) SP_D4(d, i), SP_D4(d, i + 4), SP_D4(d, i + 8), SP_D4(d, i + 12)
#define SP_D32(d, i) SP_D16(d, i), SP_D16(d, i + 16)
#define SP_D64(d, i) SP_D32(d, i), SP_D32(d, i + 32)

#define SP_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SP_R32                                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SP_R64                                                                                                         \
    SP_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                        \
           "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SP_R128                                                                                                        \
    SP_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                        \
           "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                          \
           "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "              \
           "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// D = A B where `accumulate` is false.
SP_DEVICE void wgmma_ss(f32 (&d)[16], u64 a, u64 b, bool accumulate) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" SP_R16 "}, %16, %17, p, 1, 1, 0, 0;\n\t}"
                 : SP_D16(d, 0)
                 : "l"(a), "l"(b), "r"(i32(accumulate)));
}

SP_DEVICE void wgmma_ss(f32 (&d)[32], u64 a, u64 b, bool accumulate) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SP_R32 "}, %32, %33, p, 1, 1, 0, 0;\n\t}"
                 : SP_D32(d, 0)
                 : "l"(a), "l"(b), "r"(i32(accumulate)));
}

SP_DEVICE void wgmma_ss(f32 (&d)[64], u64 a, u64 b, bool accumulate) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SP_R64 "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
                 : SP_D64(d, 0)
                 : "l"(a), "l"(b), "r"(i32(accumulate)));
}

SP_DEVICE void wgmma_rs(f32 (&d)[32], const u32* a, u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SP_R32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n\t}"
                 : SP_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

SP_DEVICE void wgmma_rs(f32 (&d)[64], const u32* a, u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SP_R64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t}"
                 : SP_D64(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

SP_DEVICE void wgmma_rs(f32 (&d)[128], const u32* a, u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" SP_R128
                 "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1;\n\t}"
                 : SP_D64(d, 0), SP_D64(d, 64)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <int Count>
SP_DEVICE void accumulators_ready(f32 (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
