// Shapes in shared memory of gemm_bytes_narrow_sm90, and how a tile of a warpgroup leaves it: transposed in shared memory, a row a
// token, then by one tensor copy. Outputs and tokens past the end are cut by the tensor map. Defines as in
// gemm_bytes_narrow_sm90.cu. Arch 90a.
#pragma once
#include "activations.cuh"
#include "hopper.cuh"

enum Shape {
    TOKENS = 128,
    PIECES = 2 * GROUPS,         // of 128 inputs
    X_BYTES = TOKENS * 128,      // of a piece
    W_BYTES = 64 * 128,
    STAGING_BYTES = TOKENS * 64,
    W_OFFSET = PIECES * X_BYTES,
    LOUD_OFFSET = W_OFFSET + (STAGES - 2) * W_BYTES,
    STAGING_OFFSET = W_OFFSET + STAGES * W_BYTES,
    SCALES_OFFSET = STAGING_OFFSET + 2 * STAGING_BYTES,
    BARRIER_OFFSET = SCALES_OFFSET + GROUPS * TOKENS * 4,
    TURN = 4                     // and 5: named barriers, whose turn it is to multiply
};

// Comes to a named barrier without waiting there.
SP_DEVICE void named_arrive(u32 index, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

// One box of four axes to the same place of both blocks of the cluster, counted on each block's own barrier.
SP_DEVICE void tensor_load_multicast(void* target, const TensorMap* map, u64* barrier, u16 blocks, i32 x, i32 y, i32 z, i32 w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "h"(blocks), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// 32 outputs of gate and of up: d[4 i + 0..1] and d[4 i + 2..3] of one output. 64 bytes a token, 64-byte swizzle. Matrix m of a
// stmatrix: tokens 8 m.., the warp's eight outputs.
SP_DEVICE void finish(const f32* d, u8* staging, const TensorMap* map, u32 row, u32 token, u32 group, u32 thread) {
    const u32 lane = thread % 32, place = shared_address(staging) + lane * 64 + ((thread / 32 ^ lane / 2 % 4) << 4);
    if (thread == 0) bulk_wait_read<0>();  // of the tile before
    named_barrier(1 + group, 128);
#pragma unroll
    for (int j = 0; j < TOKENS / 32; ++j) {
        u32 r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const f32* at = d + 16 * j + 4 * i;
            const u32 gate = pack_bf16(at[0], at[1]), up = pack_bf16(at[2], at[3]);  // as the other kernels round them
            r[i] = pack_bf16(silu(low_bf16(gate)) * low_bf16(up), silu(high_bf16(gate)) * high_bf16(up));
        }
        stmatrix_x4_trans(place + j * 2048, r);
    }
    fence_async_proxy();
    named_barrier(1 + group, 128);
    if (thread != 0) return;
    tensor_store(map, staging, row, token);
    bulk_commit();
}
