// Tiles of 64 keys or values, of heads of 512 of 32, of attention_portable.cu and attention_split.cu in shared memory: rows of
// 2 D bytes for ldmatrix.
//
// WARPS, of a block, is a define. The 16-byte chunks of a row are exchanged by row % 8, so that ldmatrix, of rows or transposed,
// meets no bank twice. Packed rows (page_rows.cuh) arrive in a unit of their own and are unpacked into a tile by all threads.
#pragma once
#include "head_row.cuh"

constexpr int D = HEAD_DIM, KEYS = D == 512 ? 32 : 64, THREADS = 32 * WARPS;
constexpr int PITCH = 2 * D, TILE = KEYS * PITCH;

// Byte of 16-byte chunk `chunk` of a tile's row.
SP_DEVICE u32 place(u32 row, u32 chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

// KEYS tokens from `rows`, of which `valid` exist and zeros follow, to a tile.
SP_DEVICE void load_tile(u32 tile, const u8* rows, u32 token_bytes, int valid) {
    // A thread copies one chunk of every APART-th row, so that addresses step by constants.
    constexpr int CHUNKS = PITCH / 16, APART = THREADS / CHUNKS;
    constexpr bool POWER = (APART & (APART - 1)) == 0;
    const int row = int(threadIdx.x) / CHUNKS, chunk = int(threadIdx.x) % CHUNKS;
    const u8* source = rows + u32(row) * token_bytes + chunk * 16;
    const u32 target = tile + place(row, chunk);
#pragma unroll
    for (int i = 0; i * APART < KEYS; i++) {
        const u32 to = POWER ? (target ^ ((i * APART & 7) << 4)) + i * APART * PITCH : tile + place(row + i * APART, chunk);
        if (KEYS % APART == 0 || row + i * APART < KEYS) cp_async_16(to, source, row + i * APART < valid);
        source += APART * token_bytes;
    }
}

// Bytes from row to row of a packed unit: rows are aligned to 16 bytes.
SP_DEVICE constexpr int unit_pitch(int format) { return (row_bytes(format, D) + 15) / 16 * 16; }

// The same of rows as a page of a format holds them, to a unit.
template <int LAYOUT>
SP_DEVICE void load_packed(u32 unit, const u8* rows, u32 token_bytes, int valid) {
    constexpr int CHUNK = row_chunk(LAYOUT, D), CHUNKS = row_bytes(LAYOUT, D) / CHUNK;
#pragma unroll
    for (int first = 0; first < KEYS * CHUNKS; first += THREADS) {
        const u32 i = first + threadIdx.x, row = i / CHUNKS, chunk = i % CHUNKS;
        if (KEYS * CHUNKS % THREADS != 0 && i >= KEYS * CHUNKS) continue;
        const u32 target = unit + row * unit_pitch(LAYOUT) + chunk * CHUNK;
        const u8* source = rows + u64(row) * token_bytes + chunk * CHUNK;
        const bool exists = int(row) < valid;
        if (CHUNK == 16) cp_async_16(target, source, exists);
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source),
                         "n"(CHUNK == 16 ? 8 : CHUNK), "r"(exists ? CHUNK : 0)
                         : "memory");
    }
}

// A packed unit -> a tile of f16, both in shared memory; a thread turns eight values at a time.
template <int LAYOUT>
SP_DEVICE void unpack(u32 tile, u32 unit) {
    constexpr u32 EIGHTS = D / 8;  // of a row
#pragma unroll 1
    for (u32 i = threadIdx.x; i < KEYS * EIGHTS; i += THREADS) {
        const u32 row = i / EIGHTS, part = i % EIGHTS, from = unit + row * unit_pitch(LAYOUT);
        uint4 eight;
        if constexpr (LAYOUT == F16_ROWS)
            asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                         : "r"(from + 16 * part));
        else eight = eight_of<LAYOUT>(SharedRow{from}, part);
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(tile + place(row, part)), "r"(eight.x), "r"(eight.y),
                     "r"(eight.z), "r"(eight.w)
                     : "memory");
    }
}
