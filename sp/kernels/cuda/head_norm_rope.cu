// What happens to the projected rows of attention before they meet: per-head RMS norm and rotary embedding of q and k,
// rotation and storage of k and v.
//
//   head_norm_rope   y[t, h] = rope(norm(x[t, h, :d]), positions[t]), f16
//   attention_heads  the same for q, where there is one (heads is 0 else); k likewise, then rotated over its largest power
//                    of two and stored in its page; v rotated over blocks of 64 and stored: everything between the
//                    projections and attention in one launch
//   norm: x / sqrt(mean(x^2) + eps) * weight; rope: NeoX pairs (j, j + half) turned by positions[t] * base^(-j / half)
//
// Layouts: x, q (tokens, heads, stride) bf16 with stride >= d (a gate may follow), k, v (tokens, kv_heads, d) bf16,
//   y (tokens, heads, d) f16, turns i64 (half,) as in head_row.cuh, pages and table as in kv_pages.cu.
// Launch: 4 warps a block, a warp a (token, head) row. Rows 2E bytes aligned, E = d / 32. sm_80 and newer. attention_heads with
//   few blocks goes through its code twice, first with the norm's weights in place of the rows, while the kernel before runs:
//   between products of many megabytes of weights a short launch meets code, weights and table cold.
// Defines: HEAD_DIM 64, 128, 256; for attention_heads Q4 (pages hold Q4_0, not f16) and ROTATE.
#include "early.cuh"
#include "head_row.cuh"

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
head_norm_rope(const u16* x, const f32* weight, const i64* positions, const i64* turns, u16* y, i64 rows, i32 heads,
               i32 stride, i32 half, f32 eps) {
    __shared__ f32 scratch[WARPS][HEAD_DIM];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 row = i64(blockIdx.x) * WARPS + warp;
    if (row >= rows) return;
    HeadRow r = load_bf16(x + row * stride, lane);
    norm(r, weight, eps, lane);
    rope(r, positions[row / heads], turns, half, scratch[warp], lane);
    store_f16(y + row * HEAD_DIM, r, lane);
}

#ifdef Q4
constexpr u32 FEW_BLOCKS = 512;  // run at once, and wait for the kernel before

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_heads(const u16* q, const u16* k, const u16* v, const f32* q_weight, const f32* k_weight, const i64* positions,
                const i64* turns, u16* q_out, u8* k_pages, u8* v_pages, const i32* table, const i32* start, i32 offset,
                i32 tokens, i32 heads, i32 kv_heads, i32 stride, i32 half, f32 eps) {
    __shared__ f32 scratch[WARPS][HEAD_DIM];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 row = i32(blockIdx.x) * WARPS + i32(warp), all = heads + 2 * kv_heads, token = row / all;
    let_next_start();
    if (token >= tokens) return;
    const i32 place = row - token * all;
    const bool query = place < heads, value = place >= heads + kv_heads;
    const i32 head = query ? place : value ? place - heads - kv_heads : place - heads;
    const u16* from = query ? q + (i64(token) * heads + head) * stride
                            : (value ? v : k) + (i64(token) * kv_heads + head) * HEAD_DIM;
    const f32* weight = query ? q_weight : k_weight;
    prefetch_l2(positions + token);
    if (start) prefetch_l2(start);
#pragma unroll 1
    for (int round = gridDim.x > FEW_BLOCKS; round < 2; round++) {
        const bool real = round == 1;
        if (real) wait_for_earlier();
        const i64 position = real ? positions[token] : 0;
        const i32 slot = (real && start ? *start : 0) + offset + token;
        HeadRow r = load_bf16(real ? from : reinterpret_cast<const u16*>(weight), lane);
        if (!value) {
            norm(r, weight, eps, lane);
            rope(r, position, turns, half, scratch[warp], lane);
        }
        if (query) {
            if (real) store_f16(q_out + (i64(token) * heads + head) * HEAD_DIM, r, lane);
            continue;
        }
        if (!value) {
#pragma unroll
            for (int i = 0; i < E; i++) r.x[i] = f32_from_f16(f16_from(r.x[i]));  // what a caller that keeps k apart would store
            if (ROTATE) hadamard<HEAD_DIM>(r, lane);
        } else if (ROTATE) {
            hadamard<64>(r, lane);
        }
        store_in_page<Q4>(value ? v_pages : k_pages, table, slot, head, kv_heads, r, scratch[warp], lane, real);
    }
}
#endif
