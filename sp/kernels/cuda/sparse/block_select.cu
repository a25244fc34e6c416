// Selects the blocks of 128 keys that each block of 128 queries reads: energies against mean keys, then a threshold or
// the strongest, as lists.
//
//   s[i, J] = scale log2(e) q[i] . mean[J] over the rows i of a query block that see J;  M = max s
//   E[J] = sum_i 2^(s[i, J] - M);  J is listed where E[J] >= alpha max E, or among the `least` strongest, or forced, and
//   begins no later than the last row. With share > 0 instead: forced blocks, then the strongest, ceil(share candidates) in all.
//
// RULE 1 and 2 as with share > 0, but so many in all, no fewer than `least` and no more than `most`: 1, ceil(share sqrt(candidates));
// 2, the fewest that hold `share` of the sum of E, which is added up in steps of 2^-32, so that no order of adding matters.
//
// Rows see a block when its last token (late = 1) or its first (late = 0) is not after them. Forced: blocks below `sink`; the
// `window` blocks that end with the one of the first row; those after it; all, for the last `last_n` query blocks. `together`
// query heads have one list: their rows are one set. The maximum of E leaves forced blocks out where `unforced` is set.
//
// Layouts: q f16 (n, heads, HEAD_DIM), the last n of `tokens` tokens; means f16 (kv_heads, ceil(tokens / 128), HEAD_DIM);
//   counts i32 (heads, query blocks), indices i32 (heads, query blocks, width), ascending, `width` at least the blocks.
// Launch: heads / together * query blocks blocks of 32 WARPS threads, longest rows first.
// Needs: 16-byte aligned arrays; 1 <= n <= tokens; scale > 0; `together` 1 or heads / kv_heads; tokens <= 128 MOST_BLOCKS.
// Defines: HEAD_DIM 64, 128, 256; MOST_BLOCKS, a multiple of 64, for which shared memory was sized; RULE, 0 if there is none.
// sm_80 and newer; block_select_sm90.cu is for sm_90a.
//
// Queries are held in registers; mean keys come KEYS at a time through a ring of two tiles. After Fan et al., "FlashPrefill", 2026.
#include "mma.cuh"
#ifndef RULE
#define RULE 0
#endif
constexpr int D = HEAD_DIM, ROWS = 128, BLOCK = 128, KEYS = 32;  // of a tile
constexpr int SLICES = D > 128 ? 1 : 2, WARPS = ROWS / (16 * SLICES), THREADS = 32 * WARPS;
constexpr int PITCH = 2 * D, TILE = KEYS * PITCH;
// Blocks a multiprocessor: GPUs with 100 KiB of shared memory hold two anyway.
constexpr int RESIDENT = D <= 128 && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900) ? 3 : 2;
#include "block_choice.cuh"

extern __shared__ __align__(512) u8 shared[];  // queries, in their place later the ring | energies of each block

SP_DEVICE u32 place(u32 row, u32 chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

// Rows apart by `pitch` values to a tile; past the `valid` ones the last again, whose scores are masked. A thread copies one
// chunk of every APART-th row; APART is a multiple of 8, so that its chunks lie at the same place of their rows.
template <int Count>
SP_DEVICE void load_rows(u32 tile, const u16* source, i32 pitch, i32 valid) {
    constexpr int CHUNKS = D / 8, APART = THREADS / CHUNKS;
    const i32 row = i32(threadIdx.x) / CHUNKS, chunk = i32(threadIdx.x) % CHUNKS;
    source += chunk * 8;
    tile += place(row, chunk);
#pragma unroll
    for (int i = 0; i < Count; i += APART) cp_async_16(tile + i * PITCH, source + min(row + i, valid - 1) * pitch);
    cp_async_commit();
}

// Scores of the warp's queries against a tile.
SP_DEVICE void multiply(f32 (&s)[SLICES][KEYS / 2], const u32 (&a)[SLICES][D / 16][4], u32 tile) {
    const u32 lane = threadIdx.x % 32, keys = tile + place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    f32(&sums)[SLICES][KEYS / 8][4] = reinterpret_cast<f32(&)[SLICES][KEYS / 8][4]>(s);
#pragma unroll
    for (int m = 0; m < SLICES; ++m)
#pragma unroll
        for (int j = 0; j < KEYS / 2; ++j) s[m][j] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) {
            u32 b[4];
            ldmatrix_x4(b, (keys ^ k << 5) + j * 16 * PITCH);  // tiles are aligned to a row: chunk 2 k + i of it
#pragma unroll
            for (int m = 0; m < SLICES; ++m) {
                mma_f16(sums[m][2 * j], a[m][k], b[0], b[1]);
                mma_f16(sums[m][2 * j + 1], a[m][k], b[2], b[3]);
            }
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
block_select(const u16* q, const u16* means, i32* counts, i32* indices, i32 n, i32 tokens, i32 heads, i32 kv_heads,
             i32 together, i32 width, i32 sink, i32 window, i32 last_n, i32 least, i32 late, i32 unforced, f32 alpha,
             f32 share, f32 scale, i32 most_blocks) {
    __shared__ Partial partial;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 query_blocks = (n + ROWS - 1) / ROWS, lists = heads / together;
    const i32 block = query_blocks - 1 - i32(blockIdx.x) / lists, first_head = i32(blockIdx.x) % lists * together;
    const Rows rows = {min(ROWS, n - ROWS * block), tokens - n + ROWS * block, late};
    const i32 candidates = (rows.start + rows.count - 1) / BLOCK + 1;
    const List list = list_at(counts, indices, width, query_blocks, block, first_head, together);
    if (block >= query_blocks - last_n) {
        list_all(list, candidates);
        return;
    }
    const Energies energies = {reinterpret_cast<f32*>(shared + ROWS * PITCH)};
    const u32 tiles = shared_address(shared);
    const u16* mean_rows = means + i64(first_head / (heads / kv_heads)) * ((tokens + BLOCK - 1) / BLOCK) * D;
    const auto load = [&](i32 tile) {
        load_rows<KEYS>(tiles + tile % 2 * TILE, mean_rows + i64(tile) * KEYS * D, D, candidates - tile * KEYS);
    };
    const i32 first = i32(warp) * 16 * SLICES, end = (candidates + KEYS - 1) / KEYS;
    const i32 limit = min(rows.limit_of(first), rows.limit_of(first + 16 * SLICES - 1));
    for (i32 pass = 0; pass < together; ++pass) {
        __syncthreads();
        load_rows<ROWS>(tiles, q + (i64(block) * ROWS * heads + first_head + pass) * D, heads * D, rows.count);
        cp_async_wait<0>();
        __syncthreads();
        u32 a[SLICES][D / 16][4];
#pragma unroll
        for (int m = 0; m < SLICES; ++m)
#pragma unroll
            for (int k = 0; k < D / 16; ++k)
                ldmatrix_x4(a[m][k], (tiles + place(first + lane % 16, lane / 16) ^ k << 5) + 16 * m * PITCH);
        __syncthreads();
        load(0);
        Lane mine = {NEVER};
        for (i32 tile = 0; tile < end; ++tile) {
            cp_async_wait<0>();
            __syncthreads();
            if (tile + 1 < end) load(tile + 1);
            if (tile > 0) join(partial, energies, tile - 1, pass);
            f32 s[SLICES][KEYS / 2];
            multiply(s, a, tiles + tile % 2 * TILE);
            add_up<true>(s, mine, tile, rows, first + i32(lane) / 4, limit, scale);
            add_lanes(mine, partial, tile);
        }
        __syncthreads();
        join(partial, energies, end - 1, pass);
    }
    __syncthreads();
    choose({sink, window, least, unforced, most_blocks, alpha, share}, energies.values, energies.peaks_of(together - 1),
           candidates, rows.start / BLOCK, list);
}
