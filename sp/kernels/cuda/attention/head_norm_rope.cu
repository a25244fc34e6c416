// The prologue of attention on projected rows: per-head RMS norm and rotary embedding of q and k, rotation and storage
// of k and v.
//
//   head_norm_rope   y[t, h] = rope(norm(x[t, h, :d]), positions[t]), f16
//   attention_heads  the same for q, where there is one (heads is 0 else); k likewise, then rotated over its largest power
//                    of two, for K5 and K4 (V4_ROWS) as to_basis in head_row.cuh does, and stored in its page; v, normed without weights where VALUE_NORM, rotated over blocks of 64
//                    and stored: everything between the
//                    projections and attention in one launch
//   norm: x / sqrt(mean(x^2) + eps) * weight; rope: pairs of values turned by positions[t] * turns[j],
//   times magnitude
//
// Layouts: x, q (tokens, heads, stride) bf16 with stride >= d (a gate may follow), k, v (tokens, kv_heads, d) bf16,
//   ring_k, ring_v (128, kv_heads, d) f16 or null, which K4 keeps beside its pages: the last 128 tokens, token s in slot s % 128;
//   run_k, run_v (tokens, kv_heads, d) f16 or null: all tokens of this call; y (tokens, heads, d) f16, turns i64 (half,) as in rotary.cuh, pages and table as in kv_pages.cu.
// Launch: 4 warps a block, a warp a (token, head) row, of attention_heads ROWS of them, so that heads of a token share its
//   angles. Rows 2E bytes aligned, E = d / 32. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256, 512; INTERLEAVED, see rotary.cuh; NORM 0 where no norm comes before rope (weights are
//   null); for attention_heads K_FORMAT and V_FORMAT (see page_rows.cuh), ROTATE, ROWS and VALUE_NORM.
#include "pdl.cuh"
#include "rotary.cuh"

#ifndef NORM
#define NORM 1
#endif
#ifndef VALUE_NORM
#define VALUE_NORM 0
#endif

constexpr int WARPS = 4;
#ifdef K_FORMAT
constexpr bool IN_BASIS = K_FORMAT == K5_ROWS || K_FORMAT == V4_ROWS;
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
head_norm_rope(const u16* x, const f32* weight, const i64* positions, const i64* turns, u16* y, i64 rows, i32 heads,
               i32 stride, i32 half, f32 eps, f32 magnitude) {
    __shared__ alignas(16) f32 scratch[WARPS][HEAD_DIM];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 row = i64(blockIdx.x) * WARPS + warp;
    if (row >= rows) return;
    HeadRow r = load_bf16(x + row * stride, lane);
    if (NORM) norm(r, weight, eps, lane);
    rope(r, positions[row / heads], turns, half, magnitude, scratch[warp], lane);
    store_f16(y + row * HEAD_DIM, r, lane);
}

#ifdef K_FORMAT
// The row of a token's all: q's heads, k's, v's.
struct Place {
    i64 token;
    int head;

    SP_DEVICE void advance(int all) {
        if (++head == all) head = 0, ++token;
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_heads(const u16* q, const u16* k, const u16* v, const f32* q_weight, const f32* k_weight, const i64* positions,
                const i64* turns, u16* q_out, u8* k_pages, u8* v_pages, const i32* table, const i32* start, i32 offset,
                i32 tokens, i32 heads, i32 kv_heads, i32 stride, i32 half, f32 eps, f32 magnitude, const i32* order,
                const f32* shift, const f32* inverse, u16* ring_k, u16* ring_v, u16* run_k, u16* run_v) {
    __shared__ alignas(16) f32 scratch[WARPS][HEAD_DIM];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 row = (i64(blockIdx.x) * WARPS + warp) * ROWS;
    const int all = heads + 2 * kv_heads;
    pdl_launch_dependents();
    pdl_wait();
    if (row >= i64(tokens) * all) return;
    const int count = ROWS == 1 ? 1 : int(min(i64(ROWS), i64(tokens) * all - row));
    const Place first{row / all, int(row % all)};
    HeadRow rows[ROWS];
    Place at = first;
#pragma unroll
    for (int i = 0; i < ROWS; ++i, at.advance(all)) {
        if (i >= count) break;
        const int head = at.head - heads;
        const u16* from = head < 0           ? q + (at.token * heads + at.head) * stride
                          : head < kv_heads ? k + (at.token * kv_heads + head) * HEAD_DIM
                                            : v + (at.token * kv_heads + head - kv_heads) * HEAD_DIM;
        rows[i] = load_bf16(from, lane);
    }
    const i32 held = (start ? *start : 0) + offset;
    Angles angles;
    i64 turned = -1;  // the token they are of
    at = first;
#pragma unroll
    for (int i = 0; i < ROWS; ++i, at.advance(all)) {
        if (i >= count) break;
        HeadRow& r = rows[i];
        const int head = at.head - heads;
        if (head < kv_heads) {
            if (turned != at.token) angles = angles_of(positions[at.token], turns, half, magnitude, lane), turned = at.token;
            if (NORM) norm(r, head < 0 ? q_weight : k_weight, eps, lane);
            turn(r, angles, half, scratch[warp], lane);
        }
        if (head < 0) {
            store_f16(q_out + (at.token * heads + at.head) * HEAD_DIM, r, lane);
            continue;
        }
        const bool key = head < kv_heads;
        if (key) {
            // What a caller that keeps k apart would store: its f16 values.
#pragma unroll
            for (int j = 0; j < E; j++) r.x[j] = f32_from_f16(f16_from(r.x[j]));
            const int first = head * HEAD_DIM;
            if (IN_BASIS) to_basis(r, order + first, shift + first, inverse + first, scratch[warp], lane);
            else if (ROTATE) hadamard<HEAD_DIM>(r, lane);
        } else {
            if (VALUE_NORM) bare_norm(r, eps);
            if (ROTATE) hadamard<64>(r, lane);
        }
        const i32 slot = held + i32(at.token);
        if (K_FORMAT == V4_ROWS) {
            const int own = key ? head : head - kv_heads;
            u16* ring = key ? ring_k : ring_v;
            u16* run = key ? run_k : run_v;
            if (ring && tokens - i32(at.token) <= PAGE_TOKENS)  // later tokens take the slots of earlier ones
                store_f16(ring + (i64(slot % PAGE_TOKENS) * kv_heads + own) * HEAD_DIM, r, lane);
            if (run) store_f16(run + (at.token * kv_heads + own) * HEAD_DIM, r, lane);
        }
        if (K_FORMAT == V_FORMAT)
            store_in_page<K_FORMAT>(key ? k_pages : v_pages, table, slot, key ? head : head - kv_heads, kv_heads, r,
                                    scratch[warp], lane);
        else if (key) store_in_page<K_FORMAT>(k_pages, table, slot, head, kv_heads, r, scratch[warp], lane);
        else store_in_page<V_FORMAT>(v_pages, table, slot, head - kv_heads, kv_heads, r, scratch[warp], lane);
    }
}
#endif
