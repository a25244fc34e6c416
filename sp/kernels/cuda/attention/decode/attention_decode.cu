// Attention of few query rows over a long paged cache, split over the cache: decoding and short speculated sequences.
//
//   out[i, h] = sum_j softmax_j(q[i, h] . k[j, h / group] / sqrt(d)) v[j, h / group],  j <= total - n + i
//   q is in the basis of the cached keys; where FINISH, out is rotated back over blocks of 64 if ROTATE and multiplied by the
//   sigmoid of the gate if there is one.
//
// The n * group query rows that share a kv head are the columns of transposed products (decode_products.cuh), 8 TILES of them a
// block. One token of decoding with 6 heads a group fills 6 of 8 columns, and a byte of the cache is read and unpacked once.
// Split x of a kv head takes a run of tokens, its warps every WARPS-th tile of 16 tokens, each through a ring of its own of SLOTS
// units filled by cp.async. States of warps, then of splits by the last of them to finish, are summed in fixed order.
//
// Layouts: q (n, heads, d) f16; pages (pool_pages, 128, kv_heads, row bytes), see page_rows.cuh; table i32; tokens i32 or null, `more`
//   is added to it; wide (n, heads, 2 d) bf16 or null; out (n, heads, d) bf16; partial: TILES QUADS float4 a (row group, kv
//   head, split); counters u32 a (row group, kv head), zero before and after.
// Launch: (splits, kv_heads, row groups) blocks of 32 WARPS threads; the grid may stay while the cache grows. 16-byte aligned
//   arrays. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; K_FORMAT, V_FORMAT; TILES; WARPS; SLOTS; SPLIT_TOKENS (fewest a split); ROTATE; FINISH;
//   RECENT, 0 by default.
// Dao et al., "Flash-Decoding for long-context inference", 2023.
//
// RECENT: of a cache that has exact rows of the newest tokens, each of the last n sees packed the tokens before `near`, and the
// others exactly, with near_of from split_range.cuh. A launch with 2, of one split, takes those from a ring of f16 rows, token t in
// slot t % 128, with a table that names one page only; another one with 1 takes the earlier ones and sums both. `all_parts` is then the
// number of splits a (row group, kv head) has in `partial`: the ring's is the first, and n <= 64.
#include "decode_merge.cuh"
#include "decode_queries.cuh"
#include "pdl.cuh"
#include "split_range.cuh"

extern __shared__ __align__(16) u8 shared[];

// What a warp has of fragment i / 32 for lane i % 32. Of the ring's f16 values: dims as V4 values have them, with which they are
// summed, 0 and 4, 1 and 5, ... in place of 0 and 1, 2 and 3, ...
SP_DEVICE float4 outputs(const float4* warp, int i) {
    if (RECENT != 2) return warp[i];
    const int m = i / 32, low = (m / 4 * 4 + m % 4 / 2) * 32 + i % 32;
    const float2* halves = reinterpret_cast<const float2*>(warp);
    const float2 x = halves[2 * low + m % 2], y = halves[2 * (low + 64) + m % 2];
    return make_float4(x.x, x.y, y.x, y.y);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_decode(const u16* q, const u8* k_pages, const u8* v_pages, const i32* table, const i32* tokens, i32 more,
                 const u16* wide, u16* out, f32* partial, u32* counters, i32 n, i32 heads, i32 kv_heads, f32 scale,
                 i32 all_parts) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 stored = (tokens ? *tokens : 0) + more;
    const i32 near = near_of(stored, n), total = RECENT == 1 ? near : stored;
    const i32 even = (total + i32(gridDim.x) - 1) / i32(gridDim.x);
    const i32 span = (max(even, SPLIT_TOKENS) + 16 * WARPS - 1) / (16 * WARPS) * (16 * WARPS);
    const i32 begin = RECENT == 2 ? near / 16 * 16 : i32(blockIdx.x) * span;
    const i32 end = RECENT == 2 ? total : min(begin + span, total);
    if (begin >= total && !(RECENT == 1 && blockIdx.x == 0)) return;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = int(lane) / 4, c = int(lane) % 4, kv_head = int(blockIdx.y);
    const Queries rows = {n, heads / kv_heads, heads, kv_head, int(blockIdx.z) * ROWS};

    u8* ring = shared + warp * SLOTS * UNIT;
    constexpr int K_ROW = row_bytes(K_FORMAT, D), V_ROW = row_bytes(V_FORMAT, D);
    const i32 first = begin + 16 * i32(warp);
    const i32 tiles = first < end ? (end - first + 16 * WARPS - 1) / (16 * WARPS) : 0;
    i32 page = 0, next_page = tiles ? table[first / PAGE_TOKENS] : 0;
    i32 issued = 0;  // units
    const auto issue = [&](int slot) {
        const i32 tile = issued / 2, token = first + tile * 16 * WARPS;
        if (tile < tiles) {
            const bool values = issued % 2;
            if (!values) {
                page = next_page;
                if (tile + 1 < tiles) next_page = table[(token + 16 * WARPS) / PAGE_TOKENS];
            }
            const i64 place = (i64(page) * PAGE_TOKENS + token % PAGE_TOKENS) * kv_heads + kv_head;
            const u32 unit = shared_address(ring) + slot * UNIT;
            if (K_FORMAT == V_FORMAT)
                load_unit<K_FORMAT>(unit, (values ? v_pages : k_pages) + place * K_ROW, u32(kv_heads) * K_ROW, total - token,
                                    values, lane);
            else if (values)
                load_unit<V_FORMAT>(unit, v_pages + place * V_ROW, u32(kv_heads) * V_ROW, total - token, true, lane);
            else load_unit<K_FORMAT>(unit, k_pages + place * K_ROW, u32(kv_heads) * K_ROW, total - token, false, lane);
        }
        cp_async_commit();
        issued++;
    };
#pragma unroll 1
    for (int slot = 0; slot < SLOTS; slot++) issue(slot);

    u32 fragments[STEPS][TILES][2];
    load_queries(fragments, q, rows, shared + WARPS * SLOTS * UNIT, warp, lane);
    i32 limit[TILES][2];  // first token a row does not see
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            limit[t][e] = RECENT == 1 ? total : min(total, total - n + rows.token(8 * t + 2 * c + e) + 1);

    const Places places(g, c);
    const u32 ring_address = shared_address(ring);
    State state;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        state.reference[t][0] = state.reference[t][1] = NEVER, state.total[t][0] = state.total[t][1] = 0;
#pragma unroll
        for (int m = 0; m < OUTPUTS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.o[m][t][i] = 0;
    }
    int slot = 0;
    for (i32 tile = 0; tile < tiles; tile++) {
        const i32 token = first + tile * 16 * WARPS;
        f32 s[TILES][4];
        cp_async_wait<SLOTS - 1>();
        __syncwarp();
        scores(s, ring_address + slot * UNIT, fragments, places, g, c);
        __syncwarp();
        issue(slot);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        const bool masked = token + 16 > total - n || (RECENT == 2 && token < near);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[t][i] *= scale;
                const i32 at = token + g + i / 2 * 8;
                if (masked && (at >= limit[t][i % 2] || (RECENT == 2 && at < near))) s[t][i] = __int_as_float(0xff800000);
            }
        u32 p[TILES][2];
        probabilities(p, s, state);
        cp_async_wait<SLOTS - 1>();
        __syncwarp();
        accumulate(state, ring_address + slot * UNIT, p, places, g, c);
        __syncwarp();
        issue(slot);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
    }
    cp_async_wait<0>();
    const i64 warp_row = rows.exists(int(warp)) ? rows.head_row(int(warp)) : 0;
    HeadWords open = {};  // the gate of the first row this warp finishes, on its way meanwhile
    if (FINISH && wide) open = reinterpret_cast<const HeadWords*>(wide + (2 * warp_row + 1) * D)[lane];

    // Warps put their outputs on common references and sum them through shared memory, tile by tile.
    const int splits = RECENT == 2 ? 1 : max(1, (total + span - 1) / span);
    const i64 stride = RECENT ? all_parts : i32(gridDim.x);
    constexpr bool ALONE = RECENT == 0;  // a single split finishes what it has
    float4* states = reinterpret_cast<float4*>(shared);
    f32* rows_table = reinterpret_cast<f32*>(states + WARPS * 32 * OUTPUTS);
    const u32 family = blockIdx.z * gridDim.y + blockIdx.y;
    float4* parts = reinterpret_cast<float4*>(partial) + i64(family) * stride * TILES * QUADS;
    __shared__ float4 heads_of_warps[TILES][WARPS][4];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                state.total[t][e] += __shfl_xor_sync(0xffffffffu, state.total[t][e], step);
        if (g == 0)
            heads_of_warps[t][warp][c] =
                make_float4(state.reference[t][0], state.reference[t][1], state.total[t][0], state.total[t][1]);
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        f32 high[2] = {NEVER, NEVER}, sums[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float4 head = heads_of_warps[t][i][c];
            high[0] = fmaxf(high[0], head.x), high[1] = fmaxf(high[1], head.y);
        }
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float4 head = heads_of_warps[t][i][c];
            sums[0] += head.z * exp2_fast(head.x - high[0]), sums[1] += head.w * exp2_fast(head.y - high[1]);
        }
        const f32 a = exp2_fast(state.reference[t][0] - high[0]), b = exp2_fast(state.reference[t][1] - high[1]);
        if (t > 0) __syncthreads();
#pragma unroll
        for (int m = 0; m < OUTPUTS; m++)
            states[(warp * OUTPUTS + m) * 32 + lane] = make_float4(state.o[m][t][0] * a, state.o[m][t][1] * b,
                                                                   state.o[m][t][2] * a, state.o[m][t][3] * b);
        __syncthreads();
        float4* to = parts + (t * stride + blockIdx.x + (RECENT == 1)) * QUADS;
#pragma unroll
        for (int i = int(threadIdx.x); i < 32 * OUTPUTS; i += THREADS) {
            float4 sum = {};
#pragma unroll
            for (int part = 0; part < WARPS; part++) add(sum, outputs(states + part * 32 * OUTPUTS, i), 1, 1);
            if (ALONE && splits == 1) put(rows_table, t, i, sum, 1.0f / sums[0], 1.0f / sums[1]);
            else to[32 + i] = sum;
        }
        if ((!ALONE || splits > 1) && threadIdx.x < 4) to[threadIdx.x] = make_float4(high[0], high[1], sums[0], sums[1]);
    }
    if (RECENT == 2) return;
    if (!ALONE || splits > 1) {  // the last split to come here sums all
        __shared__ bool last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = atomicInc(counters + family, splits - 1) == u32(splits) - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        merge_splits(rows_table, parts, splits + (RECENT == 1), i32(stride), states);
    }
    __syncthreads();
#pragma unroll 1
    for (int row = int(warp); row < ROWS && rows.exists(row); row += WARPS) {
        HeadRow r;
#pragma unroll
        for (int i = 0; i < E; i++) r.x[i] = rows_table[row * TABLE_PITCH + lane * E + i];
        const i64 at = row == int(warp) ? warp_row : rows.head_row(row);
        if (FINISH && ROTATE) hadamard<64>(r, lane);
        if (FINISH && wide) {
            if (row != int(warp)) open = reinterpret_cast<const HeadWords*>(wide + (2 * at + 1) * D)[lane];
            gate(r, open);
        }
        store_bf16(out + at * D, r, lane);
    }
}
