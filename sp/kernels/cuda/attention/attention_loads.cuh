// The loading side of attention_sm90.cu: what its blocks share, the order of their tiles, and the warp that feeds the
// ring.
#pragma once
#include "hopper.cuh"

#define QUERIES 128
#define PAGE 128
#ifndef WINDOW
#define WINDOW 0
#endif
#define KEYS (D == 256 ? 64 : 128)  // of a tile
#define PARTS (PAGE / KEYS)
#define PANELS (D / 64)
#define STAGE_BYTES (KEYS * D * 2)
#define QUERY_BYTES (QUERIES * D * 2)

struct Shared {
    u64 full[STAGES], empty[STAGES];
    u64 query_full, query_empty;
    i32 first_key[STAGES];  // token of the first key of the tile in a stage
    i32 tile, steps;        // of the queries now loaded; tile -1 ends the block
};

#include "tile_order.cuh"

// Run by one whole warp. Queries of a tile come when the last of its predecessor's scores are done; keys and values run
// ahead, as far as the ring is long, and into the next tile.
SP_DEVICE void load(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map, const i32* table,
                    const i32* counts, const i32* indices, i32 width, i32* next_tile, const Shape& shape,
                    Shared& shared, u8* queries, u8* stages) {
    const u32 lane = threadIdx.x % 32;
    const i32 tiles = shape.heads * shape.query_blocks;
    Ring ring;
    ring.phase = 1;  // the first wait on an empty stage passes
    u32 query_phase = 1;
    for (i32 tile = blockIdx.x; tile < tiles; query_phase ^= 1) {
        i32 head, block;
        shape.place(tile, head, block);
        const i32 last = min(shape.tokens - shape.n + QUERIES * block + QUERIES, shape.tokens) - 1;
        const i64 list = i64(head) * shape.query_blocks + block;
        const i32 blocks = counts ? counts[list] : last / PAGE + 1;
        const i32* listed = counts ? indices + list * width : nullptr;
        const i32 top = blocks == 0 ? 0 : listed ? listed[blocks - 1] : blocks - 1;
        const i32 skip = blocks > 0 && PARTS == 2 && top * PAGE + KEYS > last;  // upper half of the last page unseen
        // Tiles wholly before the window of the first query are never asked for.
        const i32 end = blocks * PARTS - (WINDOW ? shape.reach[QUERIES * block] / KEYS : 0);
        if (lane == 0) {
            barrier_wait(&shared.query_empty, query_phase);
            shared.tile = tile, shared.steps = end - skip;
            barrier_expect(&shared.query_full, QUERY_BYTES);
            tensor_load(queries, q_map, &shared.query_full, 0, QUERIES * block, 0, head);
        }
        const i32 kv_head = head / shape.group;
        auto copy = [&](const TensorMap* map, i32 key, i32 row) {
            if (lane == 0) {
                barrier_wait(&shared.empty[ring.stage], ring.phase);
                shared.first_key[ring.stage] = key;
                barrier_expect(&shared.full[ring.stage], STAGE_BYTES);
                tensor_load(stages + ring.stage * STAGE_BYTES, map, &shared.full[ring.stage], 0, row, 0, kv_head);
            }
            ring.advance();
        };
        i32 my_key = 0, my_row = 0, key = 0, row = 0;
        for (i32 step = skip; step < end; ++step) {
            if ((step - skip) % 32 == 0) {  // each lane looks up the page of one of the next 32 tiles
                const i32 mine = min(step + i32(lane), end - 1), ordinal = blocks - 1 - mine / PARTS;
                const i32 part = (PARTS - 1 - mine % PARTS) * KEYS, index = listed ? listed[ordinal] : ordinal;
                my_key = index * PAGE + part, my_row = table[index] * PAGE + part;
            }
            const i32 next_key = __shfl_sync(0xffffffffu, my_key, (step - skip) % 32);
            const i32 next_row = __shfl_sync(0xffffffffu, my_row, (step - skip) % 32);
            copy(k_map, next_key, next_row);
            if (step > skip) copy(v_map, key, row);
            key = next_key, row = next_row;
        }
        if (end > 0) copy(v_map, key, row);
        if (lane == 0) tile = gridDim.x + atomicAdd(next_tile, 1);
        tile = __shfl_sync(0xffffffffu, tile, 0);
    }
    if (lane == 0) {
        barrier_wait(&shared.query_empty, query_phase);
        shared.tile = -1;
        barrier_arrive(&shared.query_full);
    }
}
