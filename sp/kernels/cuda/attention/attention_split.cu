// Attention of few queries under a mask over a long paged cache, on mma.sync tensor cores, split over the cache.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group] over the keys j that query i sees:
//   of the last n tokens those whose bit is set in seen[i] (without `seen`: itself and those before it), of the tokens before
//   them all or those from reach[i] on or, with a window, those with total - n + i - j < window. SOFTCAP: see score_rule.cuh; sinks
//   join in attention_combine.cu. q is in the basis of the cached keys.
//
// Layouts: q f16 (n, heads, D); pages of K and V (pool_pages, 128, kv_heads, row bytes), see page_rows.cuh, token j in slot j % 128 of
//   page table[j / 128], of `blocks`; `tokens` is added to the count at tokens_at; seen u64 (n,) or null; window 0: none; reach i32 (n,), the
//   first the least, or null. Rows
//   of a kv head are its n * group query rows, row r being query r / group. partial f16 (kv_heads, splits, rows, D), what each
//   split finds; states f32 (kv_heads, splits, rows, 2), its reference and its total; rows = gridDim.z QUERIES.
//   attention_combine.cu goes on.
// Launch: (splits, kv_heads, ceil(n group / QUERIES)) blocks of 32 WARPS threads, QUERIES = 8 WARPS; scale includes log2(e). The
//   grid may stay while the cache grows.
// Needs: 16-byte aligned arrays, 1 <= n <= 64, tokens >= n; cap in base 2, > 0. Slots past the last token may hold NaN. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256, 512; K_FORMAT, V_FORMAT (see page_rows.cuh); WARPS, even; SLOTS of the ring; BLOCKS (of a
//   multiprocessor); SOFTCAP; RECENT, 0 by default; AHEAD, where one is packed: two unpacked tiles, one of keys and one of values, the next being unpacked
//   while the other is at work.
//
// RECENT: of a cache with exact rows of its newest tokens, see attention_decode.cu. A launch of one split with 2 takes the tokens from
// near_of on from a ring of f16 rows, another one with 1 those before them; all_parts is the number of both's splits in `partial`
// and `states`, of which the ring's is the first.
//
// A block takes all rows it can of a kv head, so that a byte of the cache is read and unpacked once, and few keys: what each block
// finds is normalised and fits f16. A pair of warps owns 16 rows: each takes the scores of half the keys of a tile and, when the
// pair has exchanged its probabilities, half the dims of the outputs. K and V tiles of KEYS keys come through one ring K V K V ...
// by cp.async; if either is packed, both pass through a tile all warps read, into which rows are unpacked once.
// Dao et al., "Flash-Decoding for long-context inference", 2023; Miao et al., "SpecInfer", 2024.
#include "pdl.cuh"
#include "score_rule.cuh"
#include "softmax.cuh"
#include "split_queries.cuh"
#include "split_range.cuh"

constexpr bool PACKED = K_FORMAT != F16_ROWS || V_FORMAT != F16_ROWS;
constexpr int K_ROW = row_bytes(K_FORMAT, D), V_ROW = row_bytes(V_FORMAT, D);
constexpr int UNIT = KEYS * (!PACKED ? PITCH : K_ROW > V_ROW ? unit_pitch(K_FORMAT) : unit_pitch(V_FORMAT));

extern "C" __global__ void __launch_bounds__(THREADS, SOFTCAP ? (BLOCKS + 1) / 2 : BLOCKS)  // the cap takes registers
attention_split(const u16* q, const u8* k_pages, const u8* v_pages, const i32* table, i32 blocks, const i32* tokens_at,
                i32 tokens, const u64* seen, i32 window, u16* partial, f32* states, i32 n, i32 heads, i32 kv_heads,
                f32 scale, f32 cap, const i32* reach, i32 all_parts) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 kv_head = i32(blockIdx.y), first_row = i32(blockIdx.z) * QUERIES;
    const Rows rows(n, heads, kv_heads, kv_head);
    if (tokens_at && RECENT != 2) {  // perhaps the count of the pass before, which is good enough to have the first tile brought nearer
        const SplitRange likely(__ldcg(tokens_at) + tokens, n, window, reach, i32(gridDim.x));
        const i32 token = likely.begin(i32(blockIdx.x)), end = min(likely.end(i32(blockIdx.x)), blocks * PAGE_TOKENS);
        if (0 <= token && token < end) {
            const i64 first = (i64(table[token / PAGE_TOKENS]) * PAGE_TOKENS + token % PAGE_TOKENS) * kv_heads + kv_head;
            constexpr u32 LINES = ((K_ROW > V_ROW ? K_ROW : V_ROW) + 127) / 128;
            for (u32 i = threadIdx.x; i < 2 * KEYS * LINES; i += THREADS) {
                const i64 row = first + i64(i / LINES % KEYS) * kv_heads;
                const u8* at = i < KEYS * LINES ? k_pages + row * K_ROW : v_pages + row * V_ROW;
                prefetch_l2(at + i % LINES * 128);
            }
        }
    }
    pdl_wait();
    pdl_launch_dependents();  // only now: what earlier kernels wrote, attention_combine.cu may read at once
    const i32 stored = tokens_at ? __ldcg(tokens_at) : 0;
    load_queries(q, rows, first_row, warp, lane);
    cp_async_commit();
    tokens += stored;
    const SplitRange range(tokens, n, window, reach, i32(gridDim.x));
    const i32 exact = near_of(tokens, n), queries_from = tokens - n;  // first token of those with exact rows, and of the queries
    const i32 begin = RECENT == 2 ? max(exact / SPLIT_KEYS * SPLIT_KEYS, range.first) : range.begin(i32(blockIdx.x));
    const i32 end = RECENT == 2 ? tokens : range.end(i32(blockIdx.x)), before = RECENT == 1 ? exact : queries_from;
    if (RECENT == 1) tokens = exact;
    if (begin >= end) {
        cp_async_wait<0>();
        return;
    }
    const int g = int(lane) / 4, c = int(lane) % 4;

    const u32 unpacked = shared_address(shared) + QUERIES * (PITCH + P_PITCH);
    const u32 ring = unpacked + (PACKED ? (1 + AHEAD) * TILE : 0);
    // Units 2 s and 2 s + 1 are K and V of the s-th tile.
    const i32 steps = (end - begin + KEYS - 1) / KEYS;
    i32 issued = 0, page = 0, page_next = table[begin / PAGE_TOKENS];
    const auto issue = [&](int slot) {
        const i32 token = begin + issued / 2 * KEYS;
        if (issued < 2 * steps) {
            const bool values = issued % 2;
            if (!values) {
                page = page_next;
                if (token + KEYS < end) page_next = table[(token + KEYS) / PAGE_TOKENS];
            }
            const i64 row = (i64(page) * PAGE_TOKENS + token % PAGE_TOKENS) * kv_heads + kv_head;
            const u32 unit = ring + slot * UNIT;
            if (!PACKED) load_tile(unit, (values ? v_pages : k_pages) + row * PITCH, u32(kv_heads) * PITCH, tokens - token);
            else if (values) load_packed<V_FORMAT>(unit, v_pages + row * V_ROW, u32(kv_heads) * V_ROW, tokens - token);
            else load_packed<K_FORMAT>(unit, k_pages + row * K_ROW, u32(kv_heads) * K_ROW, tokens - token);
        }
        cp_async_commit();
        issued++;
    };
    constexpr int FIRST = PACKED ? SLOTS : SLOTS - 1;  // units issued before any is used
#pragma unroll 1
    for (int slot = 0; slot < FIRST; slot++) issue(slot);
    const auto unpack_unit = [&](u32 tile, u32 unit, bool values) {
        if (values && V_FORMAT != K_FORMAT) unpack<V_FORMAT>(tile, unit);
        else unpack<K_FORMAT>(tile, unit);
    };
    // Wait for the next unit and make room for a later one; returns the tile to read.
    int slot = 0, used = 0;
    const auto next_unit = [&]() {
        cp_async_wait<FIRST - 1 - AHEAD>();  // AHEAD: the unit after the next as well
        __syncthreads();
        const int now = slot;
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        if (!PACKED) {
            issue(now == 0 ? SLOTS - 1 : now - 1);
            return ring + now * UNIT;
        }
        if (!AHEAD) {
            unpack_unit(unpacked, ring + now * UNIT, used % 2);
            __syncthreads();
        }
        issue(now);
        return unpacked + (AHEAD ? used++ % 2 * TILE : used++ * 0);
    };
    // With AHEAD every thread does its part of this once between one call of next_unit and the next.
    const auto unpack_next = [&](bool mine) {
        if (AHEAD && mine && used < 2 * steps) unpack_unit(unpacked + used % 2 * TILE, ring + slot * UNIT, used % 2);
    };

    const u32 pair = warp / 2, half = warp % 2;
    const i32 pair_row = first_row + 16 * i32(pair);
    const bool busy = rows.exists(pair_row);
    u64 bits[2];
    i32 nearest[2];  // of the keys before the last n that a window hides
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const i32 query = min(rows.query(pair_row + g + 8 * e), n - 1);
        bits[e] = seen ? seen[query] : ~0ull >> (63 - query);
        // Behind a gap in positions a window may begin among the last n.
        if (const i32 inside = reach ? reach[query] - queries_from : 0; inside > 0) bits[e] &= ~0ull << inside;
        nearest[e] = reach ? reach[query] - 1 : window ? queries_from + query - window : -1;
        if (RECENT == 2) nearest[e] = max(nearest[e], exact - 1);
    }
    f32 o[D / 16][4];
    f32 reference[2] = {NEVER, NEVER}, total[2] = {};
#pragma unroll
    for (int j = 0; j < D / 16; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
    // Of this lane for ldmatrix: rows of A and of V^T by lane % 16, rows of K by lane % 8 and lane / 16.
    const u32 a_row = shared_address(shared) + row_at(pair * 16 + lane % 16, PITCH, lane / 16);
    const u32 k_row = row_at(half * (KEYS / 2) + lane % 8 + lane / 16 * 8, PITCH, lane / 8 % 2);
    const u32 v_row = chunk_at(row_at(lane % 16, PITCH, lane / 16), half * (D / 16));
    u8* pair_p = shared + QUERIES * PITCH + pair * 16 * P_PITCH;
    const u32 p_row = shared_address(pair_p) + row_at(lane % 16, P_PITCH, lane / 16);
    __shared__ f32 exchanged[PAIRS][2][16];  // largest scores, in the end sums
    const auto exchange = [&](f32 (&value)[2], f32 (&other)[2]) {
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (c == 0) exchanged[pair][half][g + 8 * e] = value[e];
        pair_barrier(pair);
#pragma unroll
        for (int e = 0; e < 2; e++) other[e] = exchanged[pair][half ^ 1][g + 8 * e];
    };

    if (AHEAD) {
        cp_async_wait<FIRST - 1>();
        __syncthreads();
        unpack_next(true);
    }
    const bool early = pair % 2;  // so that some unpack while others keep the matrix units busy

#pragma unroll 1
    for (i32 token = begin; token < end; token += KEYS) {
        const u32 keys = next_unit() + k_row;
        unpack_next(early);
        if (busy) {
            f32 s[KEYS / 16][4];
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
            // Loops are unrolled no further than they must: a block with one tile meets every instruction once, and cold.
#pragma unroll 1
            for (u32 line = 0; line < 2 * D; line += 128) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    u32 a[4];
                    ldmatrix_x4(a, chunk_at(a_row, 2 * k) + line);
#pragma unroll
                    for (int j = 0; j < KEYS / 32; j++) {
                        u32 b[4];
                        ldmatrix_x4(b, chunk_at(keys, 2 * k) + line + j * 16 * PITCH);
                        mma_f16(s[2 * j], a, b[0], b[1]);
                        mma_f16(s[2 * j + 1], a, b[2], b[3]);
                    }
                }
            }
            if (SOFTCAP) {
                const SoftCap capped(cap, scale);
#pragma unroll
                for (int j = 0; j < KEYS / 16; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) s[j][i] = capped(s[j][i]);
            }
            if (token + KEYS > before || reach || (window && queries_from + n - 1 - token >= window) ||
                (RECENT == 2 && token < exact)) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const u64 sees = visible(bits[e], nearest[e] - token, before - token, tokens - token);
                    const u32 mine = u32(sees >> half * (KEYS / 2) >> 2 * c);
#pragma unroll
                    for (int j = 0; j < KEYS / 16; j++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            if (!(mine >> (8 * j + i) & 1)) s[j][2 * e + i] = __int_as_float(0xff800000);
                }
            }
            // Probabilities; references move, and outputs are rescaled, only when a score outgrew its reference.
            f32 high[2], other[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                f32 most = s[0][2 * e];
#pragma unroll
                for (int j = 0; j < KEYS / 16; j++) most = fmaxf(most, fmaxf(s[j][2 * e], s[j][2 * e + 1]));
                most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
                high[e] = fmaxf(most, __shfl_xor_sync(ALL, most, 2)) * scale;
            }
            exchange(high, other);
            high[0] = fmaxf(high[0], other[0]), high[1] = fmaxf(high[1], other[1]);
            if (__any_sync(ALL, high[0] > reference[0] + HEADROOM || high[1] > reference[1] + HEADROOM)) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const f32 now = fmaxf(reference[e], high[e] - OFFSET), keep = exp2_fast(reference[e] - now);
                    reference[e] = now, total[e] *= keep;
#pragma unroll
                    for (int j = 0; j < D / 16; j++) o[j][2 * e] *= keep, o[j][2 * e + 1] *= keep;
                }
            }
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[j][i] = exp2_fast(s[j][i] * scale - reference[i / 2]);
                total[0] += s[j][0] + s[j][1], total[1] += s[j][2] + s[j][3];
#pragma unroll
                for (int e = 0; e < 2; e++)
                    *reinterpret_cast<u32*>(pair_p + p_place(g + 8 * e, half * (KEYS / 16) + j) + 4 * c) =
                        pack_f16(s[j][2 * e], s[j][2 * e + 1]);
            }
            pair_barrier(pair);
        }
        unpack_next(!early);
        const u32 values = next_unit() + v_row;
        unpack_next(early);
        if (busy) {
#pragma unroll 1
            for (int k = 0; k < KEYS / 16; k++) {
                u32 p[4];
                ldmatrix_x4(p, chunk_at(p_row, 2 * k));
#pragma unroll
                for (int j = 0; j < D / 32; j++) {
                    u32 b[4];
                    ldmatrix_x4_trans(b, chunk_at(values, 2 * j) + k * 16 * PITCH);
                    mma_f16(o[2 * j], p, b[0], b[1]);
                    mma_f16(o[2 * j + 1], p, b[2], b[3]);
                }
            }
        }
        unpack_next(!early);
    }
    cp_async_wait<0>();
    if (!busy) return;

    // Rows back through the place of the pair's queries, each warp its dims, then whole rows to memory.
    u8* stage = shared + pair * 16 * PITCH;
    const i64 part = RECENT ? i64(kv_head) * all_parts + blockIdx.x + (RECENT == 1) : i64(kv_head) * gridDim.x + blockIdx.x;
    const i64 to = part * (i64(gridDim.z) * QUERIES) + pair_row;
    f32 others[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        total[e] += __shfl_xor_sync(ALL, total[e], 1);
        total[e] += __shfl_xor_sync(ALL, total[e], 2);
    }
    exchange(total, others);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const f32 sum = half ? others[e] + total[e] : total[e] + others[e];
        const f32 inverse = sum > 0 ? 1.0f / sum : 0.0f;
        const u32 row = g + 8 * e;
        if (half == 0 && c == 0) reinterpret_cast<float2*>(states)[to + row] = make_float2(reference[e], sum);
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            *reinterpret_cast<u32*>(stage + place(row, half * (D / 16) + j) + 4 * c) =
                pack_f16(o[j][2 * e] * inverse, o[j][2 * e + 1] * inverse);
    }
    __syncwarp();
    constexpr int CHUNKS = D / 16;  // of half a row
#pragma unroll 2
    for (u32 i = lane; i < 16 * CHUNKS; i += 32) {
        const u32 row = i / CHUNKS, chunk = half * CHUNKS + i % CHUNKS;
        *reinterpret_cast<uint4*>(partial + (to + row) * D + chunk * 8) = *reinterpret_cast<const uint4*>(stage + place(row, chunk));
    }
}
