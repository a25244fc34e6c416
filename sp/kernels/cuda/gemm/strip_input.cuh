// Activations for strip.cuh: from global memory to bf16 in B-fragment order in shared memory, with the sums of their
// groups.
//
// Row t of x begins at t * PITCH bytes. Inside a group of 32 inputs, lane c of a quad owns 16 bytes: the pairs b0, b1
// of step 0 and of step 1, so that one 16-byte load gives a lane the B operand of two k16-steps. PITCH is 64 more than
// a multiple of 128 bytes, so that the 8 lanes of a quarter warp, two rows of four, read different banks.
#pragma once
#include "strip_products.cuh"

// One sum as two bf16: number i of `Groups` in a super-block.
template <int Groups>
SP_DEVICE void store_sum(u8* super, int i, f32 sum) {
    u16* to = reinterpret_cast<u16*>(super);
    const u16 high = bf16_from(sum);
    to[i] = high;
    to[i + Groups] = bf16_from(sum - f32_from_bf16(high));
}

// One piece: 4 inputs of a row from k on; all 32 lanes of a warp call it, in order, for 128 inputs.
template <int T, int P, bool With32, bool With16>
SP_DEVICE void store_inputs(u8* x, u8* sums32, u8* sums16, int token, int k, bool valid, u32 low, u32 high) {
    if (valid) {
        u8* group = x + token * P + k / 32 * 64 + k / 16 % 2 * 8 + k / 8 % 2 * 4 + k % 8 / 2 * 16;
        *reinterpret_cast<u32*>(group) = low;
        *reinterpret_cast<u32*>(group + 16) = high;
    }
    if constexpr (With32 || With16) {
        f32 sum = (low_bf16(low) + high_bf16(low)) + (low_bf16(high) + high_bf16(high));
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const int super = k / 256 * T + token;
        if constexpr (With16)
            if (valid && k % 16 == 0) store_sum<16>(sums16 + super * 64, k / 16 % 16, sum);
        if constexpr (With32) {
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
            if (valid && k % 32 == 0) store_sum<8>(sums32 + super * 32, k / 32 % 8, sum);
        }
    }
}
