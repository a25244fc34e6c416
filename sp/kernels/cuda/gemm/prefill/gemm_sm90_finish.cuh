// The epilogue of gemm_sm90: a warpgroup's 64 outputs x TOKENS go from accumulators to memory, transposed in shared
// memory, then by TMA.
//
// Accumulators as in wgmma_bf16.cuh. A chunk is 64 outputs x 64 tokens, 32 registers of a thread; its rows in shared
// memory are tokens, 128 bytes each (64 outputs in bf16; 2 boxes of 32 in float32), 128-byte swizzled, so that neither
// side has bank conflicts. Rows and tokens past the end are cut by the tensor map. Arch 90a.
#pragma once
#include "activations.cuh"
#include "expert_blocks.cuh"
#include "gemm_sm90_work.cuh"

// Where a lane's row of the first stmatrix of a chunk goes. Matrix i of one: outputs 8 (i % 2).. of the warp's 16,
// tokens 8 (i / 2)..
SP_DEVICE u32 bf16_place(const u8* slot, u32 warp, u32 lane) {
    u32 i = lane / 8;
    return shared_address(slot) + (8 * (i / 2) + lane % 8) * 128 + (((2 * warp + i % 2) ^ (lane % 8)) << 4);
}

// A chunk: 64 outputs x 64 tokens of a warpgroup, 32 values a thread.
SP_DEVICE void store_chunk(u8* slot, const f32* d, u32 warp, u32 lane) {
    if constexpr (CHUNK_BOXES == 1) {
        u32 place = bf16_place(slot, warp, lane);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            u32 r[4];
#pragma unroll
            for (int m = 0; m < 4; ++m) r[m] = pack_bf16(d[8 * j + 2 * m], d[8 * j + 2 * m + 1]);
            stmatrix_x4_trans(place + j * 2048, r);
        }
    } else {
        u32 g = lane / 4, c = lane % 4;
        u8* box = slot + warp / 2 * BOX_BYTES;
#pragma unroll
        for (int e = 0; e < 4; ++e) {  // element e: output + 8 (e / 2), token + e % 2
            u32 out = 16 * (warp % 2) + g + 8 * (e / 2), token = 2 * c + e % 2;
            u8* place = box + token * 128 + (((out / 4) ^ token) << 4) + out % 4 * 4;
#pragma unroll
            for (int j = 0; j < 8; ++j) *reinterpret_cast<f32*>(place + j * 1024) = d[4 * j + e];
        }
    }
}

// All but SWIGLU: the first `chunks` (a multiple of SLOTS) of a warpgroup's result, through its staging area.
SP_DEVICE void finish(const f32* d, u8* staging, const TensorMap* y_map, i32 row, i32 token, u32 group, u32 thread,
                      int chunks) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        if (EXPERTS && chunk >= chunks) break;
        u8* slot = staging + chunk % SLOTS * CHUNK_BOXES * BOX_BYTES;
        if (thread == 0) bulk_wait_read<SLOTS - 1>();
        named_barrier(1 + group, 128);
        store_chunk(slot, d + 32 * chunk, thread / 32, thread % 32);
        fence_async_proxy();
        named_barrier(1 + group, 128);
        if (thread == 0) {
            for (int box = 0; box < CHUNK_BOXES; ++box) {
                const u8* source = slot + box * BOX_BYTES;
                if constexpr (EPILOGUE == EPILOGUE_ADD) tensor_add(y_map, source, row + 32 * box, token + 64 * chunk);
                if constexpr (EPILOGUE != EPILOGUE_ADD) tensor_store(y_map, source, row + 32 * box, token + 64 * chunk);
            }
            bulk_commit();
        }
    }
}

SP_DEVICE f32 gated(f32 gate, f32 up) { return silu(gate) * up; }

// SWIGLU: of the first `chunks` warpgroup `Group` finishes every second one. `mine` receives the other weight's values of these
// and then holds the results on their way out; `other` is the same of the other warpgroup.
template <u32 Group>
SP_DEVICE void finish_gated(const f32* d, u8* mine, u8* other, const TensorMap* y_map, i32 row, i32 token, u32 thread,
                            int chunks) {
    constexpr int half = CHUNKS / 2;
    const int turns = EXPERTS ? chunks / 2 : half;
    if (thread == 0) bulk_wait_read<0>();
    named_barrier(3, 256);
#pragma unroll
    for (int c = 0; c < half; ++c) {
        u32* away = reinterpret_cast<u32*>(other + c * BOX_BYTES) + thread;
        const f32* given = d + 32 * (2 * c + 1 - Group);
#pragma unroll
        for (int i = 0; i < 16; ++i) away[i * 128] = pack_bf16(given[2 * i], given[2 * i + 1]);
    }
    named_barrier(3, 256);
    u32 r[half][4][4];
#pragma unroll
    for (int c = 0; c < half; ++c) {
        const u32* here = reinterpret_cast<const u32*>(mine + c * BOX_BYTES) + thread;
        const f32* kept = d + 32 * (2 * c + Group);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            u32 own = pack_bf16(kept[2 * i], kept[2 * i + 1]), their = here[i * 128];
            u32 gate = Group == 0 ? own : their, up = Group == 0 ? their : own;
            r[c][i / 4][i % 4] = pack_bf16(gated(low_bf16(gate), low_bf16(up)), gated(high_bf16(gate), high_bf16(up)));
        }
    }
    named_barrier(1 + Group, 128);
#pragma unroll
    for (int c = 0; c < half; ++c) {
        u32 place = bf16_place(mine + c * BOX_BYTES, thread / 32, thread % 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) stmatrix_x4_trans(place + j * 2048, r[c][j]);
    }
    fence_async_proxy();
    named_barrier(1 + Group, 128);
    if (thread == 0) {
        for (int c = 0; c < turns; ++c) tensor_store(y_map, mine + c * BOX_BYTES, row, token + 64 * (2 * c + i32(Group)));
        bulk_commit();
    }
}
