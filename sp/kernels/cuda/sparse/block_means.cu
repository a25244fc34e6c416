// Mean of the keys (or values) of every block of 128 tokens: what FlashPrefill scores blocks by.
//
//   means[h, b] = sum of rows 128 b .. min(128 b + 127, tokens - 1) of head h / how many those are; f32 sums, one rounding
//
// Layouts: pages (pool_pages, 128, kv_heads, row bytes), see page_rows.cuh, token j in slot j % 128 of page table[j / 128]; means
//   f16 (kv_heads, blocks, HEAD_DIM).
// Launch: (kv_heads, blocks) blocks of 128 threads. 16-byte aligned arrays; slots past `tokens` are not read.
// Defines: HEAD_DIM 64, 128, 256; FORMAT, see page_rows.cuh. sm_80 and newer.
#include "page_rows.cuh"

constexpr int THREADS = 128, PAGE = 128, D = HEAD_DIM;
constexpr int CHUNKS = D / 8, APART = THREADS / CHUNKS;  // a thread sums 8 columns of every APART-th row
constexpr int ROW_BYTES = row_bytes(FORMAT, D);

// Adds values 8 chunk .. 8 chunk + 7 of a row.
SP_DEVICE void add_chunk(f32 (&sum)[8], const u8* row, int chunk) {
    const uint4 eight = eight_at<FORMAT>(row, u32(chunk));
    const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[2 * i] += low_f16(words[i]), sum[2 * i + 1] += high_f16(words[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
block_means(const u8* pages, const i32* table, u16* means, i32 tokens, i32 kv_heads) {
    __shared__ f32 sums[APART][D];
    const i32 head = i32(blockIdx.x), block = i32(blockIdx.y), blocks = i32(gridDim.y);
    const int chunk = int(threadIdx.x) % CHUNKS, first = int(threadIdx.x) / CHUNKS;
    const int valid = min(PAGE, tokens - block * PAGE);
    const u8* rows = pages + (i64(table[block]) * PAGE * kv_heads + head) * ROW_BYTES;
    f32 sum[8] = {};
#pragma unroll 8
    for (int i = 0; i < PAGE / APART; ++i) {
        const int row = first + i * APART;
        if (row < valid) add_chunk(sum, rows + i64(row) * kv_heads * ROW_BYTES, chunk);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[first][8 * chunk + i] = sum[i];
    __syncthreads();
    for (int column = int(threadIdx.x); column < D; column += THREADS) {
        f32 total = 0;
#pragma unroll
        for (int i = 0; i < APART; ++i) total += sums[i][column];
        means[(i64(head) * blocks + block) * D + column] = f16_from(total / f32(valid));
    }
}
