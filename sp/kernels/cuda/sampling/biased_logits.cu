// Logits of a few tokens changed by a bias and by penalties; those of the others stay as they are.
//
//   l = y[ids[i]] + biases[i];  l = l > 0 ? l / repeats[i] : l * repeats[i];  y[ids[i]] = l - shifts[i]
//
// Layouts: ids i32 (n), all different; biases, repeats, shifts f32 (n); y f32 (vocab), in place. Grid (ceil(n / 256)),
// 256 threads. sm_80+. A product and a difference are rounded apart, as NumPy rounds them.
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(256)
    biased_logits(const i32* __restrict__ ids, const f32* __restrict__ biases, const f32* __restrict__ repeats,
                  const f32* __restrict__ shifts, f32* y, i32 n) {
    const i32 i = i32(blockIdx.x) * 256 + i32(threadIdx.x);
    if (i >= n) return;
    const f32 l = __fadd_rn(y[ids[i]], biases[i]);
    const f32 scaled = l > 0.0f ? __fdiv_rn(l, repeats[i]) : __fmul_rn(l, repeats[i]);
    y[ids[i]] = __fsub_rn(scaled, shifts[i]);
}
