// Scale words of a packed weight, one at a time. Define: FORMAT. Arches: 80+.
#pragma once
#include "scale_words.cuh"

using P = Packing<FORMAT>;

// A block's bytes of the plane `scales`, the lowest first.
SP_DEVICE u32 block_scale(const u8* scales, i64 at) {
    if constexpr (P::scale_bytes == 1)
        return scales[at];
    else if constexpr (P::scale_bytes == 2)
        return reinterpret_cast<const u16*>(scales)[at];
    else
        return reinterpret_cast<const u32*>(scales)[at];
}

// The scale word of one row in a tile: of its first 32 inputs (half 0) or its last. 0 where a format has none.
SP_DEVICE u32 row_word(const u8* scales, const u8* deltas, i64 tile, u32 half, u32 row) {
    if constexpr (P::super) {
        const i64 place = tile / 4 * TILE_ROWS + row;
        RowWords<FORMAT> of_row;
        of_row.unpack(reinterpret_cast<const typename RowWords<FORMAT>::Header*>(scales)[place],
                      P::delta_bytes ? reinterpret_cast<const u16*>(deltas)[place] : u16(0));
        const uint2 both = of_row.words(u32(tile % 4));
        return half ? both.y : both.x;
    } else if constexpr (!P::plain) {
        return block_word<FORMAT>(block_scale(scales, (tile * 2 + half) * TILE_ROWS + row));
    } else {
        return 0;
    }
}
