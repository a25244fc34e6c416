// The scale words of a whole weight (scale_words.cuh), for kernels that read them from memory.
//
//   words  [row tile][input tile][2 groups of 32 inputs][64 rows], `count` of them, one a thread; grid ceil(count / 256)
//
// Planes are 16-byte aligned. Defines: FORMAT. Arches: 80+.
#include "raw_blocks.cuh"
#include "scale_words.cuh"

extern "C" __global__ void __launch_bounds__(256)
    expand_scales(const u8* scales, const u8* deltas, u32* words, i64 count, i32 k_tiles) {
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i >= count) return;
    using P = Packing<FORMAT>;
    if constexpr (P::super) {
        const int row = i % TILE_ROWS, group = i / TILE_ROWS % 2;
        const i64 tile = i / TILE_SCALE_WORDS, place = (tile / 4) * TILE_ROWS + row;  // k_tiles is a multiple of 4
        const u16 delta = P::delta_bytes ? load_u16(deltas + 2 * place) : u16(0);
        RowWords<FORMAT> row_words;
        row_words.unpack(reinterpret_cast<const RowWords<FORMAT>::Header*>(scales)[place], delta);
        const uint2 both = row_words.words(u32(tile % 4));
        words[i] = group ? both.y : both.x;
    } else {
        u32 scale;
        if constexpr (P::scale_bytes == 1)
            scale = scales[i];
        else if constexpr (P::scale_bytes == 2)
            scale = load_u16(scales + 2 * i);
        else
            scale = reinterpret_cast<const u32*>(scales)[i];
        words[i] = block_word<FORMAT>(scale);
    }
}
