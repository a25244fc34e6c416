// Tokens as the B operand of wgmma, ready to be copied to shared memory as they lie (gemm_small_m_sm90.cu).
//
//   tiles   f16 [k / 64][HELD][64]: x over the scale of its token, cut to what f16 holds
//   sums    f16 [ceil(k / 512)][HELD][64], right behind: of each token's super-block of 256 inputs the means of 16 groups
//           of 16 tile values, rounded, and then what the rounding left; two super-blocks to a tile
//   scales  f32 [HELD], right behind: powers of two
//
// Rows of 64 f16 are 128 bytes, 8 of them 1024, in the 128-byte swizzle: 16-byte chunk c of row r lies at c ^ (r % 8).
// HELD is the number of tokens, padded to whole groups of 8; what the padding holds does not matter.
// A scale is set before a token's first value is stored: by its largest value, which then lies between 2^14 and 2^15;
// or by an estimate of its size, 64 times which leaves 2^22 above and, at 11 bits, 2^8 below.
#pragma once
#include "types.cuh"

constexpr f32 UNIT_SCALE = 64, MOST_F16 = 65504;  // UNIT_SCALE: of values about as large as 1

// The power of two at or below a positive number; of 0, infinities and NaN one that can still be multiplied by.
SP_DEVICE f32 power_below(f32 x) {
    x = fminf(fmaxf(x, 0x1p-100f), 0x1p100f);
    return __uint_as_float(__float_as_uint(x) & 0x7f800000u);
}

// `inverse`: of the scale. A NaN stays one.
SP_DEVICE f32 tile_value(f32 x, f32 inverse) {
    x *= inverse;
    return x > MOST_F16 ? MOST_F16 : x < -MOST_F16 ? -MOST_F16 : x;
}

// Byte offset of input k of a token.
SP_DEVICE i64 tile_place(i32 held, i32 token, i32 k) {
    return i64(k / 64) * held * 128 + token * 128 + ((k / 8 % 8 ^ token % 8) * 16) + k % 8 * 2;
}

// Byte offset of part 0 or 1 of the mean of 16 tile values from input k on, k a multiple of 16.
SP_DEVICE i64 tile_sum_place(i64 k_all, i32 held, i32 token, i32 k, i32 part) {
    const i32 at = k / 512 * 64 + k / 256 % 2 * 32 + part * 16 + k / 16 % 16;  // as if it were an input
    return k_all * held * 2 + tile_place(held, token, at);
}

// The scales of all tokens.
SP_DEVICE f32* tile_scales(u8* tiles, i64 k_all, i32 held) {
    return reinterpret_cast<f32*>(tiles + (k_all / 64 + (k_all + 511) / 512) * held * 128);
}

// Writes the sum of the 16 tile values from input k on, k a multiple of 16.
SP_DEVICE void store_tile_sum(u8* tiles, i64 k_all, i32 held, i32 token, i32 k, f32 sum) {
    const f32 mean = sum * (1.0f / 16);
    const u16 high = f16_from(mean);
    *reinterpret_cast<u16*>(tiles + tile_sum_place(k_all, held, token, k, 0)) = high;
    *reinterpret_cast<u16*>(tiles + tile_sum_place(k_all, held, token, k, 1)) = f16_from(mean - f32_from_f16(high));
}

// Writes 4 inputs from k on, k a multiple of 4, and the sums; all 32 lanes of a warp call it with consecutive k.
SP_DEVICE void store_tile_inputs(u8* tiles, i64 k_all, i32 held, i32 token, i32 k, bool valid, float4 x, f32 inverse) {
    const u32 low = pack_f16(tile_value(x.x, inverse), tile_value(x.y, inverse));
    const u32 high = pack_f16(tile_value(x.z, inverse), tile_value(x.w, inverse));
    f32 sum = (low_f16(low) + high_f16(low)) + (low_f16(high) + high_f16(high));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (!valid) return;
    *reinterpret_cast<uint2*>(tiles + tile_place(held, token, k)) = make_uint2(low, high);
    if (k % 16 == 0) store_tile_sum(tiles, k_all, held, token, k, sum);
}
