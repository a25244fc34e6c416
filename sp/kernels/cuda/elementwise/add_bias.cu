// add_bias: y = x + bias, row by row, rounded to bf16.
//
// x f32 (rows, cols); bias f32 (cols); y bf16 (rows, cols); cols % 8 == 0.
// Grid (rows, ceil(cols / 8 / 128)), 128 threads, 8 values each. 16-byte aligned rows. sm_80+. Bound by memory.
#include "pdl.cuh"
#include "mma.cuh"

extern "C" __global__ void __launch_bounds__(128)
    add_bias(const f32* x, const f32* __restrict__ bias, u16* __restrict__ y, i32 cols) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 at = (blockIdx.y * 128 + threadIdx.x) * 8;
    if (at >= cols) return;
    const i64 place = i64(blockIdx.x) * cols + at;
    const float4* const from = reinterpret_cast<const float4*>(x + place);
    const float4* const more = reinterpret_cast<const float4*>(bias + at);
    const float4 low = from[0], high = from[1], a = more[0], b = more[1];
    *reinterpret_cast<uint4*>(y + place) =
        make_uint4(pack_bf16(low.x + a.x, low.y + a.y), pack_bf16(low.z + a.z, low.w + a.w),
                   pack_bf16(high.x + b.x, high.y + b.y), pack_bf16(high.z + b.z, high.w + b.w));
}
