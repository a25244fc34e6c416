// block_select.cu (what is listed, layouts and needs: there) with scores by wgmma, for sm_90a.
//
// Queries stay in shared memory and mean keys come KEYS at a time through a ring of two tiles, both as columns of 64 values, a row of
// which is 128 bytes. A block is one warpgroup. While the scores of 64 rows are summed up those of the other 64 are being made,
// against the same tile or the next one; there is one barrier a tile.
// Launch: heads / together * query blocks blocks of 128 threads. Defines: as there.
#include "wgmma_f16.cuh"
#ifndef RULE
#define RULE 0
#endif
constexpr int D = HEAD_DIM, ROWS = 128, BLOCK = 128, KEYS = D > 128 ? 32 : 64;  // of a tile
constexpr int WARPS = 4, THREADS = 32 * WARPS, TILE = KEYS * 2 * D;
// Blocks a multiprocessor: as many as there is memory for.
constexpr int RESIDENT = D > 128 || MOST_BLOCKS > 2048 ? 2 : D > 64 ? 3 : 4;
#include "block_choice.cuh"

typedef f32 Scores[1][KEYS / 2];  // of a warp's 16 rows

extern __shared__ __align__(1024) u8 shared[];  // queries | the ring | energies of each block

// Rows apart by `pitch` values to a tile of Count; past the `valid` ones the last again, whose scores are masked. A thread copies
// one chunk of 16 bytes, or one of every 16, of every APART-th row.
template <int Count>
SP_DEVICE void load_rows(u32 tile, const u16* source, i32 pitch, i32 valid) {
    constexpr int ACROSS = D > 128 ? 16 : D / 8, APART = THREADS / ACROSS;
    static_assert(APART % 8 == 0, "chunks of a thread lie at one place of their rows");
    const i32 row = i32(threadIdx.x) / ACROSS, chunk = i32(threadIdx.x) % ACROSS;
    source += chunk * 8;
    tile += chunk / 8 * Count * 128 + row * 128 + ((chunk % 8 ^ row % 8) << 4);
#pragma unroll
    for (int i = 0; i < Count; i += APART)
#pragma unroll
        for (int c = 0; c < D / 8; c += ACROSS)
            cp_async_16(tile + i * 128 + c / 8 * Count * 128, source + min(row + i, valid - 1) * pitch + 8 * c);
    cp_async_commit();
}

// Waits until what all threads copied is visible to the products of all.
SP_DEVICE void arrived() {
    cp_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
}

// Begin the scores of 64 rows against a tile, both by the descriptors of where they begin.
SP_DEVICE void multiply(Scores& s, u64 queries, u64 keys) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        wgmma_ss(s[0], queries + (k / 4 * ROWS * 128 + k % 4 * 32) / 16, keys + (k / 4 * KEYS * 128 + k % 4 * 32) / 16, k > 0);
    wgmma_commit();
}

SP_DEVICE void wait(Scores& s) {
    wgmma_wait<0>();
    accumulators_ready(s[0]);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
block_select_sm90(const u16* q, const u16* means, i32* counts, i32* indices, i32 n, i32 tokens, i32 heads, i32 kv_heads,
                  i32 together, i32 width, i32 sink, i32 window, i32 last_n, i32 least, i32 late, i32 unforced, f32 alpha,
                  f32 share, f32 scale, i32 most_blocks) {
    __shared__ Partial partial;
    const i32 query_blocks = (n + ROWS - 1) / ROWS, lists = heads / together;
    const i32 block = query_blocks - 1 - i32(blockIdx.x) / lists, first_head = i32(blockIdx.x) % lists * together;
    const Rows rows = {min(ROWS, n - ROWS * block), tokens - n + ROWS * block, late};
    const i32 candidates = (rows.start + rows.count - 1) / BLOCK + 1, end = (candidates + KEYS - 1) / KEYS;
    const List list = list_at(counts, indices, width, query_blocks, block, first_head, together);
    if (block >= query_blocks - last_n) {
        list_all(list, candidates);
        return;
    }
    const u32 queries = shared_address(shared), ring = queries + ROWS * 2 * D;
    const u64 upper_rows = wgmma_descriptor(queries), lower_rows = upper_rows + 64 * 128 / 16, keys = wgmma_descriptor(ring);
    const Energies energies = {reinterpret_cast<f32*>(shared + ROWS * 2 * D + 2 * TILE)};
    const u16* mean_rows = means + i64(first_head / (heads / kv_heads)) * ((tokens + BLOCK - 1) / BLOCK) * D;
    const auto load = [&](i32 tile) {
        load_rows<KEYS>(ring + tile % 2 * TILE, mean_rows + i64(tile) * KEYS * D, D, candidates - tile * KEYS);
    };
    const i32 first = i32(threadIdx.x) / 32 * 16, row = first + i32(threadIdx.x) % 32 / 4;
    const i32 upper_limit = min(rows.limit_of(first), rows.limit_of(first + 15));
    const i32 lower_limit = min(rows.limit_of(first + 64), rows.limit_of(first + 79));
    for (i32 pass = 0; pass < together; ++pass) {
        __syncthreads();
        load_rows<ROWS>(queries, q + (i64(block) * ROWS * heads + first_head + pass) * D, heads * D, rows.count);
        load(0);
        arrived();
        if (end > 1) load(1);
        Scores upper, lower;
        Lane mine = {NEVER};
        multiply(upper, upper_rows, keys);
        wait(upper);
        for (i32 tile = 0; tile < end; ++tile) {
            multiply(lower, lower_rows, keys + tile % 2 * (TILE / 16));
            add_up<true>(upper, mine, tile, rows, row, upper_limit, scale);
            wait(lower);
            arrived();
            multiply(upper, upper_rows, keys + (tile + 1) % 2 * (TILE / 16));  // behind the last tile of what lies there
            if (tile + 2 < end) load(tile + 2);
            if (tile > 0) join(partial, energies, tile - 1, pass);
            add_up<false>(lower, mine, tile, rows, row + 64, lower_limit, scale);
            add_lanes(mine, partial, tile);
            wait(upper);
        }
        __syncthreads();
        join(partial, energies, end - 1, pass);
    }
    __syncthreads();
    choose({sink, window, least, unforced, most_blocks, alpha, share}, energies.values, energies.peaks_of(together - 1),
           candidates, rows.start / BLOCK, list);
}
