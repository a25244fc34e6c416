// add_bias: y_i = x_i + bias_i, row by row, rounded to bf16, of up to three arrays in one launch.
//
// x_i f32 (rows_i, cols_i); bias_i f32 (cols_i); y_i bf16 (rows_i, cols_i); cols_i % 8 == 0; where there is no third or
// second array, its rows and cols are 0.
// Grid (most rows, sum of ceil(cols_i / 8 / 128)), 128 threads, 8 values each. 16-byte aligned rows. sm_80+. Bound by
// memory.
#include "pdl.cuh"
#include "mma.cuh"

#define EACH 8
#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
    add_bias(const f32* x0, const f32* bias0, u16* y0, i32 rows0, i32 cols0, const f32* x1, const f32* bias1, u16* y1,
             i32 rows1, i32 cols1, const f32* x2, const f32* bias2, u16* y2, i32 rows2, i32 cols2) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 first = (cols0 + EACH * THREADS - 1) / (EACH * THREADS), second = (cols1 + EACH * THREADS - 1) / (EACH * THREADS);
    const i32 column = i32(blockIdx.y), which = column < first ? 0 : column < first + second ? 1 : 2;
    const i32 inside = column - (which > 0 ? first : 0) - (which > 1 ? second : 0);
    const f32* const x = which == 0 ? x0 : which == 1 ? x1 : x2;
    const f32* const bias = which == 0 ? bias0 : which == 1 ? bias1 : bias2;
    u16* const y = which == 0 ? y0 : which == 1 ? y1 : y2;
    const i32 rows = which == 0 ? rows0 : which == 1 ? rows1 : rows2;
    const i32 cols = which == 0 ? cols0 : which == 1 ? cols1 : cols2;
    const i32 at = (inside * THREADS + i32(threadIdx.x)) * EACH;
    if (at >= cols || i32(blockIdx.x) >= rows) return;
    const i64 place = i64(blockIdx.x) * cols + at;
    const float4* const from = reinterpret_cast<const float4*>(x + place);
    const float4* const more = reinterpret_cast<const float4*>(bias + at);
    const float4 low = from[0], high = from[1], a = more[0], b = more[1];
    *reinterpret_cast<uint4*>(y + place) =
        make_uint4(pack_bf16(low.x + a.x, low.y + a.y), pack_bf16(low.z + a.z, low.w + a.w),
                   pack_bf16(high.x + b.x, high.y + b.y), pack_bf16(high.z + b.z, high.w + b.w));
}
