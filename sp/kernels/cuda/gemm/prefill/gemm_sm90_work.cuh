// The work of gemm_sm90's blocks: sizes in shared memory, the ring of stages, the order of tiles, sums passed on.
//
// Defines as in gemm_sm90.cu. Arch 90a.
#pragma once
#include "epilogue.cuh"
#include "hopper.cuh"
#include "quant_source.cuh"
#include "strip.cuh"

using F = Packing<FORMAT>;

enum Shape {
    WARPGROUPS = 2,
    X_BYTES = TOKENS * 128,
    SCALE_BYTES = F::plain ? 0 : 4 * TILE_SCALE_WORDS,
    W_BYTES = F::low_bytes + F::high_bytes + SCALE_BYTES,  // of one warpgroup and k-step
    STAGE_BYTES = X_BYTES + WARPGROUPS * W_BYTES,
    LOADED_BYTES = STAGE_BYTES - WARPGROUPS * SCALE_BYTES,  // by copies
    BOX_BYTES = 64 * 128,                  // 64 tokens of 128 bytes
    CHUNKS = TOKENS / 64,                  // of a warpgroup's result
    GATED = EPILOGUE == EPILOGUE_SWIGLU,
    WIDE = EPILOGUE == EPILOGUE_STORE_F32 || EPILOGUE == EPILOGUE_ADD,  // float32 results, not bf16
    CHUNK_BOXES = WIDE ? 2 : 1,            // of 64 outputs
    OUT_TILES = GATED ? 1 : WARPGROUPS,    // row tiles of a block
    STAGING_BYTES = SLOTS * CHUNK_BOXES * BOX_BYTES,  // SLOTS chunks of a warpgroup can be on their way out
    W_OFFSET = STAGES * X_BYTES,
    STAGING_OFFSET = (W_OFFSET + STAGES * WARPGROUPS * W_BYTES + 1023) / 1024 * 1024,
    BARRIER_OFFSET = STAGING_OFFSET + WARPGROUPS * STAGING_BYTES
};

// A place in the ring of stages and the parity of its current round.
struct Ring {
    u32 stage = 0, phase = 0;
    SP_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// First k-step of a cluster's share, counted through all streamed tiles: equal parts, the first ones one longer where
// they do not divide.
SP_DEVICE u32 share_start(u32 cluster, u32 clusters, u32 steps) {
    return steps / clusters * cluster + min(cluster, steps % clusters);
}

// The pieces of work of a cluster: its share of the streamed tiles, then every `clusters`th of the others.
struct Work {
    u32 at, end, whole;      // the rest of the share, and the next whole tile
    u32 tile, first, last;   // the piece: k-steps [first, last) of a tile

    SP_DEVICE bool next(u32 tiles, u32 clusters, u32 k_tiles) {
        if constexpr (STREAM) {  // not decided at run time: without it the compiler knows that all lanes count alike
            if (at < end) {
                tile = at / k_tiles;
                first = at - tile * k_tiles;
                last = min(k_tiles, first + end - at);
                at += last - first;
                return true;
            }
        }
        tile = whole, first = 0, last = k_tiles;
        whole += clusters;
        return tile < tiles;
    }
};

SP_DEVICE Work work_of(u32 cluster, u32 clusters, u32 streamed, u32 k_tiles) {
    u32 steps = streamed * k_tiles;
    return {share_start(cluster, clusters, steps), share_start(cluster + 1, clusters, steps), streamed + cluster};
}

// First token and row tile.
struct Tile {
    i32 token, row_tile;
};

SP_DEVICE Tile tile_of(u32 index, u32 token_blocks, u32 out_blocks, u32 rank) {
    u32 group = index / (GROUP * out_blocks), first = group * GROUP, size = min(u32(GROUP), token_blocks - first);
    u32 rest = index - first * out_blocks;
    return {i32((first + rest % size) * TOKENS), i32((rest / size * CLUSTER + rank) * OUT_TILES)};
}

// The row tile of a warpgroup. Past the last one any does: nothing of that result is stored.
SP_DEVICE u32 row_tile_of(const Tile& tile, u32 group, u32 row_tiles) {
    return min(u32(tile.row_tile) + (GATED ? 0 : group), row_tiles - 1);
}

// Leaves a warpgroup's sums of a piece that does not begin its tile. `flag` belongs to the block and warpgroup.
SP_DEVICE void leave_partial(const f32 (&d)[TOKENS / 2], float4* place, u32* flag, u32 group, u32 thread) {
#pragma unroll
    for (int i = 0; i < TOKENS / 8; ++i)
        __stcg(place + i * 256 + 128 * group + thread, make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
    named_barrier(1 + group, 128);
    if (thread == 0)
        asm volatile("fence.acq_rel.gpu;\n\tst.relaxed.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

// Adds what leave_partial left, and clears the flag for the next launch.
SP_DEVICE void add_partial(f32 (&d)[TOKENS / 2], const float4* place, u32* flag, u32 group, u32 thread) {
    if (thread == 0) {
        u32 left = 0;
        while (!left) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(left) : "l"(flag) : "memory");
        *flag = 0;
    }
    named_barrier(1 + group, 128);
#pragma unroll
    for (int i = 0; i < TOKENS / 8; ++i) {
        float4 v = __ldcg(place + i * 256 + 128 * group + thread);
        d[4 * i] += v.x, d[4 * i + 1] += v.y, d[4 * i + 2] += v.z, d[4 * i + 3] += v.w;
    }
}
