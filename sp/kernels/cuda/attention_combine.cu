// The sum of what the splits of attention_portable.cu (SPLIT) found, and what follows it.
//
//   out[r] = sum_s 2^(reference[s, r] - highest[r]) partial[s, r] / sum_s 2^(reference[s, r] - highest[r]) total[s, r]
//   then, where FINISH: hadamard_64(out) if ROTATE, * sigmoid(gate) if there is one; bf16.
//
// Layouts: partial f32 (kv_heads, splits, rows, d), then (kv_heads, splits, rows) pairs (reference, total); row r of a kv head
//   is query r / group, head r % group of the group; wide (n, heads, 2 d) bf16 or null; out (n, heads, d) bf16.
// Launch: 4 warps a block, a warp one of the n * heads rows; splits are summed in order. 16-byte aligned arrays. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; ROTATE; FINISH.
#include "head_row.cuh"
#include "split_range.cuh"

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_combine(const f32* partial, const u16* wide, u16* out, const i32* tokens_at, i32 tokens, i32 splits, i32 rows,
                  i32 n, i32 heads, i32 kv_heads) {
    const u32 lane = threadIdx.x % 32;
    const i32 at = i32(blockIdx.x) * WARPS + i32(threadIdx.x) / 32, group = heads / kv_heads;
    if (at >= n * heads) return;
    const i32 kv_head = at % heads / group, row = at / heads * group + at % group;
    tokens += tokens_at ? *tokens_at : 0;
    const i32 span = split_span(tokens, splits), used = (tokens + span - 1) / span;
    const float2* states = reinterpret_cast<const float2*>(partial + i64(kv_heads) * splits * rows * HEAD_DIM);
    const i64 first = i64(kv_head) * splits * rows + row;

    f32 highest = -1e30f;
    for (i32 split = int(lane); split < used; split += 32) highest = fmaxf(highest, states[first + i64(split) * rows].x);
    highest = warp_max(highest);
    HeadRow r = {};
    f32 total = 0;
#pragma unroll 4
    for (i32 split = 0; split < used; split++) {
        const float2 state = states[first + i64(split) * rows];
        const f32 weight = exp2f(state.x - highest);
        total += weight * state.y;
        const f32* values = partial + (first + i64(split) * rows) * HEAD_DIM + lane * E;
#pragma unroll
        for (int i = 0; i < E; i++) r.x[i] += weight * values[i];
    }
#pragma unroll
    for (int i = 0; i < E; i++) r.x[i] /= total;
    if (FINISH && ROTATE) hadamard<64>(r, lane);
    if (FINISH && wide) gate(r, reinterpret_cast<const HeadWords*>(wide + (2 * i64(at) + 1) * HEAD_DIM)[lane]);
    store_bf16(out + i64(at) * HEAD_DIM, r, lane);
}
