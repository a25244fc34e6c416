// Rounds a packed weight to bytes: one scale for each row and 256 inputs, see bytes.cuh, of the values rounded to bf16
// that the bf16 kernels multiply. Outlier channels keep their bytes (those of the inputs are 0) and are stored in bf16
// besides.
//
//   planes   fragment order, 16-byte aligned
//   codes    [rows of whole 64][64 k_tiles]; of 64 inputs byte 16 c + 4 s + 2 h + e has input 16 s + 8 h + 2 c + e
//   scales   f32 [k_tiles / 4][stride], from row 0 of this weight on
//   loud     bf16 [rows][64]: the values of channels listed in `channels` (*count of them, ascending), then zeros; written where
//            *count > 0; all four may be null. mask: bit i of word j is set where channel 16 j + i is an outlier
// Grid (k_tiles / 4, row tiles), 128 threads: the tile's thread numbering. Defines: FORMAT, KIND. Arches: 80+, KIND 1 89+.
#include "bytes.cuh"
#include "tile_words.cuh"

extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)
    round_weight(const u8* low, const u8* high, const u8* plane_scales, const u8* deltas, u8* codes, f32* scales, u16* loud,
                 const u32* count, const u32* channels, const u16* mask, i32 k_tiles, i32 stride) {
    __shared__ u32 words[4][TILE_SCALE_WORDS];
    const u32 t = threadIdx.x, warp = t / 32, g = t / 4 % 8, c = t % 4, row = 16 * warp + g;
    const i64 group = blockIdx.x, row_tile = blockIdx.y, tile = row_tile * k_tiles + 4 * group;
    if (t < TILE_ROWS) make_words(words, plane_scales, deltas, tile, t);
    Quants<FORMAT> q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        load_quants<FORMAT>(q[i], low + (tile + i) * P::low_bytes, high + (tile + i) * P::high_bytes, t);
    __syncthreads();

    u32 a[4][4][4];
    u32 largest[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            const u32* here = words[i] + s / 2 * TILE_ROWS + row;
            a_fragment<FORMAT>(a[i][s], q[i], s, P::plain ? 0 : here[0], P::plain ? 0 : here[8]);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                largest[j % 2] = max(largest[j % 2], max(magnitude(low_bf16(a[i][s][j])), magnitude(high_bf16(a[i][s][j]))));
        }
    const i64 first = row_tile * TILE_ROWS + row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        largest[r] = max(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 1));
        largest[r] = max(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 2));
        const Rounding rounding = rounding_of(largest[r]);
        u8* to = codes + (first + 8 * r) * (64 * i64(k_tiles)) + GROUPED * group + 16 * c;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            u32 w[4];
#pragma unroll
            for (int s = 0; s < 4; ++s)
                w[s] = bytes_of(low_bf16(a[i][s][r]), high_bf16(a[i][s][r]), low_bf16(a[i][s][r + 2]),
                                high_bf16(a[i][s][r + 2]), rounding.inverse);
            *reinterpret_cast<uint4*>(to + 64 * i) = make_uint4(w[0], w[1], w[2], w[3]);
        }
        if (c == 0) scales[group * stride + first + 8 * r] = rounding.told;
    }

    const u32 found = count == nullptr ? 0 : *count;
    if (found == 0) return;
    if (group == 0)
        for (u32 i = t; i < TILE_ROWS * LOUD; i += TILE_THREADS)
            if (i % LOUD >= found) loud[row_tile * TILE_ROWS * LOUD + i] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            const u32 bits = mask[(4 * group + i) * 4 + s];
            if (bits == 0) continue;
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const u32 inside = 8 * (j / 2) + 2 * c + e;
                    if (!(bits >> inside & 1)) continue;
                    const u32 channel = u32(GROUPED * group) + 64 * i + 16 * s + inside;
                    u32 slot = 0;
                    while (channels[slot] != channel) ++slot;
                    loud[(first + 8 * (j % 2)) * LOUD + slot] = u16(a[i][s][j] >> (16 * e));
                }
        }
}
