// Stores rows of keys or values in pages of the KV cache, and reads them back.
//
//   kv_append  values[t, h] -> page table[s / 128], slot s % 128, head h, s = start + t; packed as FORMAT says, rotated first by
//              a Hadamard matrix over blocks of ROTATE values unless that is 0; keys with a basis ordered, scaled and rotated by
//              `order`, `shift`, `inverse`, see to_basis in head_row.cuh
//   kv_gather  the first `tokens` tokens of a sequence -> f16 (rows, kv_heads, d), zeros from `tokens` to `rows`
//
// Layouts: values (tokens, kv_heads, d) bf16 or f16; pages (pool_pages, 128, kv_heads, row bytes), see page_rows.cuh;
//   table i32; start i32 on the device or null, `offset` is added to it; order i32, shift and inverse f32 (kv_heads, d) or null.
// Launch: kv_append 4 warps a block, a warp a row; kv_gather 256 threads a block, 8 values a thread. 16-byte aligned arrays.
// Defines: HEAD_DIM 64, 128, 256, 512; FORMAT, see page_rows.cuh; for kv_append BF16 (values, else f16), ROTATE, and BASIS 1 for
//   keys with a basis in another format than K5. sm_80 and newer.
#include "head_row.cuh"

#ifdef ROTATE
#ifndef BASIS
#define BASIS 0
#endif
constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
kv_append(const u16* values, u8* pages, const i32* table, const i32* start, i32 offset, i64 rows, i32 kv_heads,
          const i32* order, const f32* shift, const f32* inverse) {
    __shared__ alignas(16) f32 scratch[WARPS][HEAD_DIM];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 row = i64(blockIdx.x) * WARPS + warp;
    if (row >= rows) return;
    HeadRow r = BF16 ? load_bf16(values + row * HEAD_DIM, lane) : load_f16(values + row * HEAD_DIM, lane);
    const int first = int(row % kv_heads) * HEAD_DIM;
    if (FORMAT == K5_ROWS || BASIS) to_basis(r, order + first, shift + first, inverse + first, scratch[warp], lane);
    else if (ROTATE) hadamard<ROTATE ? ROTATE : HEAD_DIM>(r, lane);
    const i32 slot = (start ? *start : 0) + offset + i32(row / kv_heads);
    store_in_page<FORMAT>(pages, table, slot, int(row % kv_heads), kv_heads, r, scratch[warp], lane);
}
#endif

extern "C" __global__ void __launch_bounds__(256)
kv_gather(const u8* pages, const i32* table, u16* out, i64 rows, i64 tokens, i32 kv_heads) {
    constexpr int EIGHTS = HEAD_DIM / 8;
    const i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
    const i64 row = index / EIGHTS;
    if (row >= rows * kv_heads) return;
    const u32 part = u32(index % EIGHTS);
    const i64 token = row / kv_heads;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (token < tokens) {
        const i64 place = i64(table[token / PAGE_TOKENS]) * PAGE_TOKENS + token % PAGE_TOKENS;
        const i64 at = place * kv_heads + row % kv_heads;
        eight = eight_at<FORMAT>(pages + at * row_bytes(FORMAT, HEAD_DIM), part);
    }
    reinterpret_cast<uint4*>(out)[index] = eight;
}
