// Inputs of a matrix product to int8, a scale for each group of 32, in the layout that gemm_int8.cu reads.
//
//   scale = max |x| / 127, its fraction's two lowest bits cleared so that 1.5 * 2^23 times it is exact; code = rint(x / scale)
//   A group whose largest is below 2^-100 has scale and codes 0; one with a NaN or a value from 2^100 on the scale NaN.
//   With NORM = 1, x / sqrt(mean(x^2) + eps) * weight takes the place of x (Zhang and Sennrich 2019); a row stays in registers.
//
//   x, narrow  f32 (WIDE = 1) or bf16 (tokens, COLS), the other null; COLS % 64 == 0, with NORM at most 8192
//   weight     f32 (COLS), with NORM
//   codes      int8 [COLS / 64][held][64]: of 16 inputs byte 4 c + h + 2 e has input 2 c + 8 h + e
//   pairs      f32 [COLS / 32][held][scale, scale * sum of codes]
// Grid (tokens), min(256, COLS / 4 up to a whole warp) threads; 16-byte aligned rows. sm_80+. Bound by memory.
#include "mma.cuh"

#define VECTORS (COLS / 4)
#define THREADS (VECTORS < 256 ? (VECTORS + 31) / 32 * 32 : 256)
#define EACH ((VECTORS + THREADS - 1) / THREADS)

// Inputs 4 at .. 4 at + 3 of a token, which all lanes of a warp call with consecutive `at`.
SP_DEVICE void store_codes(i8* codes, f32* pairs, i64 token, i32 held, i32 at, bool valid, const float4& v) {
    u32 most = max(max(__float_as_uint(fabsf(v.x)), __float_as_uint(fabsf(v.y))),
                   max(__float_as_uint(fabsf(v.z)), __float_as_uint(fabsf(v.w))));  // of bits: a NaN is larger than all
#pragma unroll
    for (int step = 1; step < 8; step *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    const f32 largest = __uint_as_float(most);
    const bool usable = largest >= 0x1p-100f && largest < 0x1p100f;
    const f32 scale = usable ? __uint_as_float(__float_as_uint(__fdiv_rn(largest, 127.0f)) & ~3u) : 1.0f;
    const f32 inverse = usable ? __fdiv_rn(1.0f, scale) : 0.0f;
    const f32 values[4] = {v.x, v.y, v.z, v.w};
    u32 word = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int code = usable ? __float2int_rn(values[i] * inverse) : 0;
        word |= u32(code & 255) << (8 * i);
        sum += code;
    }
    // The lane two on holds the inputs 8 further: each writes one of the two words that they make.
    const int k = 4 * at;
    const bool second = k & 8;
    const u32 other = __shfl_xor_sync(0xffffffffu, word, 2);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (!valid) return;
    *reinterpret_cast<u32*>(codes + (i64(k / 64) * held + token) * 64 + k % 64 / 16 * 16 + (k % 8 / 2 + second) * 4) =
        second ? __byte_perm(other, word, 0x7362) : __byte_perm(word, other, 0x5140);
    if (k % 32 != 0) return;
    const f32 told = usable ? scale : largest < 0x1p-100f ? 0.0f : __uint_as_float(0x7fc00000u);
    reinterpret_cast<float2*>(pairs)[i64(k / 32) * held + token] = make_float2(told, told * f32(sum));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise_inputs(const f32* __restrict__ x, const u16* __restrict__ narrow, const f32* __restrict__ weight,
                    i8* __restrict__ codes, f32* __restrict__ pairs, f32 eps, i32 held) {
    const i64 token = blockIdx.x;
    auto load = [&](i32 at) {
        if (at >= VECTORS) return make_float4(0, 0, 0, 0);
        if constexpr (WIDE) return reinterpret_cast<const float4*>(x)[token * VECTORS + at];
        const uint2 words = reinterpret_cast<const uint2*>(narrow)[token * VECTORS + at];
        return make_float4(low_bf16(words.x), high_bf16(words.x), low_bf16(words.y), high_bf16(words.y));
    };
#if NORM
    __shared__ f32 sums[THREADS / 32];
    float4 own[EACH];
    f32 squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) own[i] = load(i * THREADS + threadIdx.x);
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        squares += own[i].x * own[i].x + own[i].y * own[i].y + own[i].z * own[i].z + own[i].w * own[i].w;
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    f32 total = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) total += sums[i];
    const f32 factor = rsqrtf(total * (1.0f / COLS) + eps);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        const float4 w = at < VECTORS ? reinterpret_cast<const float4*>(weight)[at] : make_float4(0, 0, 0, 0);
        const float4 v = make_float4(own[i].x * factor * w.x, own[i].y * factor * w.y, own[i].z * factor * w.z,
                                     own[i].w * factor * w.w);
        store_codes(codes, pairs, token, held, at, at < VECTORS, v);
    }
#else
#pragma unroll 4
    for (int i = 0; i < EACH; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        store_codes(codes, pairs, token, held, at, at < VECTORS, load(at));
    }
#endif
}
