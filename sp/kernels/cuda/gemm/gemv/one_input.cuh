// The inputs of a single token for strip_one.cuh: 16-bit fixed-point numbers in shared memory, with the sums of their
// groups.
#pragma once
#include "strip_one.cuh"

// 256 inputs of a super-block, 4 lane + 128 i + (0..3) in v[i], to shared memory as 16-bit fixed point with their sums.
template <bool With32, bool With16>
SP_DEVICE void store_one(u8* x, f32* sums32, f32* sums16, f32* factors, int super, const f32 (&v)[2][4], int lane) {
    f32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i / 4][i % 4]));
    largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)));
    const f32 scale = largest > 1e-33f ? 32512 / largest : 0;
    if (lane == 0) factors[super] = largest / 32512;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int k = 128 * i + 4 * lane;
        u32 high = 0, low = 0;
        int sum = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int q = __float2int_rn(v[i][j] * scale), top = (q + 128) >> 8;
            high |= u32(top & 255) << (8 * j);
            low |= u32(q & 255) << (8 * j);  // q - 256 top, whose low byte is q's
            sum += q;
        }
        const bool second = k & 8;  // the lane two on holds the inputs 8 further: each writes one of their two words
        const u32 high2 = __shfl_xor_sync(0xffffffffu, high, 2), low2 = __shfl_xor_sync(0xffffffffu, low, 2);
        u8* to = x + super * ONE_BYTES + i * ONE_HALF + lane / 8 * 64 + k / 16 % 2 * 16 + (k % 8 / 2 + second) * 4;
        *reinterpret_cast<u32*>(to) = second ? __byte_perm(high2, high, 0x7362) : __byte_perm(high, high2, 0x5140);
        *reinterpret_cast<u32*>(to + 32) = second ? __byte_perm(low2, low, 0x7362) : __byte_perm(low, low2, 0x5140);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (With16 && lane % 4 == 0) sums16[super * 16 + k / 16 % 4 * 4 + k / 64] = f32(sum);
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        if (With32 && lane % 8 == 0) sums32[super * 8 + k / 32 % 4 * 2 + k / 128] = f32(sum);
    }
    if (lane < 8) reinterpret_cast<u32*>(x + super * ONE_BYTES + lane / 4 * ONE_HALF + ONE_ZERO)[lane % 4] = 0;
}
