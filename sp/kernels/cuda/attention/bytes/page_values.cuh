// Rows of f16 pages, four values a lane at a time, for the kernels that quantise keys and values: 256 threads a page. A warp
// holds a row of WIDTH values, or two rows of 64.
#pragma once
#include "mma.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, PAGE = 128;
constexpr int LANES = WIDTH < 128 ? WIDTH / 4 : 32;               // of a row
constexpr int SIDE = 32 / LANES, ROWS = PAGE / (WARPS * SIDE);  // rows side by side in a warp, and of a thread

struct Four {
    f32 x[4];
};

// Values 4 lane .. 4 lane + 3 of a row, as they are stored.
SP_DEVICE uint2 words_of(const u8* row, u32 lane) { return reinterpret_cast<const uint2*>(row)[lane]; }

SP_DEVICE Four four_of(uint2 words) {
    return {{low_f16(words.x), high_f16(words.x), low_f16(words.y), high_f16(words.y)}};
}

SP_DEVICE Four four_of(const u8* row, u32 lane) { return four_of(words_of(row, lane)); }

SP_DEVICE Four minus(const Four& a, const Four& b) {
    return {{a.x[0] - b.x[0], a.x[1] - b.x[1], a.x[2] - b.x[2], a.x[3] - b.x[3]}};
}

SP_DEVICE f32 peak_of(const Four& four) {
    return fmaxf(fmaxf(fabsf(four.x[0]), fabsf(four.x[1])), fmaxf(fabsf(four.x[2]), fabsf(four.x[3])));
}

// The largest of all warps, for all threads.
SP_DEVICE f32 block_max(f32 peak, f32* shared) {
    peak = warp_max(peak);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = peak;
    __syncthreads();
    for (int i = 0; i < WARPS; ++i) peak = fmaxf(peak, shared[i]);
    return peak;
}

// Four values to signed bytes, the first lowest.
SP_DEVICE u32 code_word(const Four& four, f32 inverse) {
    u32 word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) word |= u32(__float2int_rn(four.x[j] * inverse) & 255) << 8 * j;
    return word;
}
