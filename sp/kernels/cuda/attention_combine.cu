// The sum of what the splits of attention_split.cu found, and what follows it.
//
//   out[r] = sum_s w[s, r] partial[s, r] / sum_s w[s, r],  w[s, r] = 2^reference[s, r] total[s, r]
//   then, where FINISH: hadamard_64(out) if ROTATE, * sigmoid(gate) if there is one; bf16.
//
// Layouts: partial f16 (kv_heads, splits, rows, d); states f32 (kv_heads, splits, rows, 2) of (reference, total); row r of a kv
//   head is query r / group, head r % group of the group; wide (n, heads, 2 d) bf16 or null; out (n, heads, d) bf16.
// Launch: n * heads blocks of WARPS warps, a block a row; a warp sums every WARPS-th split, and the first one what these found,
//   always in the same order. tokens_at, tokens, window as for attention_split. 16-byte aligned arrays. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; ROTATE; FINISH.
#include "early.cuh"
#include "head_row.cuh"
#include "softmax.cuh"
#include "split_range.cuh"

constexpr int WARPS = 4;
constexpr int TOGETHER = 9;  // splits a warp reads at once; one trip for 33 splits, 4 kv heads on 132 multiprocessors

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_combine(const u16* partial, const f32* states, const u16* wide, u16* out, const i32* tokens_at, i32 tokens,
                  i32 window, i32 splits, i32 rows, i32 n, i32 heads, i32 kv_heads) {
    let_next_start();
    const i32 lane = i32(threadIdx.x) % 32, warp = i32(threadIdx.x) / 32;
    const i32 at = i32(blockIdx.x), group = heads / kv_heads;
    const i32 kv_head = at % heads / group, row = at / heads * group + at % group;
    HeadWords open = {};
    if (FINISH && wide && warp == 0) open = reinterpret_cast<const HeadWords*>(wide + (2 * i64(at) + 1) * HEAD_DIM)[lane];
    tokens += tokens_at ? *tokens_at : 0;
    const i32 used = SplitRange(tokens, n, window, splits).used();
    wait_for_earlier();  // for attention_split alone, which let this kernel start when all before it was done
    const i64 first = i64(kv_head) * splits * rows + row;

    HeadRow r = {};
    f32 highest = NEVER, total = 0;
    for (i32 begin = warp; begin < used; begin += WARPS * TOGETHER) {
        float2 state[TOGETHER];
        HeadWords words[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const i32 split = begin + i * WARPS;
            const i64 from = first + i64(min(split, used - 1)) * rows;
            state[i] = reinterpret_cast<const float2*>(states)[from];
            words[i] = reinterpret_cast<const HeadWords*>(partial + from * HEAD_DIM)[lane];
            if (split >= used) state[i] = make_float2(NEVER, 0);
        }
        f32 now = highest;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) now = fmaxf(now, state[i].x);
        const f32 keep = exp2_fast(highest - now);
        highest = now, total *= keep;
#pragma unroll
        for (int j = 0; j < E; j++) r.x[j] *= keep;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const f32 weight = state[i].y * exp2_fast(state[i].x - now);
            total += weight;
#pragma unroll
            for (int j = 0; j < E; j++)
                r.x[j] += weight * (j % 2 ? high_f16(words[i].w[j / 2]) : low_f16(words[i].w[j / 2]));
        }
    }
    __shared__ f32 sums[WARPS][HEAD_DIM];
    __shared__ float2 found[WARPS];
#pragma unroll
    for (int j = 0; j < E; j++) sums[warp][j * 32 + lane] = r.x[j];
    if (lane == 0) found[warp] = make_float2(highest, total);
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int i = 1; i < WARPS; i++) highest = fmaxf(highest, found[i].x);
    r = {}, total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const f32 weight = exp2_fast(found[i].x - highest);
        total += weight * found[i].y;
#pragma unroll
        for (int j = 0; j < E; j++) r.x[j] += weight * sums[i][j * 32 + lane];
    }
#pragma unroll
    for (int j = 0; j < E; j++) r.x[j] /= total;
    if (FINISH && ROTATE) hadamard<64>(r, u32(lane));
    if (FINISH && wide) gate(r, open);
    store_bf16(out + i64(at) * HEAD_DIM, r, u32(lane));
}
