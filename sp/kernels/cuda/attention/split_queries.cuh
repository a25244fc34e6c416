// Query rows of a block of attention_split.cu: their number, the mask of each, and their copy to shared memory.
#pragma once
#include "head_row.cuh"
#include "key_tiles.cuh"

constexpr int PAIRS = WARPS / 2, QUERIES = 16 * PAIRS;
constexpr int P_PITCH = 128;  // bytes from row to row of probabilities, of which 32 keys fill half
constexpr u32 ALL = 0xffffffffu;

extern __shared__ __align__(128) u8 shared[];  // queries | probabilities | PACKED: one or two unpacked tiles | ring

SP_DEVICE void pair_barrier(u32 pair) { asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory"); }

SP_DEVICE u32 p_place(u32 row, u32 chunk) { return row * P_PITCH + ((chunk ^ (row & 7)) << 4); }

// The query rows of a kv head.
struct Rows {
    i32 n, group, heads, kv_head;
    u32 inverse;  // of the group: at most 64 queries of at most 256 heads have rows that 22 bits divide exactly

    SP_DEVICE Rows(i32 n, i32 heads, i32 kv_heads, i32 kv_head)
        : n(n), group(heads / kv_heads), heads(heads), kv_head(kv_head), inverse(((1u << 22) + group - 1) / group) {}
    SP_DEVICE bool exists(i32 row) const { return row < n * group; }
    SP_DEVICE i32 query(i32 row) const { return i32(u64(row) * inverse >> 22); }
    SP_DEVICE i64 head_row(i32 row) const {
        const i32 at = query(row);
        return exists(row) ? i64(at) * heads + kv_head * group + row - at * group : -1;
    }
};

// The first `count` bits of a word; none if negative.
SP_DEVICE u64 first_bits(i32 count) { return count >= 64 ? ~0ull : (1ull << max(count, 0)) - 1; }

// Bits of the keys that a query sees, of 64 from the tile's first key on: the last n tokens begin at `own`, `seen` is
// their mask; of those before, the window hides all up to `nearest`; there are no keys from `end` on.
SP_DEVICE u64 visible(u64 seen, i32 nearest, i32 own, i32 end) {
    const u64 mine = own >= 64 ? 0 : own >= 0 ? seen << own : seen >> -own;
    return (mine | (first_bits(own) & ~first_bits(nearest + 1))) & first_bits(end);
}

// Eight rows a warp into the tile of queries.
SP_DEVICE void load_queries(const u16* q, const Rows& rows, i32 first, u32 warp, u32 lane) {
    constexpr int CHUNKS = D / 8;
#pragma unroll 1
    for (u32 i = lane; i < 8 * CHUNKS; i += 32) {
        const u32 row = 8 * warp + i / CHUNKS, chunk = i % CHUNKS;
        const i64 from = rows.head_row(first + i32(row));
        cp_async_16(shared_address(shared) + place(row, chunk), q + (from < 0 ? 0 : from) * D + chunk * 8, from >= 0);
    }
}

// Where a row begins for ldmatrix, and in it a chunk, 0 or 1; chunk_at adds an even number to that, since `place` is an exclusive or
// and rows are aligned to 128 bytes.
SP_DEVICE u32 row_at(u32 row, u32 pitch, u32 odd) { return row * pitch + ((odd ^ (row & 7)) << 4); }
SP_DEVICE u32 chunk_at(u32 address, u32 even) { return (address ^ (even % 8 << 4)) + (even / 8 << 7); }
