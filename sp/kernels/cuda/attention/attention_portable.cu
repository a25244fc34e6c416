// Causal attention of many queries over pages, on mma.sync tensor cores, dense or over lists of key blocks.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group],  j <= tokens - n + i, j in the lists
//   with WINDOW j >= reach[i] as well; SOFTCAP and SINKS: see score_rule.cuh.
//   tokens = *stored (0 where null) + more: read on the device, so that it may change between runs of a CUDA graph.
//
// Layouts: q f16 (n, heads, D); pages of K and V (pool_pages, 128, kv_heads, D) f16, token j in slot j % 128 of
//   page table[j / 128]; out bf16 (n, heads, D); lse f32 (heads, n), natural log of the sum of exp(scale * score), or null.
//   Lists (null means all blocks): block b holds tokens 128 b .. 128 b + 127; query head h and query block i (rows 128 i ..)
//   read blocks indices[(h * query_blocks + i) * width + 0 .. counts[h * query_blocks + i] - 1], ascending. A row that sees
//   no key gets zeros and -inf.
// Launch: heads * ceil(n / QUERIES) blocks of 32 WARPS threads, QUERIES = 16 WARPS SLICES, longest rows first; scale includes log2(e).
// Needs: 16-byte aligned arrays, any n >= 1, tokens >= n. Slots past `tokens` may hold NaN. WINDOW: no lists, reach i32
//   (n,) ascending, reach[i] <= tokens - n + i. sinks f32 (heads,); cap in base 2, > 0. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; WARPS; SLICES (16-row slices of a warp); SLOTS of the ring; WINDOW, SINKS, SOFTCAP: 0 or 1.
//
// The warps share each tile of 64 keys; one owns 16 SLICES query rows whole. K and V tiles come through one ring
// K V K V ... of SLOTS tiles by cp.async. Keys are walked from the diagonal down.
// Dao, "FlashAttention-2", 2023; lazy rescaling as in FlashAttention-4.
#include "key_tiles.cuh"
#include "score_rule.cuh"
#include "softmax.cuh"

#ifndef WINDOW
#define WINDOW 0
#endif

constexpr int ROWS = 16 * SLICES, QUERIES = WARPS * ROWS;

extern __shared__ __align__(128) u8 shared[];  // queries | ring

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_portable(const u16* q, const u8* k_pages, const u8* v_pages, const i32* table, const i32* counts,
                   const i32* indices, u16* out, f32* lse, const i32* stored, i32 more, i32 n, i32 heads,
                   i32 kv_heads, i32 width, f32 scale, const i32* reach, f32 cap, const f32* sinks) {
    __shared__ volatile i32 tokens;  // there is no register to spare for it
    if (threadIdx.x == 0) tokens = (stored ? *stored : 0) + more;
    __syncthreads();
    const i32 group = heads / kv_heads;
    const i32 blocks = (n + QUERIES - 1) / QUERIES;
    const i32 head = i32(blockIdx.x) % heads, first_query = (blocks - 1 - i32(blockIdx.x) / heads) * QUERIES;
    const i32 kv_head = head / group;
    const i32 limit = min(tokens - n + first_query + QUERIES, tokens);  // keys any row of this block may see
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = int(lane) / 4, c = int(lane) % 4;

    i32 steps = (limit + KEYS - 1) / KEYS;
    const i32 bottom = WINDOW ? reach[first_query] / KEYS : 0;  // the first tile in reach
    const i32* list = nullptr;
    if (counts) {
        const i64 row = i64(head) * ((n + 127) / 128) + first_query / 128;
        list = indices + row * width;
        steps = 2 * counts[row];
    }
    const auto tile_of = [&](i32 step) { return list ? 2 * list[step / 2] + step % 2 : step; };
    while (list && steps > 0 && tile_of(steps - 1) * KEYS >= limit) steps--;

    const u32 ring_address = shared_address(shared + QUERIES * PITCH), token_bytes = u32(kv_heads) * PITCH;
    // Row of this block -> (query, head) as a row of q and out; -1 past the last.
    const auto head_row = [&](i32 row) -> i64 {
        const i32 at = first_query + row;
        return at < n ? i64(at) * heads + head : -1;
    };
#pragma unroll
    for (int first = 0; first < QUERIES * D / 8; first += THREADS) {
        const u32 i = first + threadIdx.x, row = i / (D / 8), chunk = i % (D / 8);
        const i64 from = head_row(i32(row));
        cp_async_16(shared_address(shared) + place(row, chunk), q + (from < 0 ? 0 : from) * D + chunk * 8, from >= 0);
    }
    // Units 2 s and 2 s + 1 are K and V of the s-th tile from the last step down.
    i32 issued = 0, tile_issued = 0, tile_next = steps > 0 ? tile_of(steps - 1) : 0;
    i32 page = 0, page_next = steps > 0 ? table[tile_next / 2] : 0;
    const auto issue = [&](int slot) {
        const i32 step = steps - 1 - issued / 2;
        if (step >= bottom) {
            const bool values = issued % 2;
            if (!values) {
                tile_issued = tile_next, page = page_next;
                if (step > bottom) tile_next = tile_of(step - 1), page_next = table[tile_next / 2];
            }
            const i32 token = tile_issued * KEYS;
            const i64 row = (i64(page) * PAGE_TOKENS + token % PAGE_TOKENS) * kv_heads + kv_head;
            load_tile(ring_address + slot * TILE, (values ? v_pages : k_pages) + row * PITCH, token_bytes, tokens - token);
        }
        cp_async_commit();
        issued++;
    };
    constexpr int AHEAD = SLOTS - 1;  // units issued before the first is used
#pragma unroll
    for (int slot = 0; slot < AHEAD; slot++) issue(slot);
    // Wait for the next unit and make room for a later one; returns the tile to read.
    int slot = 0;
    const auto next_unit = [&]() {
        cp_async_wait<AHEAD - 1>();
        __syncthreads();
        const int now = slot;
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        issue(now == 0 ? SLOTS - 1 : now - 1);
        return ring_address + now * TILE;
    };

    f32 o[SLICES][D / 8][4];
    f32 reference[SLICES][2], total[SLICES][2];
#pragma unroll
    for (int m = 0; m < SLICES; m++) {
        reference[m][0] = reference[m][1] = NEVER, total[m][0] = total[m][1] = 0;
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[m][j][0] = o[m][j][1] = o[m][j][2] = o[m][j][3] = 0;
    }
    // Addresses of this lane's row in ldmatrix: rows of A and of V^T by lane % 16, rows of K by lane % 8 and lane / 16.
    const u32 a_row = shared_address(shared) + (warp * ROWS + lane % 16) * PITCH;
    const u32 k_row = (lane % 8 + lane / 16 * 8) * PITCH, v_row = lane % 16 * PITCH;
    const auto chunk_at = [&](u32 chunk) { return ((chunk ^ (lane & 7)) << 4); };

    for (i32 step = steps - 1; step >= bottom; step--) {
        const i32 token = tile_of(step) * KEYS;
        const u32 keys = next_unit() + k_row;
        f32 s[SLICES][KEYS / 8][4];
#pragma unroll
        for (int m = 0; m < SLICES; m++)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) s[m][j][0] = s[m][j][1] = s[m][j][2] = s[m][j][3] = 0;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            u32 a[SLICES][4];
#pragma unroll
            for (int m = 0; m < SLICES; m++) ldmatrix_x4(a[m], a_row + m * 16 * PITCH + chunk_at(2 * k + lane / 16));
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                u32 b[4];
                ldmatrix_x4(b, keys + j * 16 * PITCH + chunk_at(2 * k + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < SLICES; m++) {
                    mma_f16(s[m][2 * j], a[m], b[0], b[1]);
                    mma_f16(s[m][2 * j + 1], a[m], b[2], b[3]);
                }
            }
        }
        if (SOFTCAP) {
            const SoftCap capped(cap, scale);
#pragma unroll
            for (int m = 0; m < SLICES; m++)
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) s[m][j][i] = capped(s[m][j][i]);
        }
        const i32 warp_row = first_query + i32(warp) * ROWS;
        const i32 before = tokens - n;
        if (token + KEYS > before + warp_row + 1) {
#pragma unroll
            for (int m = 0; m < SLICES; m++)
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (token + 8 * j + 2 * c + i % 2 > before + warp_row + 16 * m + g + i / 2 * 8)
                            s[m][j][i] = __int_as_float(0xff800000);
        }
        if (WINDOW && token < reach[min(warp_row + ROWS, n) - 1]) {
#pragma unroll
            for (int m = 0; m < SLICES; m++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const i32 near = reach[min(warp_row + 16 * m + g + 8 * e, n - 1)] - token - 2 * c;
#pragma unroll
                    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            if (8 * j + i < near) s[m][j][2 * e + i] = __int_as_float(0xff800000);
                }
        }
        // Probabilities; references move, and outputs are rescaled, only when a score outgrew its reference.
        bool outgrown = false;
        f32 high[SLICES][2];
#pragma unroll
        for (int m = 0; m < SLICES; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                f32 most = s[m][0][2 * e];
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++) most = fmaxf(most, fmaxf(s[m][j][2 * e], s[m][j][2 * e + 1]));
                high[m][e] = most * scale;
                outgrown |= high[m][e] > reference[m][e] + HEADROOM;
            }
        if (__any_sync(0xffffffffu, outgrown)) {
#pragma unroll
            for (int m = 0; m < SLICES; m++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    f32 most = high[m][e];
                    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                    const f32 now = fmaxf(reference[m][e], most - OFFSET), keep = exp2_fast(reference[m][e] - now);
                    reference[m][e] = now, total[m][e] *= keep;
#pragma unroll
                    for (int j = 0; j < D / 8; j++) o[m][j][2 * e] *= keep, o[m][j][2 * e + 1] *= keep;
                }
        }
        u32 p[SLICES][KEYS / 16][4];
#pragma unroll
        for (int m = 0; m < SLICES; m++)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[m][j][i] = exp2_fast(s[m][j][i] * scale - reference[m][i / 2]);
                total[m][0] += s[m][j][0] + s[m][j][1], total[m][1] += s[m][j][2] + s[m][j][3];
                p[m][j / 2][j % 2 * 2] = pack_f16(s[m][j][0], s[m][j][1]);
                p[m][j / 2][j % 2 * 2 + 1] = pack_f16(s[m][j][2], s[m][j][3]);
            }
        const u32 values = next_unit() + v_row;
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                u32 b[4];
                ldmatrix_x4_trans(b, values + k * 16 * PITCH + chunk_at(2 * j + lane / 16));
#pragma unroll
                for (int m = 0; m < SLICES; m++) {
                    mma_f16(o[m][2 * j], p[m][k], b[0], b[1]);
                    mma_f16(o[m][2 * j + 1], p[m][k], b[2], b[3]);
                }
            }
    }
    cp_async_wait<0>();
    if (steps <= 0) __syncthreads();  // queries may still be on their way past another warp's wait

    // Rows back through this warp's own queries, then whole rows to memory.
    u8* stage = shared + warp * ROWS * PITCH;
    const i32 warp_first = first_query + i32(warp) * ROWS;
#pragma unroll
    for (int m = 0; m < SLICES; m++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            f32 sum = total[m][e];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (SINKS && sum > 0) sum += sink_weight(sinks, head, reference[m][e]);
            const f32 inverse = sum > 0 ? 1.0f / sum : 0.0f;
            const u32 row = 16 * m + g + 8 * e;
            const i32 query = warp_first + i32(row);
            if (lse && c == 0 && query < n)
                lse[i64(head) * n + query] = sum > 0 ? (reference[m][e] + log2f(sum)) * 0.69314718056f : __int_as_float(0xff800000);
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *reinterpret_cast<u32*>(stage + place(row, j) + 4 * c) =
                    pack_bf16(o[m][j][2 * e] * inverse, o[m][j][2 * e + 1] * inverse);
        }
    __syncwarp();
#pragma unroll
    for (int first = 0; first < ROWS * D / 8; first += 32) {
        const u32 i = first + lane, row = i / (D / 8), chunk = i % (D / 8);
        const i64 to = head_row(i32(warp * ROWS + row));
        if (to >= 0)
            *reinterpret_cast<uint4*>(out + to * D + chunk * 8) = *reinterpret_cast<const uint4*>(stage + place(row, chunk));
    }
}
