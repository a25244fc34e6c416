// Tiles of 64 keys or values, of heads of 512 of 32, of attention_portable.cu and attention_split.cu in shared memory: rows of
// 2 D bytes for ldmatrix.
//
// WARPS, of a block, is a define. The 16-byte chunks of a row are exchanged by row % 8, so that ldmatrix, of rows or transposed, meets no bank twice. Q4_0 rows
// arrive packed in a unit of their own pitch and are unpacked into a tile by all threads.
#pragma once
#include "head_row.cuh"

constexpr int D = HEAD_DIM, KEYS = D == 512 ? 32 : 64, THREADS = 32 * WARPS;
constexpr int PITCH = 2 * D, TILE = KEYS * PITCH;
constexpr int PACKED_ROW = D / 32 * 18, PACKED_PITCH = (D == 512 ? 288 : D == 256 ? 144 : D == 128 ? 80 : 48);
constexpr int ROW = Q4 ? PACKED_ROW : PITCH, UNIT = Q4 ? KEYS * PACKED_PITCH : TILE;
constexpr int CHUNK = !Q4 || D >= 256 ? 16 : D == 128 ? 8 : 4;

// Byte of 16-byte chunk `chunk` of a tile's row.
SP_DEVICE u32 place(u32 row, u32 chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

SP_DEVICE void copy_chunk(u32 target, const u8* source, bool valid) {
    if (CHUNK == 16) cp_async_16(target, source, valid);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(CHUNK == 16 ? 8 : CHUNK),
                     "r"(valid ? CHUNK : 0)
                     : "memory");
}

// KEYS tokens from `rows`, of which `valid` exist and zeros follow, to a unit of the ring.
SP_DEVICE void load_unit(u32 unit, const u8* rows, u32 token_bytes, int valid) {
    constexpr int CHUNKS = ROW / CHUNK;
    if (Q4) {
#pragma unroll
        for (int first = 0; first < KEYS * CHUNKS; first += THREADS) {
            const u32 i = first + threadIdx.x, row = i / CHUNKS, chunk = i % CHUNKS;
            if (KEYS * CHUNKS % THREADS == 0 || i < KEYS * CHUNKS)
                copy_chunk(unit + row * PACKED_PITCH + chunk * CHUNK, rows + u64(row) * token_bytes + chunk * CHUNK,
                           int(row) < valid);
        }
        return;
    }
    // A thread copies one chunk of every APART-th row, so that addresses step by constants.
    constexpr int APART = THREADS / (Q4 ? 8 : CHUNKS);
    constexpr bool POWER = (APART & (APART - 1)) == 0;
    const int row = int(threadIdx.x) / CHUNKS, chunk = int(threadIdx.x) % CHUNKS;
    const u8* source = rows + u32(row) * token_bytes + chunk * 16;
    const u32 target = unit + place(row, chunk);
#pragma unroll
    for (int i = 0; i * APART < KEYS; i++) {
        const u32 to = POWER ? (target ^ ((i * APART & 7) << 4)) + i * APART * PITCH : unit + place(row + i * APART, chunk);
        if (KEYS % APART == 0 || row + i * APART < KEYS) cp_async_16(to, source, row + i * APART < valid);
        source += APART * token_bytes;
    }
}

// Bytes 4i..4i+3 of a Q4_0 block that begins in word `word` of a pair of blocks (nine words, see decode_units.cuh).
SP_DEVICE u32 codes_of(const u32* pair, int odd, int i) {
    return odd ? pair[5 + i] : __byte_perm(pair[i], pair[i + 1], 0x5432);
}

// Codes in the low (or, high, the second) nibbles of four bytes -> d * (code - 8), f16, two to a register.
SP_DEVICE void decode_four(u32 (&out)[2], u32 bytes, bool high, u32 d) {
    const u32 nibbles = high ? bytes >> 4 : bytes;
    const u32 pairs[2] = {__byte_perm(nibbles, 0, 0x4140), __byte_perm(nibbles, 0, 0x4342)};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 codes;
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(codes) : "r"((pairs[i] & 0x000f000fu) | 0x64006400u), "r"(0x64086408u));
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(codes), "r"(d));
    }
}

// A packed unit of the ring -> a tile of f16; a thread turns eight bytes into two chunks of eight values.
SP_DEVICE void unpack(u8* tile, const u8* unit) {
    constexpr int EIGHTS = D / 16;  // of a row
    for (u32 i = threadIdx.x; i < KEYS * EIGHTS; i += THREADS) {
        const u32 row = i / EIGHTS, part = i % EIGHTS, block = part / 2, half = part % 2;
        const u32* pair = reinterpret_cast<const u32*>(unit + row * PACKED_PITCH) + block / 2 * 9;
        const bool odd = block % 2;
        const u32 d = odd ? __byte_perm(pair[4], 0, 0x3232) : __byte_perm(pair[0], 0, 0x1010);
        const u32 bytes[2] = {codes_of(pair, odd, int(2 * half)), codes_of(pair, odd, int(2 * half + 1))};
#pragma unroll
        for (int high = 0; high < 2; high++) {
            u32 a[2], b[2];
            decode_four(a, bytes[0], high, d), decode_four(b, bytes[1], high, d);
            *reinterpret_cast<uint4*>(tile + place(row, block * 4 + high * 2 + half)) = make_uint4(a[0], a[1], b[0], b[1]);
        }
    }
}
