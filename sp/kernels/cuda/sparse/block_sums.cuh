// Maxima and sums over the WARPS warps of a block that selects (block_choice.cuh); all threads get them.
#pragma once

SP_DEVICE f32 block_max(f32 value, f32* scratch) {
    value = warp_max(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) value = fmaxf(value, scratch[w]);
    return value;
}

// Sums of N values over the block, in place.
template <int N>
SP_DEVICE void block_sum(i32 (&values)[N], i32* scratch) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = __reduce_add_sync(0xffffffffu, values[i]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32 * N + i] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w)
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] += scratch[w * N + i];
}

#if RULE == 2
// The same of 64 bits.
template <int N>
SP_DEVICE void block_sum(u64 (&values)[N], u64* scratch) {
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) values[i] += __shfl_xor_sync(0xffffffffu, values[i], offset);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32 * N + i] = values[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w)
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] += scratch[w * N + i];
}

SP_DEVICE u64 in_steps(f32 energy) { return __float2ull_rn(energy * 4294967296.0f); }
#endif
