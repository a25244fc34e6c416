// y[t] = table[ids[t]]: rows of an embedding table, which keeps the layout of its file, as float32.
//
//   ids (tokens), table (rows, row_bytes), y (tokens, width); grid (tokens, parts), 128 threads: parts share a row
//   An id outside the table gives a row of NaN: the device cannot raise, and this shows.
//
// The table is 16-byte aligned. Defines: FORMAT (0 is F32). Arches: 80+.
#include "pdl.cuh"
#include "raw_blocks.cuh"

extern "C" __global__ void __launch_bounds__(128)
    gather_rows(const i32* ids, const u8* table, f32* y, i32 rows, i32 width) {
    using Raw = Packing<FORMAT>;
    pdl_launch_dependents();
    pdl_wait();
    const i32 id = ids[blockIdx.x];
    const u8* row = table + i64(id) * (width / Raw::block) * Raw::block_bytes;
    for (int k = blockIdx.y * 128 + threadIdx.x; k < width; k += 128 * gridDim.y) {
        f32 value = __uint_as_float(0x7fffffff);
        if (u32(id) < u32(rows)) value = raw_value<FORMAT>(row + k / Raw::block * Raw::block_bytes, k % Raw::block);
        y[i64(blockIdx.x) * width + k] = value;
    }
}
