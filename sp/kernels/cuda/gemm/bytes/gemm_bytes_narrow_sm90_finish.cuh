// Shapes in shared memory of gemm_bytes_narrow_sm90, and how 64 rows x 128 tokens of a warpgroup leave it: transposed in shared
// memory, a row a token, then by one tensor copy. Rows and tokens past the end are cut by the tensor map. Defines as in
// gemm_bytes_narrow_sm90.cu. Arch 90a.
#pragma once
#include "activations.cuh"
#include "epilogue.cuh"
#include "hopper.cuh"

enum Shape {
    TOKENS = 128,
    PIECES = 2 * GROUPS,         // of 128 inputs
    X_BYTES = TOKENS * 128,      // of a piece
    W_BYTES = 64 * 128,
    GATED = EPILOGUE == EPILOGUE_SWIGLU,
    STAGING_BYTES = TOKENS * 64, // all 128 tokens of SWIGLU, 64 of the others
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

// Before values may be written to a warpgroup's staging area, and after they were: from there to y.
SP_DEVICE void open_staging(u32 group, u32 thread) {
    if (thread == 0) bulk_wait_read<0>();
    named_barrier(1 + group, 128);
}

SP_DEVICE void send_staging(const u8* staging, const TensorMap* map, u32 row, u32 token, u32 group, u32 thread) {
    fence_async_proxy();
    named_barrier(1 + group, 128);
    if (thread != 0) return;
    tensor_store(map, staging, row, token);
    bulk_commit();
}

// 64 outputs: 128 bytes a token, 128-byte swizzle; half of the tokens at a time. Matrix m of a stmatrix: outputs 8 (m % 2).. of the
// warp's 16, tokens 8 (m / 2)..
SP_DEVICE void finish(const f32* d, u8* staging, const TensorMap* map, u32 row, u32 token, u32 group, u32 thread) {
    const u32 lane = thread % 32, m = lane / 8, columns = 2 * (thread / 32) + m % 2;
    const u32 place = shared_address(staging) + (8 * (m / 2) + lane % 8) * 128 + ((columns ^ (lane % 8)) << 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        open_staging(group, thread);
#pragma unroll
        for (int j = 0; j < TOKENS / 32; ++j) {
            const f32* at = d + TOKENS / 4 * half + 8 * j;
            u32 r[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) r[i] = pack_bf16(at[2 * i], at[2 * i + 1]);
            stmatrix_x4_trans(place + j * 2048, r);
        }
        send_staging(staging, map, row, token + TOKENS / 2 * half, group, thread);
    }
}

// 32 outputs of gate and of up: d[4 i + 0..1] and d[4 i + 2..3] of one output. 64 bytes a token, 64-byte swizzle. Matrix m of a
// stmatrix: tokens 8 m.., the warp's eight outputs.
SP_DEVICE void finish_gated(const f32* d, u8* staging, const TensorMap* map, u32 row, u32 token, u32 group, u32 thread) {
    const u32 lane = thread % 32, place = shared_address(staging) + lane * 64 + ((thread / 32 ^ lane / 2 % 4) << 4);
    open_staging(group, thread);
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
    send_staging(staging, map, row, token, group, thread);
}
