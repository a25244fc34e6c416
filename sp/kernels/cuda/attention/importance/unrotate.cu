// Rotary embedding undone: x[t, h] = rope(x[t, h], -positions[t]), in place; magnitude is one over that of the rotation.
//
// Layouts: x f16 (tokens, heads, d), positions i64 (tokens,), turns i64 (half,) as in rotary.cuh.
// Launch: 4 warps a block, a warp a (token, head) row. 16-byte aligned arrays. sm_80 and newer.
// Defines: HEAD_DIM; INTERLEAVED, see rotary.cuh.
#include "rotary.cuh"

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
unrotate(u16* x, const i64* positions, const i64* turns, i64 rows, i32 heads, i32 half,
         f32 magnitude) {
    __shared__ alignas(16) f32 scratch[WARPS][HEAD_DIM];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 row = i64(blockIdx.x) * WARPS + warp;
    if (row >= rows) return;
    HeadRow r = load_f16(x + row * HEAD_DIM, lane);
    rope(r, -positions[row / heads], turns, half, magnitude, scratch[warp], lane);
    store_f16(x + row * HEAD_DIM, r, lane);
}
