// The loading side of attention_byte_keys.cu: what its blocks share, and the warp that feeds the ring.
#pragma once
#include "hopper.cuh"

#define D 256
#define QUERIES 128
#define PAGE 128
#define KEYS 64  // of a tile: half of a page
#define PANELS (D / 64)
#define STAGE_BYTES (KEYS * D * 2)  // a tile of values; one of keys takes half
#define KEY_BYTES (KEYS * D)
#define QUERY_BYTES (QUERIES * D * 2)

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
                    const i32* table, i32* next_tile, const Shape& shape, Shared& shared, u8* queries, u8* stages) {
    const u32 lane = threadIdx.x % 32;
    const i32 tiles = shape.heads * shape.query_blocks, held = (shape.tokens + PAGE - 1) / PAGE;
    Ring ring;
    ring.phase = 1;  // the first wait on an empty stage passes
    u32 query_phase = 1;
    for (i32 tile = blockIdx.x; tile < tiles; query_phase ^= 1) {
        i32 head, block;
        shape.place(tile, head, block);
        const i32 last = min(shape.tokens - shape.n + QUERIES * block + QUERIES, shape.tokens) - 1;
        const i32 blocks = last / PAGE + 1, end = 2 * blocks;
        const i32 skip = (blocks - 1) * PAGE + KEYS > last;  // upper half of the last page unseen
        if (lane == 0) {
            barrier_wait(&shared.query_empty, query_phase);
            shared.tile = tile, shared.steps = end - skip;
            barrier_expect(&shared.query_full, QUERY_BYTES);
            tensor_load(queries, q_map, &shared.query_full, 0, QUERIES * block, 0, head);
        }
        const i32 kv_head = head / shape.group, first = kv_head * held;
        const auto enter = [&](i32 key, f32 scale, u32 bytes) {
            barrier_wait(&shared.empty[ring.stage], ring.phase);
            shared.first_key[ring.stage] = key, shared.key_scale[ring.stage] = scale;
            barrier_expect(&shared.full[ring.stage], bytes);
        };
        const auto keys = [&](i32 key, f32 scale) {
            if (lane == 0) {
                enter(key, scale, KEY_BYTES);
                tensor_load(stages + ring.stage * STAGE_BYTES, k_map, &shared.full[ring.stage], 0, first * PAGE + key, 0);
            }
            ring.advance();
        };
        const auto values = [&](i32 key, i32 row) {
            if (lane == 0) {
                enter(key, 0, STAGE_BYTES);
                tensor_load(stages + ring.stage * STAGE_BYTES, v_map, &shared.full[ring.stage], 0, row, 0, kv_head);
            }
            ring.advance();
        };
        i32 my_row = 0, key = 0, row = 0;
        f32 my_scale = 0;
        for (i32 step = skip; step < end; ++step) {
            if ((step - skip) % 32 == 0) {  // each lane looks up one of the next 32 tiles
                const i32 mine = min(step + i32(lane), end - 1), page = blocks - 1 - mine / 2;
                my_row = table[page] * PAGE + (1 - mine % 2) * KEYS;
                my_scale = key_scales[first + page];
            }
            const i32 next_key = (end - 1 - step) * KEYS;
            const i32 next_row = __shfl_sync(0xffffffffu, my_row, (step - skip) % 32);
            keys(next_key, __shfl_sync(0xffffffffu, my_scale, (step - skip) % 32));
            if (step > skip) values(key, row);
            key = next_key, row = next_row;
        }
        values(key, row);
        if (lane == 0) tile = gridDim.x + atomicAdd(next_tile, 1);
        tile = __shfl_sync(0xffffffffu, tile, 0);
    }
    if (lane == 0) {
        barrier_wait(&shared.query_empty, query_phase);
        shared.tile = -1;
        barrier_arrive(&shared.query_full);
    }
}
