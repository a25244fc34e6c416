// Columns of up to three packed weights for outlier channels, in bf16.
//
//   planes    fragment order, 16-byte aligned. Row tiles from end0 and from end1 on, of all, are those of the second and the third
//             weight; ends past all tiles where there are fewer
//   loud      bf16 [rows of whole 64][64]: the values of `channels` (*count of them, ascending), then zeros; written where
//             *count > 0
// Grid (any number of blocks), 128 threads: a block takes 64 rows and four channels at a time, a channel to each lane of a quad, which
// reads what the tile's thread of that channel has, of two rows: all loads of a block are on their way at once, and nothing is
// shared. Without outlier channels blocks end at once. Define: FORMAT. Arches: 80+.
#include "pdl.cuh"
#include "tile_words.cuh"

// Input `inside` of step S, of two rows. S is no number of a loop: unless it is known when a_fragment is compiled, each thread
// keeps the table of pieces in local memory, and that took a hundred times as long as the rest.
template <int S>
SP_DEVICE u32 column_of(const Quants<FORMAT>& q, u32 inside, u32 word0, u32 word8) {
    u32 a[4];  // inputs 8 (j / 2) + 2 pair.. of 16, row + 8 (j % 2)
    a_fragment<FORMAT>(a, q, S, word0, word8);
    const bool later = inside >= 8;
    return __byte_perm(later ? a[2] : a[0], later ? a[3] : a[1], inside % 2 ? 0x7632 : 0x5410);
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    loud_weight(const u8* low0, const u8* high0, const u8* scales0, const u8* deltas0, const u8* low1, const u8* high1,
                const u8* scales1, const u8* deltas1, const u8* low2, const u8* high2, const u8* scales2, const u8* deltas2,
                u16* loud, const u32* count, const u32* channels, i32 k_tiles, u32 row_tiles, u32 end0, u32 end1) {
    enum { LOUD = 64, EACH = 4, PARTS = LOUD / EACH };
    pdl_wait();
    pdl_launch_dependents();
    const u32 found = *count, t = threadIdx.x, row = 16 * (t / 32) + t / 4 % 8, c = t % 4;
    if (found == 0) return;
#pragma unroll 1
    for (u32 item = blockIdx.x; item < row_tiles * PARTS; item += gridDim.x) {
        const u32 all = item / PARTS, slot = item % PARTS * EACH + c, which = all >= end1 ? 2 : all >= end0 ? 1 : 0;
        u32 both = 0;  // of `row`, and of row + 8 in the high half
        if (slot < found) {
            const u8* low = which == 2 ? low2 : which == 1 ? low1 : low0;
            const u8* high = which == 2 ? high2 : which == 1 ? high1 : high0;
            const u8* plane_scales = which == 2 ? scales2 : which == 1 ? scales1 : scales0;
            const u8* deltas = which == 2 ? deltas2 : which == 1 ? deltas1 : deltas0;
            const u32 channel = channels[slot], place = channel % 64, pair = place % 8 / 2;
            const i64 tile = i64(all - (which == 2 ? end1 : which == 1 ? end0 : 0)) * k_tiles + channel / 64;
            Quants<FORMAT> q;
            load_quants<FORMAT>(q, low + tile * P::low_bytes, high + tile * P::high_bytes, t - c + pair);
            const u32 half = place / 32;
            const u32 word0 = row_word(plane_scales, deltas, tile, half, row);
            const u32 word8 = row_word(plane_scales, deltas, tile, half, row + 8);
            const u32 step = place / 16, inside = place % 16;
            both = step == 0   ? column_of<0>(q, inside, word0, word8)
                   : step == 1 ? column_of<1>(q, inside, word0, word8)
                   : step == 2 ? column_of<2>(q, inside, word0, word8)
                               : column_of<3>(q, inside, word0, word8);
        }
        // Even lanes store two channels of `row`, odd ones of row + 8.
        const u32 beside = __shfl_xor_sync(0xffffffffu, both, 1), odd = c % 2;
        const u32 two = odd ? __byte_perm(beside, both, 0x7632) : __byte_perm(both, beside, 0x5410);
        u16* to = loud + (i64(all) * TILE_ROWS + row + 8 * odd) * LOUD + slot - odd;
        *reinterpret_cast<u32*>(to) = two;
    }
}
