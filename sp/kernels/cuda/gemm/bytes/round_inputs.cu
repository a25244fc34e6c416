// Rounds inputs of a matrix product to bytes: one scale for each token and 256 inputs, see bytes.cuh. Outlier channels
// count as 0 there and are stored in bf16 besides.
//
//   x        bf16 (tokens, COLS), COLS % 256 == 0
//   codes    (tokens, COLS), in the order of round_weight.cu
//   scales   f32 [COLS / 256][stride], a token each; 0 past the last one, as far as the grid goes
//   loud     bf16 (tokens, 64): the values of `channels` (*count of them), then zeros; written where *count > 0
//   mask     u16 (COLS / 16): bit i of word j is set where channel 16 j + i is an outlier
// Grid (at least ceil(tokens / 8), parts), 256 threads: a warp for every parts-th 512 inputs of a token, 16 lanes for a
// group. Defines: COLS, KIND. Arches: 80+, KIND 1 89+. Bound by memory.
// `late`: this kernel overlaps the one before, which let it start when all earlier ones were done and writes nothing
// that is read here.
#include "bytes.cuh"
#include "pdl.cuh"

// Words of a quad of lanes, transposed: lane l gives in[i] to lane i as out[l].
SP_DEVICE void transpose(u32 (&w)[4], u32 lane) {
#pragma unroll
    for (u32 step = 1; step < 4; step *= 2)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            if (i & step) continue;
            const bool upper = lane & step;
            const u32 came = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + step], step);
            if (upper)
                w[i] = came;
            else
                w[i + step] = came;
        }
}

extern "C" __global__ void __launch_bounds__(256, 4)
    round_inputs(const u16* __restrict__ x, u8* __restrict__ codes, f32* __restrict__ scales, u16* __restrict__ loud,
                 const u32* __restrict__ count, const u32* __restrict__ channels, const u16* __restrict__ mask, i32 tokens,
                 i32 stride, i32 late) {
    if (!late) pdl_wait();
    pdl_launch_dependents();
    const u32 lane = threadIdx.x % 32;
    const i64 token = i64(blockIdx.x) * 8 + threadIdx.x / 32;
    if (token >= tokens) {
        for (u32 i = lane; blockIdx.y == 0 && i < COLS / GROUPED && token < stride; i += 32) scales[i64(i) * stride + token] = 0;
        if (late) pdl_wait();  // what comes next waits for this kernel alone
        return;
    }
    const u16* from = x + token * COLS;
    const u32 found = *count;
    constexpr u32 rounds = (COLS + 511) / 512;
#pragma unroll 4
    for (u32 i = blockIdx.y; i < rounds; i += gridDim.y) {
        const u32 at = 512 * i + 16 * lane;  // 16 inputs of a lane
        const bool valid = COLS % 512 == 0 || at < COLS;
        uint4 v[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        u32 bits = 0;
        if (valid) {
            v[0] = reinterpret_cast<const uint4*>(from + at)[0], v[1] = reinterpret_cast<const uint4*>(from + at)[1];
            if (found) bits = mask[at / 16];
        }
        u32 pair[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
        u32 largest = 0;
#pragma unroll
        for (int p = 0; p < 8; ++p) {
            if (bits >> (2 * p) & 1) pair[p] &= 0xffff0000u;
            if (bits >> (2 * p + 1) & 1) pair[p] &= 0x0000ffffu;
            largest = max(largest, max(magnitude(low_bf16(pair[p])), magnitude(high_bf16(pair[p]))));
        }
#pragma unroll
        for (int step = 1; step < 16; step *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
        const Rounding rounding = rounding_of(largest);
        u32 w[4];  // of pairs 2 c.. and 8 + 2 c.. of the 16
#pragma unroll
        for (int c = 0; c < 4; ++c)
            w[c] = bytes_of(low_bf16(pair[c]), high_bf16(pair[c]), low_bf16(pair[c + 4]), high_bf16(pair[c + 4]),
                            rounding.inverse);
        transpose(w, lane);
        if (!valid) continue;
        *reinterpret_cast<uint4*>(codes + token * COLS + at) = make_uint4(w[0], w[1], w[2], w[3]);
        if (lane % 16 == 0) scales[i64(at / GROUPED) * stride + token] = rounding.told;
    }
    if (found && blockIdx.y == 0)
#pragma unroll
        for (u32 slot = lane; slot < LOUD; slot += 32) loud[token * LOUD + slot] = slot < found ? from[channels[slot]] : u16(0);
    if (late) pdl_wait();
}
