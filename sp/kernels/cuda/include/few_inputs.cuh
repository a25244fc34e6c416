// The inputs of gemm_few.cu on their way to shared memory, as they are, and the sums of their groups.
#pragma once
#include "few_products.cuh"
#include "strip_input.cuh"

// The slice of x that begins at `x` to shared memory, rows of zeros behind the last token.
SP_DEVICE void load_slice(const u16* x, i64 k, int width, int tokens, int warp, int lane) {
    const int columns = (width + 255) / 256, pieces = TOKENS * columns;
    constexpr int BATCH = 10;
#pragma unroll 1
    for (int first = warp; first < pieces; first += BATCH * WARPS) {
        uint4 v[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = first + b * WARPS, token = piece / columns, at = piece % columns * 256 + lane * 8;
            v[b] = make_uint4(0, 0, 0, 0);
            if (token < tokens && at < width) v[b] = *reinterpret_cast<const uint4*>(x + token * k + at);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = first + b * WARPS, token = piece / columns, at = piece % columns * 256 + lane * 8;
            if (token < TOKENS && at < width) *reinterpret_cast<uint4*>(shared + X_AT + token * PITCH + at * 2) = v[b];
        }
    }
}

// Sums of 16 and of 32 inputs of every token, on the tensor cores: row i of A is ones for step i of a super-block and
// zeros else, so that row i of D holds the sums of step i. `x` as in multiply_pair.
SP_DEVICE void sum_groups(u32 x, int supers, int warp, int lane) {
    const int g = lane / 4, c = lane % 4;
    for (int task = warp; task < supers * NT; task += WARPS) {
        const int super = task / NT, nt = task % NT;
        f32 d[4] = {};
#pragma unroll
        for (int p = 0; p < 8; ++p) {
            u32 b[4];
            input_fragments(b, x + super * 512 + p * 64 + nt * 8 * PITCH);
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                const u32 ones = g == (2 * p + s) % 8 ? BF16_ONE : 0;
                const u32 a[4] = {p < 4 ? ones : 0, p < 4 ? 0 : ones, p < 4 ? ones : 0, p < 4 ? 0 : ones};
                multiply_add(d, a, b[2 * s], b[2 * s + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // d[i]: step g + 8 (i / 2) of token 2 c + i % 2
            const int row = super * TOKENS + nt * 8 + 2 * c + i % 2, step = g + i / 2 * 8;
            if constexpr (WITH16) store_sum<16>(shared + SUMS16_AT + row * 64, step, d[i]);
            if constexpr (WITH32) {
                const f32 both = d[i] + __shfl_xor_sync(0xffffffffu, d[i], 4);
                if (g % 2 == 0) store_sum<8>(shared + SUMS32_AT + row * 32, step / 2, both);
            }
        }
    }
}
