// The prologue of gemm_small_m_sm90.cu where x is not given as tiles: tokens in bf16, or in float32 with an
// RMS norm, become tiles in global memory, a part of a token by each block; then the blocks wait for each other.
//
// All threads of the warpgroups take part. The code runs twice, first with the norm's weights in place of the tokens,
// while the kernel before still runs: it is in the instruction cache when the tokens are there, and the weights are in L1.
// All blocks of the grid must run at once. `ready` are two counters, zero before and after.
#pragma once
#include "pdl.cuh"
#include "few_sm90_fetch.cuh"
#include "input_tiles.cuh"

// Where the tokens come from: `wide` f32 and `norm` f32 (k), or `plain` bf16; none of them if they are tiles already.
struct Source {
    const u16* plain;
    const f32 *wide, *norm;
    f32 eps;
    i32 tokens, k;

    SP_DEVICE bool tiles() const { return plain == nullptr && wide == nullptr; }
};

constexpr int FRONT_THREADS = 128 * GROUPS;
constexpr int ROW_PARTS = (8192 / 4 + FRONT_THREADS - 1) / FRONT_THREADS;  // of a token, a thread's, with a norm: k <= 8192

// The largest of what the lanes of all warps have; `room`: a word a warp.
SP_DEVICE f32 block_max(f32 value, f32* room) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    named_barrier(1, FRONT_THREADS);
#pragma unroll
    for (int i = 0; i < FRONT_THREADS / 32; ++i) value = fmaxf(value, room[i]);
    named_barrier(1, FRONT_THREADS);
    return value;
}

SP_DEVICE void make_tiles(const Source& from, u8* tiles, f32* sums, u32* ready) {
    f32* const scales = tile_scales(tiles, from.k, TOKENS);
    const int blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    const int parts = max(1, blocks / from.tokens), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int job = block; job < from.tokens * parts; job += blocks) {
        const int token = job / parts, part = job % parts;
        const int begin = from.k / 128 * part / parts, end = from.k / 128 * (part + 1) / parts;  // of 128 inputs
#pragma unroll 1
        for (int round = from.wide && job == block ? 0 : 1; round < 2; ++round) {
            if (round == 1) pdl_wait();
            const f32* const row = round == 0 ? from.norm : from.wide + i64(token) * from.k;
            if (from.wide) {
                float4 own[ROW_PARTS];
                f32 squares = 0;
#pragma unroll
                for (int i = 0; i < ROW_PARTS; ++i) {
                    const int at = i * FRONT_THREADS + threadIdx.x;
                    own[i] = at < from.k / 4 ? __ldcg(reinterpret_cast<const float4*>(row) + at) : make_float4(0, 0, 0, 0);
                }
#pragma unroll
                for (int i = 0; i < ROW_PARTS; ++i)
                    squares += own[i].x * own[i].x + own[i].y * own[i].y + own[i].z * own[i].z + own[i].w * own[i].w;
                squares = warp_sum(squares);
                if (lane == 0) sums[warp] = squares;
                named_barrier(1, FRONT_THREADS);
                f32 total = 0;
#pragma unroll
                for (int i = 0; i < FRONT_THREADS / 32; ++i) total += sums[i];
                const f32 scale = rsqrtf(total / from.k + from.eps);
                named_barrier(1, FRONT_THREADS);
#pragma unroll
                for (int i = 0; i < ROW_PARTS; ++i) {
                    const int piece = (i * FRONT_THREADS + threadIdx.x) / 32, at = piece * 128 + lane * 4;
                    if (piece < begin || piece >= end) continue;
                    const float4 w = *reinterpret_cast<const float4*>(from.norm + at);
                    const float4 x = own[i];
                    store_tile_inputs(tiles, from.k, TOKENS, token, at, round == 1,
                                      make_float4(x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w),
                                      1 / UNIT_SCALE);
                }
                if (round == 1 && part == 0 && threadIdx.x == 0) scales[token] = UNIT_SCALE;
                continue;
            }
            const uint2* const plain = reinterpret_cast<const uint2*>(from.plain + i64(token) * from.k);
            u32 most = 0;  // of all of the token, as bits without the sign
            for (int i = threadIdx.x; i < from.k / 4; i += FRONT_THREADS) {
                const uint2 x = __ldcg(plain + i);
                most = __vmaxu2(most, __vmaxu2(x.x & 0x7fff7fffu, x.y & 0x7fff7fffu));
            }
            const f32 largest = block_max(fmaxf(low_bf16(most), high_bf16(most)), sums);
            const f32 unit = power_below(largest) * 0x1p-14f;
            if (part == 0 && threadIdx.x == 0) scales[token] = unit;
            for (int piece = begin + warp; piece < end; piece += FRONT_THREADS / 32) {
                const int at = piece * 128 + lane * 4;
                const uint2 x = __ldcg(plain + at / 4);
                store_tile_inputs(tiles, from.k, TOKENS, token, at, true,
                                  make_float4(low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)), 1 / unit);
            }
        }
    }
    pdl_wait();  // also where there was nothing to do
    asm volatile("fence.proxy.async.global;" ::: "memory");  // bulk copies will read what was stored
    named_barrier(1, FRONT_THREADS);
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(ready) : "memory");
}

// Returns when all blocks have stored; by one thread of each block, which calls leave_tiles when it has asked for them.
SP_DEVICE void wait_for_tiles(u32* ready) {
    u32 come;
    do {
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(ready) : "memory");
    } while (come < gridDim.x * gridDim.y);
    asm volatile("fence.acq_rel.gpu;\n\tfence.proxy.async.global;" ::: "memory");
}

// The last block to leave clears the counters.
SP_DEVICE void leave_tiles(u32* ready) {
    u32 left;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(left) : "l"(ready + 1) : "memory");
    if (left + 1 == gridDim.x * gridDim.y) ready[0] = 0, ready[1] = 0;
}
