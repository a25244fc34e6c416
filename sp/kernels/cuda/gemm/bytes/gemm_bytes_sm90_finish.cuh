// Shapes in shared memory of gemm_bytes_sm90, its order of tiles, and how 64 outputs x TOKENS of a warpgroup leave it:
// transposed in shared memory, then by TMA.
//
// A chunk is 64 outputs x 32 tokens, 16 registers of a thread; its rows in shared memory are tokens, 128 bytes each (64 outputs
// in bf16; 2 boxes of 32 in float32), 128-byte swizzled, so that neither side has bank conflicts. Rows and tokens past the end
// are cut by the tensor map. Defines as in gemm_bytes_sm90.cu. Arch 90a.
#pragma once
#include "activations.cuh"
#include "epilogue.cuh"
#include "hopper.cuh"

// Sums of bytes, and in the same registers what they are once they are scaled: float32, of int8 as its bits. Another array would
// not fit beside this one.
#if KIND == 0
typedef i32 Sum;
SP_DEVICE f32 scaled(i32 sum) { return __int_as_float(sum); }
SP_DEVICE void scale(i32& sum, f32 by) { sum = __float_as_int(f32(sum) * by); }
#else
typedef f32 Sum;
SP_DEVICE f32 scaled(f32 sum) { return sum; }
SP_DEVICE void scale(f32& sum, f32 by) { sum *= by; }
#endif

enum Shape {
    WARPGROUPS = 2,
    X_BYTES = TOKENS * 128,
    W_BYTES = 64 * 128,         // of one warpgroup
    SCALE_SLOTS = 4,            // of the scales of a tile's tokens
    BOX_BYTES = 32 * 128,       // 32 tokens of 128 bytes
    CHUNKS = TOKENS / 32,       // of a warpgroup's result
    GATED = EPILOGUE == EPILOGUE_SWIGLU,
    WIDE = EPILOGUE == EPILOGUE_STORE_F32 || EPILOGUE == EPILOGUE_ADD,  // float32 results, not bf16
    CHUNK_BOXES = WIDE ? 2 : 1,
    SLOTS = WIDE ? 1 : 2,       // chunks of a warpgroup that can be on their way out
    OUT_TILES = GATED ? 1 : WARPGROUPS,  // row tiles of a block
    STAGING_BYTES = SLOTS * CHUNK_BOXES * BOX_BYTES,
    W_OFFSET = STAGES * X_BYTES,
    SCALES_OFFSET = W_OFFSET + STAGES * WARPGROUPS * W_BYTES,
    STAGING_OFFSET = (SCALES_OFFSET + SCALE_SLOTS * TOKENS * 4 + 1023) / 1024 * 1024,
    BARRIER_OFFSET = STAGING_OFFSET + WARPGROUPS * STAGING_BYTES
};
static_assert(STAGES < 2 * SCALE_SLOTS, "tiles have two steps: a slot's scales are read before the ring comes round to it");
static_assert(TOKENS % 32 == 0 && (!GATED || CHUNKS % 2 == 0), "whole chunks, and of SWIGLU as many for each warpgroup");

// A place in the ring of stages and the parity of its current round.
struct Ring {
    u32 stage = 0, phase = 0;
    SP_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// First token and row tile.
struct Tile {
    i32 token, row_tile;
};

SP_DEVICE Tile tile_of(u32 index, u32 token_blocks, u32 out_blocks, u32 rank) {
    const u32 group = index / (GROUP * out_blocks), first = group * GROUP, size = min(u32(GROUP), token_blocks - first);
    const u32 rest = index - first * out_blocks;
    return {i32((first + rest % size) * TOKENS), i32((rest / size * CLUSTER + rank) * OUT_TILES)};
}

// Where a lane's row of the first stmatrix of a chunk goes. Matrix i of one: outputs 8 (i % 2).. of the warp's 16,
// tokens 8 (i / 2)..
SP_DEVICE u32 bf16_place(const u8* slot, u32 warp, u32 lane) {
    const u32 i = lane / 8;
    return shared_address(slot) + (8 * (i / 2) + lane % 8) * 128 + (((2 * warp + i % 2) ^ (lane % 8)) << 4);
}

// A chunk of a warpgroup: 16 values a thread.
SP_DEVICE void store_chunk(u8* slot, const Sum* d, u32 warp, u32 lane) {
    if constexpr (CHUNK_BOXES == 1) {
        const u32 place = bf16_place(slot, warp, lane);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            u32 r[4];
#pragma unroll
            for (int m = 0; m < 4; ++m) r[m] = pack_bf16(scaled(d[8 * j + 2 * m]), scaled(d[8 * j + 2 * m + 1]));
            stmatrix_x4_trans(place + j * 2048, r);
        }
    } else {
        const u32 g = lane / 4, c = lane % 4;
        u8* box = slot + warp / 2 * BOX_BYTES;
#pragma unroll
        for (int e = 0; e < 4; ++e) {  // element e: output + 8 (e / 2), token + e % 2
            const u32 out = 16 * (warp % 2) + g + 8 * (e / 2), token = 2 * c + e % 2;
            u8* place = box + token * 128 + (((out / 4) ^ token) << 4) + out % 4 * 4;
#pragma unroll
            for (int j = 0; j < 4; ++j) *reinterpret_cast<f32*>(place + j * 1024) = scaled(d[4 * j + e]);
        }
    }
}

// All but SWIGLU: a warpgroup's result, through its staging area.
SP_DEVICE void finish(const Sum* d, u8* staging, const TensorMap* y_map, i32 row, i32 token, u32 group, u32 thread) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        u8* slot = staging + chunk % SLOTS * CHUNK_BOXES * BOX_BYTES;
        if (thread == 0) {
            if (chunk == 0)
                bulk_wait_read<0>();
            else
                bulk_wait_read<SLOTS - 1>();
        }
        named_barrier(1 + group, 128);
        store_chunk(slot, d + 16 * chunk, thread / 32, thread % 32);
        fence_async_proxy();
        named_barrier(1 + group, 128);
        if (thread == 0) {
            for (int box = 0; box < CHUNK_BOXES; ++box) {
                const u8* source = slot + box * BOX_BYTES;
                if constexpr (EPILOGUE == EPILOGUE_ADD) tensor_add(y_map, source, row + 32 * box, token + 32 * chunk);
                if constexpr (EPILOGUE != EPILOGUE_ADD) tensor_store(y_map, source, row + 32 * box, token + 32 * chunk);
            }
            bulk_commit();
        }
    }
}

// SWIGLU: warpgroup `Group` finishes every second chunk. A slot of `mine` receives the other weight's values of it and then holds
// the results on their way out; `other` is the same of the other warpgroup.
template <u32 Group>
SP_DEVICE void finish_gated(const Sum* d, u8* mine, u8* other, const TensorMap* y_map, i32 row, i32 token, u32 thread) {
#pragma unroll
    for (int c = 0; c < CHUNKS / 2; ++c) {
        const u32 slot = c % SLOTS * BOX_BYTES;
        if (thread == 0) {
            if (c == 0)
                bulk_wait_read<0>();
            else
                bulk_wait_read<SLOTS - 1>();
        }
        named_barrier(3, 256);
        u32* away = reinterpret_cast<u32*>(other + slot) + thread;
        const Sum* given = d + 16 * (2 * c + 1 - Group);
#pragma unroll
        for (int i = 0; i < 8; ++i) away[i * 128] = pack_bf16(scaled(given[2 * i]), scaled(given[2 * i + 1]));
        named_barrier(3, 256);
        const u32* here = reinterpret_cast<const u32*>(mine + slot) + thread;
        const Sum* kept = d + 16 * (2 * c + Group);
        u32 r[2][4];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const u32 own = pack_bf16(scaled(kept[2 * i]), scaled(kept[2 * i + 1])), their = here[i * 128];
            const u32 gate = Group == 0 ? own : their, up = Group == 0 ? their : own;
            r[i / 4][i % 4] =
                pack_bf16(silu(low_bf16(gate)) * low_bf16(up), silu(high_bf16(gate)) * high_bf16(up));
        }
        named_barrier(1 + Group, 128);
        const u32 place = bf16_place(mine + slot, thread / 32, thread % 32);
#pragma unroll
        for (int j = 0; j < 2; ++j) stmatrix_x4_trans(place + j * 2048, r[j]);
        fence_async_proxy();
        named_barrier(1 + Group, 128);
        if (thread == 0) {
            tensor_store(y_map, mine + slot, row, token + 32 * (2 * c + i32(Group)));
            bulk_commit();
        }
    }
}
