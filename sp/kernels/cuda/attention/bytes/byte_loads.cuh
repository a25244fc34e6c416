// The loading side of attention_bytes.cu: what its blocks share, and the warp that feeds the ring.
#pragma once
#include "hopper.cuh"

#ifndef WINDOW
#define WINDOW 0
#endif
#define D HEAD_DIM
#define QUERIES 128
#define KEYS 128  // of a tile: a page
#define QUERY_BYTES (QUERIES * D * 2)
#define CODE_BYTES (QUERIES * D)
#define TILE_BYTES (KEYS * D)
#define STAGE_BYTES (TILE_BYTES + 1024)  // behind the tile eight rows of ones, by which values_of adds up weights

struct Shared {
    u64 full[STAGES], empty[STAGES];
    u64 query_full, query_empty;
    i32 first_key[STAGES];  // token of the first key of the tile in a stage
    f32 key_scale[STAGES];
    f32 query_scale[QUERIES];
    i32 tile, steps;  // of the queries now loaded; tile -1 ends the block
};

#include "tile_order.cuh"

// Run by one whole warp: K0 K1 V0 K2 V1 ..., as far ahead as the ring is long, and into the next tile.
SP_DEVICE void load(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map, const f32* key_scales,
                    const i32* counts, const i32* indices, i32 width, i32* next_tile, const Shape& shape, Shared& shared,
                    u8* queries, u8* stages) {
    const u32 lane = threadIdx.x % 32;
    const i32 tiles = shape.heads * shape.query_blocks, held = (shape.tokens + KEYS - 1) / KEYS;
    Ring ring;
    ring.phase = 1;  // the first wait on an empty stage passes
    u32 query_phase = 1;
    for (i32 tile = i32(blockIdx.x); tile < tiles; query_phase ^= 1) {
        i32 head, block;
        shape.place(tile, head, block);
        const i32 last = min(shape.tokens - shape.n + QUERIES * block + QUERIES, shape.tokens) - 1;
        const i64 list = i64(head) * shape.query_blocks + block;
        const i32 blocks = counts ? counts[list] : last / KEYS + 1;
        // Tiles wholly before the window of the first query are never asked for.
        const i32 steps = blocks - (WINDOW ? shape.reach[QUERIES * block] / KEYS : 0);
        const i32* listed = counts ? indices + list * width : nullptr;
        if (lane == 0) {
            barrier_wait(&shared.query_empty, query_phase);
            shared.tile = tile, shared.steps = steps;
            barrier_expect(&shared.query_full, QUERY_BYTES);
            tensor_load(queries, q_map, &shared.query_full, 0, QUERIES * block, 0, head);
        }
        const i32 first = head / shape.group * held;
        const auto copy = [&](const TensorMap* map, i32 rows, i32 index, f32 scale) {
            if (lane == 0) {
                barrier_wait(&shared.empty[ring.stage], ring.phase);
                shared.first_key[ring.stage] = index * KEYS, shared.key_scale[ring.stage] = scale;
                barrier_expect(&shared.full[ring.stage], TILE_BYTES);
                tensor_load(stages + ring.stage * STAGE_BYTES, map, &shared.full[ring.stage], 0, (first + index) * rows);
            }
            ring.advance();
        };
        i32 mine = 0, index = 0;
        f32 my_scale = 0;
        for (i32 step = 0; step < steps; ++step) {
            if (step % 32 == 0) {  // each lane looks up one of the next 32 tiles
                const i32 ordinal = blocks - 1 - min(step + i32(lane), steps - 1);
                mine = listed ? listed[ordinal] : ordinal;
                my_scale = key_scales[first + mine];
            }
            const i32 next = __shfl_sync(0xffffffffu, mine, step % 32);
            copy(k_map, KEYS, next, __shfl_sync(0xffffffffu, my_scale, step % 32));
            if (step > 0) copy(v_map, D, index, 0);
            index = next;
        }
        if (steps > 0) copy(v_map, D, index, 0);
        if (lane == 0) tile = i32(gridDim.x) + atomicAdd(next_tile, 1);
        tile = __shfl_sync(0xffffffffu, tile, 0);
    }
    if (lane == 0) {
        barrier_wait(&shared.query_empty, query_phase);
        shared.tile = -1;
        barrier_arrive(&shared.query_full);
    }
}
