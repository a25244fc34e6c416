// attention_skip.cu on mma.sync tensor cores of any GPU from sm_80: causal attention of many queries over f16 pages that
// leaves out tiles of little weight as it meets them.
//
//   out[i, h] = sum_j w_ij v[j, h / group] / sum_j w_ij,  w_ij = exp(scale * q[i, h] . k[j, h / group]),  j <= tokens - n + i
//   over tiles of 64 keys that are read. For the ROWS rows of a warp together a tile is left out if for each row its weights
//   sum to at most `share`, and those of all tiles left out and it to at most `budget`, of all that the row has met, them included.
//
// Layouts: as in attention_portable.cu; no lists. read i32 (heads, ceil(n / QUERIES), WARPS): of the tiles that a
//   warp's rows see, those whose values were read.
// Launch: heads * ceil(n / QUERIES) blocks of 32 WARPS threads, QUERIES = WARPS ROWS, ROWS = 16 SLICES, longest rows first;
//   scale includes log2(e).
// Needs: 16-byte aligned arrays, 1 <= n <= tokens, 0 <= share, budget < 1. Slots past `tokens` may hold NaN. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; WARPS; SLICES (16-row slices of a warp); SLOTS of the ring.
//
// The ring of tiles is that of attention_portable.cu; values come whether they are read or not. The first tile of keys comes
// first, so that others can be judged by it; then from the diagonal down. After Yuan et al., "BLASST", 2025.
#include "key_tiles.cuh"
#include "softmax.cuh"

constexpr int ROWS = 16 * SLICES, QUERIES = WARPS * ROWS;

extern __shared__ __align__(128) u8 shared[];  // queries | ring

SP_DEVICE f32 quad_sum(f32 x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_skip_portable(const u16* q, const u8* k_pages, const u8* v_pages, const i32* table, u16* out, i32* read,
                        i32 tokens, i32 n, i32 heads, i32 kv_heads, f32 scale, f32 share,
                        f32 budget) {
    const i32 blocks = (n + QUERIES - 1) / QUERIES;
    const i32 head = i32(blockIdx.x) % heads, block = blocks - 1 - i32(blockIdx.x) / heads;
    const i32 first_query = block * QUERIES, kv_head = head / (heads / kv_heads);
    const i32 limit = min(tokens - n + first_query + QUERIES, tokens);  // keys any row of this block may see
    const i32 steps = (limit + KEYS - 1) / KEYS;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = int(lane) / 4, c = int(lane) % 4;
    const auto tile_of = [&](i32 step) { return step == 0 ? 0 : steps - step; };

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
    // Units 2 s and 2 s + 1 are K and V of step s.
    i32 issued = 0;
    const auto issue = [&](int slot) {
        const i32 step = issued / 2;
        if (step < steps) {
            const i32 token = tile_of(step) * KEYS;
            const i64 row = (i64(table[token / PAGE_TOKENS]) * PAGE_TOKENS + token % PAGE_TOKENS) * kv_heads + kv_head;
            const u8* pages = issued % 2 ? v_pages : k_pages;
            load_tile(ring_address + slot * TILE, pages + row * PITCH, token_bytes, tokens - token);
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
    f32 met[SLICES][2];  // this thread's part of all weights of a row, as `total` is of those that are read
#pragma unroll
    for (int m = 0; m < SLICES; m++) {
        reference[m][0] = reference[m][1] = NEVER, total[m][0] = total[m][1] = met[m][0] = met[m][1] = 0;
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[m][j][0] = o[m][j][1] = o[m][j][2] = o[m][j][3] = 0;
    }
    // Addresses of this lane's row in ldmatrix: rows of A and of V^T by lane % 16, rows of K by lane % 8 and lane / 16.
    const u32 a_row = shared_address(shared) + (warp * ROWS + lane % 16) * PITCH;
    const u32 k_row = (lane % 8 + lane / 16 * 8) * PITCH, v_row = lane % 16 * PITCH;
    const auto chunk_at = [&](u32 chunk) { return ((chunk ^ (lane & 7)) << 4); };
    const i32 warp_row = first_query + i32(warp) * ROWS, before = tokens - n;
    i32 omitted = 0;

    for (i32 step = 0; step < steps; step++) {
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
        const bool masked = token + KEYS > before + warp_row + 1;
        if (masked) {
#pragma unroll
            for (int m = 0; m < SLICES; m++)
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (token + 8 * j + 2 * c + i % 2 > before + warp_row + 16 * m + g + i / 2 * 8)
                            s[m][j][i] = __int_as_float(0xff800000);
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
                    reference[m][e] = now, total[m][e] *= keep, met[m][e] *= keep;
#pragma unroll
                    for (int j = 0; j < D / 8; j++) o[m][j][2 * e] *= keep, o[m][j][2 * e + 1] *= keep;
                }
        }
        f32 sum[SLICES][2];
        bool may = !masked && step > 0;
#pragma unroll
        for (int m = 0; m < SLICES; m++) {
            sum[m][0] = sum[m][1] = 0;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[m][j][i] = exp2_fast(s[m][j][i] * scale - reference[m][i / 2]);
                    sum[m][i / 2] += s[m][j][i];
                }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const bool beyond = warp_row + 16 * m + g + 8 * e >= n;  // no row
                met[m][e] += sum[m][e];
                const f32 small = quad_sum(share * met[m][e] - sum[m][e]);  // by all lanes, whatever other rows said
                const f32 spare = quad_sum(total[m][e] - (1.0f - budget) * met[m][e]);
                may &= ((small >= 0) & (spare >= 0)) | beyond;
            }
        }
        const bool left = __all_sync(0xffffffffu, may);
#pragma unroll
        for (int m = 0; m < SLICES; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) total[m][e] += left ? 0.0f : sum[m][e];
        const u32 values = next_unit() + v_row;
        if (left) {
            omitted++;
            continue;
        }
        u32 p[SLICES][KEYS / 16][4];
#pragma unroll
        for (int m = 0; m < SLICES; m++)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                p[m][j / 2][j % 2 * 2] = pack_f16(s[m][j][0], s[m][j][1]);
                p[m][j / 2][j % 2 * 2 + 1] = pack_f16(s[m][j][2], s[m][j][3]);
            }
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
    const i32 seen = warp_row < n ? (min(before + warp_row + ROWS, tokens) - 1) / KEYS + 1 : omitted;
    if (lane == 0) read[(i64(head) * blocks + block) * WARPS + warp] = seen - omitted;

    // Rows back through this warp's own queries, then whole rows to memory.
    u8* stage = shared + warp * ROWS * PITCH;
#pragma unroll
    for (int m = 0; m < SLICES; m++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const f32 sum = quad_sum(total[m][e]);
            const f32 inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *reinterpret_cast<u32*>(stage + place(16 * m + g + 8 * e, j) + 4 * c) =
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
