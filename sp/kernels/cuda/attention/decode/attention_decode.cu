// Attention of few query rows over a long paged cache of packed keys or values, split over the cache: decoding and short
// speculated sequences.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group] over the tokens before the last n, and of
//   those the ones whose bit is set in seen[i] (without `seen`: itself and those before it). q is in the basis of the cached keys.
//   attention_combine.cu goes on.
//
// The n * group query rows that share a kv head are the columns of transposed products (decode_products.cuh), 8 TILES of them a
// block. One token of decoding with 6 heads a group fills 6 of 8 columns, and a byte of the cache is read and unpacked once. A split
// takes a run of tokens, its warps every WARPS-th tile of 16 tokens, each through a ring of its own of SLOTS units filled by
// cp.async. States of warps are summed in fixed order.
//
// Layouts: q (n, heads, d) f16; pages (pool_pages, 128, kv_heads, row bytes), see page_rows.cuh; table i32; tokens i32 or null, `more`
//   is added to it; seen u64 (n,) or null; partial f16 (kv_heads, splits, rows, d), what each split finds, and states f32
//   (kv_heads, splits, rows, 2), its reference and its total, as attention_split.cu leaves them; rows = 16 gridDim.z, row r of a
//   kv head being query r / group.
// Launch: (splits, kv_heads, groups) blocks of 32 WARPS threads, n * group <= 8 TILES groups, one group if TILES is 1; scale includes
//   log2(e). The grid may stay while the cache grows. n <= 64, 16-byte aligned arrays. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; K_FORMAT, V_FORMAT; TILES 1 or 2; WARPS; SLOTS; RECENT, 0 by default.
// Dao et al., "Flash-Decoding for long-context inference", 2023.
//
// RECENT 1: of a cache that has exact rows of the newest tokens, each of the last n sees packed the tokens before `near`, and the
// others exactly, with near_of from split_range.cuh. Those are the first split of `partial`, of attention_split.cu with RECENT 2, which
// must be the launch before this one.
#include "decode_products.cuh"
#include "decode_queries.cuh"
#include "pdl.cuh"
#include "split_range.cuh"

extern __shared__ __align__(16) u8 shared[];

constexpr int THREADS = 32 * WARPS;
constexpr int GROUP_ROWS = 16;      // of a block in `partial`
constexpr int TABLE_PITCH = D + 8;  // floats from row to row of finished outputs

extern "C" __global__ void __launch_bounds__(THREADS)
attention_decode(const u16* q, const u8* k_pages, const u8* v_pages, const i32* table, const i32* tokens, i32 more,
                 const u64* seen, u16* partial, f32* states, i32 n, i32 heads, i32 kv_heads, f32 scale) {
    // The exact rows' launch let this one start when all before it was done, and is waited for in the end.
    if (RECENT != 1) pdl_wait();
    pdl_launch_dependents();
    const i32 stored = (tokens ? __ldcg(tokens) : 0) + more;
    const SplitRange range(stored, n, 0, nullptr, i32(gridDim.x));
    const i32 total = range.tokens, begin = range.begin(i32(blockIdx.x)), end = range.end(i32(blockIdx.x));
    if (begin >= end) {
        if (RECENT == 1) pdl_wait();
        return;
    }
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
    const i32 queries_from = RECENT == 1 ? total : total - n;  // first token that some rows do not see
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
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[t][i] *= scale;
        if (token + 16 > queries_from) {
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const i32 at = token + g + i / 2 * 8, query = min(rows.token(8 * t + 2 * c + i % 2), n - 1);
                    const u64 bits = RECENT == 1 ? 0 : seen ? seen[query] : ~0ull >> (63 - query);
                    if (at >= total || (at >= queries_from && !(bits >> (at - queries_from) & 1)))
                        s[t][i] = __int_as_float(0xff800000);
                }
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

    // Warps put their outputs on common references and sum them through shared memory, tile by tile.
    float4* sums_of_warps = reinterpret_cast<float4*>(shared);
    f32* outputs = reinterpret_cast<f32*>(sums_of_warps + WARPS * 32 * OUTPUTS);
    const i64 split = i64(kv_head) * (gridDim.x + RECENT) + blockIdx.x + RECENT;
    const i64 part = (split * gridDim.z + blockIdx.z) * GROUP_ROWS;
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
            sums_of_warps[(warp * OUTPUTS + m) * 32 + lane] = make_float4(state.o[m][t][0] * a, state.o[m][t][1] * b,
                                                                          state.o[m][t][2] * a, state.o[m][t][3] * b);
        __syncthreads();
        const f32 x = sums[0] > 0 ? 1.0f / sums[0] : 0.0f, y = sums[1] > 0 ? 1.0f / sums[1] : 0.0f;
#pragma unroll
        for (int i = int(threadIdx.x); i < 32 * OUTPUTS; i += THREADS) {
            float4 sum = {};
#pragma unroll
            for (int one = 0; one < WARPS; one++) {
                const float4 o = sums_of_warps[one * 32 * OUTPUTS + i];
                sum.x += o.x, sum.y += o.y, sum.z += o.z, sum.w += o.w;
            }
            // Dim g of rows 2c and 2c + 1, and dim g + 8, of fragment m; THREADS is a multiple of 32, so c is this thread's.
            const int m = i / 32, low = output_dim(m, g, 0), up = output_dim(m, g, 1);
            f32* row = outputs + (8 * t + 2 * c) * TABLE_PITCH;
            row[low] = sum.x * x, row[up] = sum.z * x;
            row[TABLE_PITCH + low] = sum.y * y, row[TABLE_PITCH + up] = sum.w * y;
        }
        if (threadIdx.x < 4)
            reinterpret_cast<float4*>(states)[(part + 8 * t) / 2 + c] = make_float4(high[0], sums[0], high[1], sums[1]);
    }
    __syncthreads();
#pragma unroll 1
    for (int row = int(warp); row < ROWS && rows.exists(row); row += WARPS) {
        HeadRow r;
#pragma unroll
        for (int i = 0; i < E; i++) r.x[i] = outputs[row * TABLE_PITCH + lane * E + i];
        store_f16(partial + (part + row) * D, r, lane);
    }
    if (RECENT == 1) pdl_wait();
}
