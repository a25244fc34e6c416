// Moves the tokens of a path among the last tokens of a sequence to the front of these: keys and values of all layers.
//
//   token start + path[i] -> token start + i for i < *kept, start = *total + offset; rows stay packed as they are
//
// Layouts: pages (pool_pages, 128, kv_heads, row bytes) of keys and of values, a token of a page being k_words or v_words u32;
//   tables i32
//   (layers, blocks), token j of a layer in slot j % 128 of page table[j / 128]; path i32 (kept or more,), increasing; total, kept
//   i32 (1,).
// Launch: (ceil(the larger of words / 128), layers, 2) blocks of 128 threads, a thread one word of every token. What a later token still has
//   to be read from is not written before: path[i] >= i, and a batch is read whole before any of it is written. sm_80 and newer.
#include "pdl.cuh"

constexpr int PAGE_TOKENS = 128, TOGETHER = 8;

extern "C" __global__ void __launch_bounds__(128)
kv_commit(u32* k_pages, u32* v_pages, const i32* tables, i32 blocks, const i32* total, i32 offset, const i32* path,
        const i32* kept, i32 k_words, i32 v_words) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 word = i32(blockIdx.x * 128 + threadIdx.x), count = *kept, start = *total + offset;
    const i32 words = blockIdx.z ? v_words : k_words;
    if (word >= words) return;
    u32* pages = blockIdx.z ? v_pages : k_pages;
    const i32* table = tables + i64(blockIdx.y) * blocks;
    const auto place = [&](i32 token) {
        return pages + (i64(table[token / PAGE_TOKENS]) * PAGE_TOKENS + token % PAGE_TOKENS) * words + word;
    };
    for (i32 first = 0; first < count; first += TOGETHER) {
        u32 held[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (first + i < count) held[i] = *place(start + path[first + i]);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (first + i < count && path[first + i] != first + i) *place(start + first + i) = held[i];
    }
}
