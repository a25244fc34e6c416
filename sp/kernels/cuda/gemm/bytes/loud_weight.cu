// Columns of up to three packed weights that meet loud channels, in bf16: what round_weight.cu puts beside the bytes, for weights
// whose bytes are there already.
//
//   planes    fragment order, 16-byte aligned. Row tiles from end0 and from end1 on, of all, are those of the second and the third
//             weight; ends past all tiles where there are fewer
//   loud      bf16 [rows of whole 64][64]: the values of `channels` (*count of them, ascending), then zeros; written where
//             *count > 0
// Grid (row tiles of all, slices), 128 threads: the tile's thread numbering; a block takes every slices-th channel of 64 rows. Where no
// channel is loud, nearly always, blocks end at once. The kernel that comes next may start when all before this one is done (PDL):
// round_inputs.cu does, and has no use for what is gathered. Define: FORMAT. Arches: 80+.
#include "pdl.cuh"
#include "tile_words.cuh"

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    loud_weight(const u8* low0, const u8* high0, const u8* scales0, const u8* deltas0, const u8* low1, const u8* high1,
                const u8* scales1, const u8* deltas1, const u8* low2, const u8* high2, const u8* scales2, const u8* deltas2,
                u16* loud, const u32* count, const u32* channels, i32 k_tiles, u32 end0, u32 end1) {
    enum { LOUD = 64 };
    __shared__ u32 words[4][TILE_SCALE_WORDS];
    pdl_wait();
    pdl_launch_dependents();
    const u32 found = *count, t = threadIdx.x, row = 16 * (t / 32) + t / 4 % 8, c = t % 4;
    if (found == 0) return;
    const u32 which = blockIdx.x >= end1 ? 2 : blockIdx.x >= end0 ? 1 : 0;
    const u8* low = which == 2 ? low2 : which == 1 ? low1 : low0;
    const u8* high = which == 2 ? high2 : which == 1 ? high1 : high0;
    const u8* plane_scales = which == 2 ? scales2 : which == 1 ? scales1 : scales0;
    const u8* deltas = which == 2 ? deltas2 : which == 1 ? deltas1 : deltas0;
    const i64 row_tile = blockIdx.x - (which == 2 ? end1 : which == 1 ? end0 : 0);
    u16* to = loud + i64(blockIdx.x) * TILE_ROWS * LOUD;
    for (u32 i = t + TILE_THREADS * blockIdx.y; i < TILE_ROWS * LOUD; i += TILE_THREADS * gridDim.y)
        if (i % LOUD >= found) to[i] = 0;
    for (u32 slot = blockIdx.y; slot < found; slot += gridDim.y) {
        const u32 channel = channels[slot], place = channel % 64;
        const i64 tile = row_tile * k_tiles + channel / 64;
        __syncthreads();  // the words of the channel before are read
        if (t < TILE_ROWS) make_words(words, plane_scales, deltas, row_tile * k_tiles + channel / 256 * 4, t);
        Quants<FORMAT> q;
        load_quants<FORMAT>(q, low + tile * P::low_bytes, high + tile * P::high_bytes, t);
        __syncthreads();
#pragma unroll
        for (u32 s = 0; s < 4; ++s) {
            if (s != place / 16) continue;
            const u32* here = words[channel / 64 % 4] + s / 2 * TILE_ROWS + row;
            u32 a[4];  // inputs 8 (j / 2) + 2 c.. of 16, row + 8 (j % 2)
            a_fragment<FORMAT>(a, q, s, P::plain ? 0 : here[0], P::plain ? 0 : here[8]);
            if (c != place % 8 / 2) continue;
#pragma unroll
            for (u32 r = 0; r < 2; ++r) {
                const u32 both = place % 16 < 8 ? a[r] : a[2 + r];
                to[(row + 8 * r) * LOUD + slot] = u16(both >> 16 * (place % 2));
            }
        }
    }
}
