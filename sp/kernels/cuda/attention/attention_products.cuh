// Products of attention_sm90.cu and attention_skip.cu: scores of a tile of keys, outputs of a tile of values, for one
// warpgroup of 64 query rows.
#pragma once
#include "attention_loads.cuh"
#include "score_rule.cuh"
#include "softmax_sm90.cuh"
#include "wgmma_f16.cuh"

#define SCORES (KEYS / 2)  // of one thread: 64 rows x KEYS over 128 threads
#define OUTS (D / 2)

// A descriptor moves by adding bytes / 16 to its low word: shared addresses fit in the field.
SP_DEVICE u64 moved_by(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

SP_DEVICE void scores_of(f32 (&s)[SCORES], u64 queries, u64 keys) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        wgmma_ss(s, moved_by(queries, (k / 4) * (QUERIES * 128) + (k % 4) * 32),
                 moved_by(keys, (k / 4) * (KEYS * 128) + (k % 4) * 32), k > 0);
}

SP_DEVICE void add_values(f32 (&o)[OUTS], const u32 (&p)[SCORES / 2], u64 values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) wgmma_rs(o, p + 4 * k, moved_by(values, k * 2048));
}

// The scores of the warp's 16 rows by warp-level products, which give each thread the same ones as scores_of.
SP_DEVICE void scores_again(f32 (&s)[SCORES], u32 queries, u32 keys) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) {
        f32 d[2][4] = {};
#pragma unroll 1
        for (u32 k = 0; k < D / 16; ++k) {
            const u32 query = lane % 16 * 128 + k % 4 * 32 + lane / 16 * 16;
            const u32 key = (16 * j + lane / 16 * 8 + lane % 8) * 128 + k % 4 * 32 + lane / 8 % 2 * 16;
            u32 a[4], b[4];
            ldmatrix_x4(a, queries + k / 4 * (QUERIES * 128) + swizzle_128(query));
            ldmatrix_x4(b, keys + k / 4 * (KEYS * 128) + swizzle_128(key));
            mma_f16(d[0], a, b[0], b[1]);
            mma_f16(d[1], a, b[2], b[3]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) s[8 * j + i] = d[i / 4][i % 4];
    }
}

// Zero the rows of V that hold no token: their weights are 0, but 0 x NaN is not.
SP_DEVICE void clear_tail(u8* values, i32 key, i32 tokens, u32 group) {
    const i32 from = max(tokens - key, 0);
    for (i32 i = i32(threadIdx.x % 128); i < (KEYS - from) * PANELS * 8; i += 128) {
        const i32 panel = i / ((KEYS - from) * 8), rest = i % ((KEYS - from) * 8);
        *reinterpret_cast<uint4*>(values + panel * (KEYS * 128) + from * 128 + rest * 16) = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    named_barrier(1 + group, 128);
}
