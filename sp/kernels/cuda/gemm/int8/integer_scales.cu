// The scales of a weight as gemm_int8.cu reads them: of each row and 64 inputs four floats, the scale of a group of 32 and
// what is added to every value of it, twice; or, where a scale covers 16 inputs (Q6_K, Q3_K), four scales.
//
// Codes count from the middle of their range in bytes UNIT apart (int8_operands.cuh), so the scale is over UNIT, and the middle
// stands with the minimum: 8 d s - dmin m of Q4_K. Products are exact in float32; a difference is rounded once.
//
//   words  f32 [row tile][k tile][64 rows][4], `count` of four, one a thread; grid ceil(count / 256)
// Planes are 16-byte aligned. Defines: FORMAT. Arches: 80+.
#include "int8_operands.cuh"
#include "raw_blocks.cuh"
#include "scale_words.cuh"

// Of a group of 32: what codes' bytes are times, and what is added to every value.
template <int F>
SP_DEVICE float2 scale_and_shift(f32 scale, f32 minimum) {
    using P = Packing<F>;
    return make_float2(P::stride * scale / UNIT<F>, P::lookup ? 0.0f : fmaf(f32(P::centre), scale, minimum));
}

SP_DEVICE float4 of_both(const float2& first, const float2& second) {
    return make_float4(first.x, first.y, second.x, second.y);
}

// A row's words of tile k (0..3) of a super-block: with minima, with a scale for 16 inputs, with one for 32.
template <int F>
SP_DEVICE float4 of_super(const RowWords<F, false, 32>& row, u32 k) {
    const u32 scales = row.scales[k / 2], minima = row.minima[k / 2], at = k % 2 * 2;
    const float2 first = scale_and_shift<F>(row.step * byte_value(scales, at, 0), -row.least * byte_value(minima, at, 0));
    return of_both(first, scale_and_shift<F>(row.step * byte_value(scales, at + 1, 0),
                                             -row.least * byte_value(minima, at + 1, 0)));
}
template <int F>
SP_DEVICE float4 of_super(const RowWords<F, true, 16>& row, u32 k) {
    const u32 raised = word_of(row.scales, k) ^ 0x80808080u;
    return make_float4(row.value(raised, 0) / UNIT<F>, row.value(raised, 1) / UNIT<F>, row.value(raised, 2) / UNIT<F>,
                       row.value(raised, 3) / UNIT<F>);
}
template <int F>
SP_DEVICE float4 of_super(const RowWords<F, true, 32>& row, u32 k) {
    const u32 raised = (k < 2 ? row.scales.x : row.scales.y) ^ 0x80808080u, at = k % 2 * 2;
    return of_both(scale_and_shift<F>(row.step * byte_value(raised, at, 128), 0),
                   scale_and_shift<F>(row.step * byte_value(raised, at + 1, 128), 0));
}

// Of block i of 32 inputs; a power of two that is a denormal counts as 0, as in scale_words.cuh.
template <int F>
SP_DEVICE float2 of_block(const u8* scales, i64 i) {
    using P = Packing<F>;
    if constexpr (P::scale_bytes == 1) return scale_and_shift<F>(scales[i] < 2 ? 0.0f : power_of_two(scales[i]), 0);
    const f32 scale = f32_from_f16(load_u16(scales + i * P::scale_bytes));
    return scale_and_shift<F>(scale, P::minima ? f32_from_f16(load_u16(scales + i * P::scale_bytes + 2)) : 0.0f);
}

// The four floats of a row of a tile, counted through the weight.
template <int F>
SP_DEVICE float4 integer_words(const u8* scales, const u8* deltas, i64 tile, int row) {
    using P = Packing<F>;
    if constexpr (P::super) {
        const i64 place = tile / 4 * TILE_ROWS + row;  // k_tiles is a multiple of 4
        RowWords<F> words;
        words.unpack(reinterpret_cast<const typename RowWords<F>::Header*>(scales)[place],
                     P::delta_bytes ? load_u16(deltas + 2 * place) : u16(0));
        return of_super<F>(words, u32(tile % 4));
    } else {
        const i64 first = tile * TILE_SCALE_WORDS + row;
        return of_both(of_block<F>(scales, first), of_block<F>(scales, first + TILE_ROWS));
    }
}

extern "C" __global__ void __launch_bounds__(256)
    integer_scales(const u8* scales, const u8* deltas, f32* words, i64 count) {
    const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i < count) reinterpret_cast<float4*>(words)[i] = integer_words<FORMAT>(scales, deltas, i / TILE_ROWS, int(i % TILE_ROWS));
}
