// The packed weights of a launch that takes up to four of them, as sp/kernels/specs/matmul/weights.py declares them.
#pragma once
#include "epilogue.cuh"
#include "types.cuh"

// A weight (rows, k) in fragment order, and where its results go: bf16 to `y` or float32 to `z`.
struct Weight {
    const u8* data;
    i32 kind, rows;
    u16* y;
    f32* z;
};

// gemv.cu and gemm_small_m.cu take `count` as another argument: as a member of these it makes the start of gemm_small_m
// longer.
struct Weights {
    Weight list[4];
    i32 count;
};

#define SP_WEIGHT_PARAMETERS                                    \
    const u8 *data0, i32 kind0, i32 rows0, u16 *y0, f32 *z0,    \
    const u8 *data1, i32 kind1, i32 rows1, u16 *y1, f32 *z1,    \
    const u8 *data2, i32 kind2, i32 rows2, u16 *y2, f32 *z2,    \
    const u8 *data3, i32 kind3, i32 rows3, u16 *y3, f32 *z3
#define SP_WEIGHTS                                                            \
    {{{data0, kind0, rows0, y0, z0}, {data1, kind1, rows1, y1, z1},           \
      {data2, kind2, rows2, y2, z2}, {data3, kind3, rows3, y3, z3}}, count}

// Weights of which each has outputs of its own; the two of SWIGLU share theirs.
constexpr int OWN_OUTPUTS = EPILOGUE == EPILOGUE_STORE ? 4 : 1;

// The weight at a place known at run time, from registers.
SP_DEVICE Weight pick(const Weights& weights, int which) {
    Weight w = weights.list[0];
#pragma unroll
    for (int i = 1; i < 4; ++i)
        if (which == i) w = weights.list[i];
    return w;
}
