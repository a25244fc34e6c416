// Combines the splits of attention_split.cu or attention_decode.cu, then applies the epilogue of attention.
//
//   out[r] = sum_s w[s, r] partial[s, r] / (sum_s w[s, r] + e^sink),  w[s, r] = 2^reference[s, r] total[s, r]
//   then, where FINISH: hadamard_64(out) if ROTATE, * sigmoid(gate) if there is one; bf16, or tiles of the next product's input.
//
// Layouts: partial f16 (kv_heads, splits, rows, d); states f32 (kv_heads, splits, rows, 2) of (reference, total); row r of a kv
//   head is query r / group, head r % group of the group; wide (n, heads, 2 d) bf16 or null; out (n, heads, d) bf16,
//   or null and tiles (n, heads * d), `held` tokens, as in input_tiles.cuh; sinks f32 (heads,), with SINKS.
// Launch: n * heads blocks of WARPS warps, a block a row; a warp sums every WARPS-th split, and then what all found of 64 values,
//   always in the same order. tokens_at, tokens, window, reach as for attention_split. 16-byte aligned arrays. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256, 512; ROTATE; FINISH; SINKS; RECENT 0 (the default) or 1.
#include "pdl.cuh"
#include "score_rule.cuh"
#include "head_row.cuh"
#include "input_tiles.cuh"
#include "softmax.cuh"
#include "split_range.cuh"

constexpr int WARPS = HEAD_DIM == 512 ? 8 : 4;
constexpr u32 ALL = 0xffffffffu;
constexpr int TOGETHER = HEAD_DIM == 512 ? 5 : RECENT ? 8 : 9;  // splits a warp reads at once; one trip for 33 splits, 4 kv heads on 132 multiprocessors

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_combine(const u16* partial, const f32* states, const u16* wide, u16* out, u8* tiles, i32 held,
                  const i32* tokens_at, i32 tokens, i32 window, i32 splits, i32 rows, i32 n, i32 heads, i32 kv_heads,
                  const f32* sinks, const i32* reach) {
    pdl_launch_dependents();
    const i32 lane = i32(threadIdx.x) % 32, warp = i32(threadIdx.x) / 32;
    const i32 at = i32(blockIdx.x), group = heads / kv_heads;
    const i32 kv_head = at % heads / group, row = at / heads * group + at % group;
    u32 open = 0;  // two of the gate's values
    if (FINISH && wide && 64 * warp < HEAD_DIM)
        open = reinterpret_cast<const u32*>(wide + (2 * i64(at) + 1) * HEAD_DIM)[32 * warp + lane];
    tokens += tokens_at ? __ldcg(tokens_at) : 0;
    // RECENT: the first split is that of the exact rows.
    const i32 used = SplitRange(tokens, n, window, reach, splits - RECENT).used() + RECENT;
    pdl_wait();  // for the splits alone, whose launch let this kernel start when all before it was done
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
    __shared__ __align__(16) f32 sums[WARPS][HEAD_DIM];
    __shared__ float2 found[WARPS];
#pragma unroll
    for (int j = 0; j < E; j++) sums[warp][lane * E + j] = r.x[j];
    if (lane == 0) found[warp] = make_float2(highest, total);
    __syncthreads();
    // From here on a warp has a block of 64 values, two a lane.
    if (64 * warp >= HEAD_DIM) return;
    const i32 dim = 64 * warp + 2 * lane;
#pragma unroll
    for (int i = 0; i < WARPS; i++) highest = fmaxf(highest, found[i].x);
    f32 x = 0, y = 0;
    total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const f32 weight = exp2_fast(found[i].x - highest);
        const float2 values = *reinterpret_cast<const float2*>(&sums[i][dim]);
        total += weight * found[i].y, x += weight * values.x, y += weight * values.y;
    }
    if (SINKS) total += sink_weight(sinks, at % heads, highest);
    f32 factor = 1.0f / total;
    if (FINISH && ROTATE) {
        const f32 sum = x + y;
        y = x - y, x = sum, factor *= 0.125f;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const f32 a = __shfl_xor_sync(ALL, x, step), b = __shfl_xor_sync(ALL, y, step);
            x = lane & step ? a - x : x + a, y = lane & step ? b - y : y + b;
        }
    }
    x *= factor, y *= factor;
    if (FINISH && wide) x /= 1.0f + __expf(-low_bf16(open)), y /= 1.0f + __expf(-high_bf16(open));
    if (out) {
        *reinterpret_cast<u32*>(out + i64(at) * HEAD_DIM + dim) = pack_bf16(x, y);
        return;
    }
    const i32 token = at / heads, k = at % heads * HEAD_DIM + dim;
    const u32 pair = pack_f16(tile_value(x, 1 / UNIT_SCALE), tile_value(y, 1 / UNIT_SCALE));
    f32 sum = low_f16(pair) + high_f16(pair);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(ALL, sum, step);
    *reinterpret_cast<u32*>(tiles + tile_place(held, token, k)) = pair;
    if (k % 16 == 0) store_tile_sum(tiles, i64(heads) * HEAD_DIM, held, token, k, sum);
    if (k == 0) tile_scales(tiles, i64(heads) * HEAD_DIM, held)[token] = UNIT_SCALE;
}
