// The epilogue of attention, from its outputs to inputs of the output projection; and the rotation of queries.
//
//   gate_output  y = hadamard_64(out) * sigmoid(gate): the first where UNROTATE, the second where GATED; bf16
//   rotate_rows  y = hadamard_ROTATE(x) over consecutive blocks; f16
//   turn_keys    queries in the basis of K5 keys, y = H(x[order] * scale), or with TO_KEYS such keys back in
//                their first basis: y[order] = H(x) * scale + offset; H rotates by parts, see head_row.cuh; f16
//
// Layouts, rows = tokens * heads: gate_output out and y (rows, d) bf16, wide (rows, 2 d) bf16 with the gate in the second
//   half; the others x and y (rows, d) f16; order i32, offset and scale f32 (heads / group, d), row r being head
//   r % heads.
// Launch: 4 warps a block, a warp a row. 16-byte aligned arrays. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256, 512; UNROTATE, GATED; or ROTATE (64 or HEAD_DIM); or TO_KEYS.
#include "head_row.cuh"

constexpr int WARPS = 4;

#ifdef GATED
extern "C" __global__ void __launch_bounds__(32 * WARPS) gate_output(const u16* out, const u16* wide, u16* y, i64 rows) {
    const u32 lane = threadIdx.x % 32;
    const i64 row = i64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    HeadRow r = load_bf16(out + row * HEAD_DIM, lane);
    if (UNROTATE) hadamard<64>(r, lane);
    if (GATED) gate(r, reinterpret_cast<const HeadWords*>(wide + (2 * row + 1) * HEAD_DIM)[lane]);
    store_bf16(y + row * HEAD_DIM, r, lane);
}
#endif

#ifdef ROTATE
extern "C" __global__ void __launch_bounds__(32 * WARPS) rotate_rows(const u16* x, u16* y, i64 rows) {
    const u32 lane = threadIdx.x % 32;
    const i64 row = i64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    HeadRow r = load_f16(x + row * HEAD_DIM, lane);
    hadamard<ROTATE>(r, lane);
    store_f16(y + row * HEAD_DIM, r, lane);
}
#endif

#ifdef TO_KEYS
extern "C" __global__ void __launch_bounds__(32 * WARPS)
turn_keys(const u16* x, const i32* order, const f32* offset, const f32* scale, u16* y, i64 rows, i32 heads, i32 group) {
    __shared__ f32 scratch[WARPS][HEAD_DIM];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 row = i64(blockIdx.x) * WARPS + warp;
    if (row >= rows) return;
    const int first = int(row % heads) / group * HEAD_DIM;
    HeadRow r = load_f16(x + row * HEAD_DIM, lane);
    if (TO_KEYS) hadamard<HEAD_DIM, true>(r, lane);
#pragma unroll
    for (int i = 0; i < E; i++) {
        const int at = int(lane) * E + i;
        if (TO_KEYS) scratch[warp][order[first + at]] = __fadd_rn(__fmul_rn(r.x[i], scale[first + at]), offset[first + at]);
        else scratch[warp][at] = r.x[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < E; i++) {
        const int at = int(lane) * E + i;
        r.x[i] = TO_KEYS ? scratch[warp][at] : __fmul_rn(scratch[warp][order[first + at]], scale[first + at]);
    }
    if (!TO_KEYS) hadamard<HEAD_DIM, true>(r, lane);
    store_f16(y + row * HEAD_DIM, r, lane);
}
#endif
