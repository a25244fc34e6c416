// Compact scale headers -> one word of two bf16 for each (input tile, group of 32 inputs, row), as the prefill kernels
// read them; what the halves mean is said at `a_fragment` in fragment.cuh.
//
//   words  [row tile][input tile][2 groups][64 rows], `count` of them, one a thread; grid ceil(count / 256)
//
// Planes are 16-byte aligned. Defines: FORMAT. Arches: 80+.
#include "raw_blocks.cuh"

extern "C" __global__ void __launch_bounds__(256)
    expand_scales(const u8* scales, const u8* deltas, u32* words, i64 count, i32 k_tiles) {
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i >= count) return;
    const int row = i % TILE_ROWS, group = i / TILE_ROWS % 2;
    const i64 tile = i / TILE_SCALE_WORDS;
    f32 low, high = 0;
    if constexpr (Packing<FORMAT>::super) {
        const i64 place = (tile / 4) * TILE_ROWS + row;  // k_tiles is a multiple of 4
        const int j = 2 * int(tile % 4) + group;
        const uint4 header = reinterpret_cast<const uint4*>(scales)[place];
        const u8* bytes = reinterpret_cast<const u8*>(&header);
        if constexpr (Packing<FORMAT>::group == 16) {
            f32 d = f32_from_f16(load_u16(deltas + 2 * place));
            low = d * f32(i8(bytes[2 * j]));
            high = d * f32(i8(bytes[2 * j + 1]));
        } else {
            u32 scale, minimum;
            affine_scale(bytes + 4, j, scale, minimum);
            low = f32_from_f16(u16(header.x)) * f32(scale);
            high = Packing<FORMAT>::middle * low - f32_from_f16(u16(header.x >> 16)) * f32(minimum);
        }
    } else {
        low = f32_from_f16(load_u16(scales + 2 * i));
    }
    words[i] = pack_bf16(low, high);
}
