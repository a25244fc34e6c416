// sum_terms: y[t, r] = x[t, r] + x[t, stride + r] + x[t, 2 stride + r], the products with the three BF16 terms of an F32 matrix.
//
// x f32 (weights, rows, 3 stride); y f32 or bf16, of each weight (rows, n) at a distance of `pitch` values, n <= stride;
// values = rows n. The smallest term is added first.
// Grid (ceil(values / 256), weights), 256 threads, a value each. sm_80+. Bound by memory. Defines: WIDE, whether y is f32.
#include "pdl.cuh"
#include "mma.cuh"

extern "C" __global__ void __launch_bounds__(256)
    sum_terms(const f32* x, u16* __restrict__ y, f32* __restrict__ wide, i64 values, i64 pitch, i32 n, i32 stride) {
    pdl_launch_dependents();
    pdl_wait();
    const i64 at = i64(blockIdx.x) * 256 + threadIdx.x;
    if (at >= values) return;
    const i64 row = at / n, rows = values / n, to = blockIdx.y * pitch + at;
    const f32* const from = x + (blockIdx.y * rows + row) * (3 * stride) + at % n;
    const f32 sum = from[2 * stride] + from[stride] + from[0];
    if (WIDE)
        wide[to] = sum;
    else
        y[to] = u16(pack_bf16(sum, 0));
}
