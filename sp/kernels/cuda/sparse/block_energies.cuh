// Energies of key blocks: sums over a block of query rows of 2^(score - maximum), a tile of KEYS mean keys at a time. What
// block_select.cu and block_select_sm90.cu share; they differ in how scores are made.
//
// A warp holds scores of slices of 16 rows as fragments of mma.cuh: of a lane s[m][4 j + i] is of the slice's row lane / 4 + i / 2 * 8
// and of column 8 j + 2 (lane % 4) + i % 2. Lanes sum against the running maximum of their rows, a warp's are joined against the largest of
// them, those of all warps one tile later against one maximum a tile, and all tiles are brought to one at the end
// (block_choice.cuh). No score leaves the block.
// Needs MOST_BLOCKS, BLOCK, KEYS (32 or 64), WARPS.
#pragma once
#include "mma.cuh"
#include "softmax.cuh"
#define INFINITY_F __int_as_float(0x7f800000)

// In shared memory: of every block its energy over 2^peaks[block / 32], and those exponents, a row for every other pass.
struct Energies {
    f32* values;

    SP_DEVICE f32* peaks_of(i32 pass) const { return values + MOST_BLOCKS + pass % 2 * (MOST_BLOCKS / 32); }
};

struct Partial {
    f32 sums[2][WARPS][KEYS], peaks[2][WARPS];  // of a warp's rows; two buffers, so that a barrier a tile is enough
};

// Lanes that differ in `Bit` share out 2 Half values: each keeps half of them, summed over the two.
template <int Half, u32 Bit>
SP_DEVICE void halve(f32 (&v)[8]) {
    const bool upper = threadIdx.x & Bit;
#pragma unroll
    for (int i = 0; i < Half; ++i) {
        const f32 give = upper ? v[i] : v[i + Half], keep = upper ? v[i + Half] : v[i];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, Bit);
    }
}

// Column sums over the warp's rows to `sums`: v[2 j + e] are those of this thread's rows, of column 8 j + 2 (lane % 4) + e.
SP_DEVICE void sum_columns(f32 (&v)[8], f32* sums) {
    const u32 lane = threadIdx.x % 32;
    halve<4, 16>(v), halve<2, 8>(v), halve<1, 4>(v);
    sums[lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2] = v[0];
}

// Rows of this block of queries: which blocks each sees.
struct Rows {
    i32 count, start, late;  // start: position of the first

    SP_DEVICE i32 limit_of(i32 row) const { return row < count ? (start + row - (late ? BLOCK - 1 : 0)) >> 7 : -1; }
};

// What a lane has of the tile at hand: the largest score of its rows in all tiles so far, and the tile's sums against it, of column
// 8 j + 2 (lane % 4) + e at [2 j + e].
struct Lane {
    f32 peak, sums[KEYS / 4];
};

// More scores of a tile, of Slices slices whose first row in this lane is `row`; the tile's first ones where `First`. Only where the
// tile ends past `limit` are there scores of blocks that rows do not see.
template <bool First, int Slices>
SP_DEVICE void add_up(f32 (&s)[Slices][KEYS / 2], Lane& mine, i32 tile, const Rows& rows, i32 row, i32 limit, f32 scale) {
    if (tile * KEYS + KEYS - 1 > limit) {
        const i32 column = tile * KEYS + i32(threadIdx.x) % 4 * 2;
#pragma unroll
        for (int m = 0; m < Slices; ++m)
#pragma unroll
            for (int i = 0; i < KEYS / 2; ++i)
                if (column + i / 4 * 8 + i % 2 > rows.limit_of(row + 16 * m + i % 4 / 2 * 8)) s[m][i] = -INFINITY_F;
    }
    f32 most = -INFINITY_F;
#pragma unroll
    for (int m = 0; m < Slices; ++m)
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) most = fmaxf(most, s[m][i]);
    // The same for the four lanes of a row, so that blocks of equal scores have equal sums.
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const f32 peak = fmaxf(mine.peak, most * scale), fall = First ? 0.0f : exp2_fast(mine.peak - peak);
    mine.peak = peak;
#pragma unroll
    for (int j = 0; j < KEYS / 4; ++j) {
        const int at = j / 2 * 4 + j % 2;
        f32 sum = First ? 0.0f : mine.sums[j] * fall;
#pragma unroll
        for (int m = 0; m < Slices; ++m)
            sum += exp2_fast(fmaf(s[m][at], scale, -peak)) + exp2_fast(fmaf(s[m][at + 2], scale, -peak));
        mine.sums[j] = sum;
    }
}

// The lanes' sums over a tile to those of the warp.
SP_DEVICE void add_lanes(const Lane& mine, Partial& partial, i32 tile) {
    const u32 warp = threadIdx.x / 32;
    const f32 peak = warp_max(mine.peak), fall = exp2_fast(mine.peak - peak);
#pragma unroll
    for (int part = 0; part < KEYS / 32; ++part) {
        f32 sums[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[j] = mine.sums[8 * part + j] * fall;
        sum_columns(sums, partial.sums[tile % 2][warp] + 32 * part);
    }
    if (threadIdx.x % 32 == 0) partial.peaks[tile % 2][warp] = peak;
}

// The warps' sums over a tile to the energies of its blocks. Of later passes over the keys with what the ones before gave, against
// exponents in the other row: those of this one are not read meanwhile.
SP_DEVICE void join(const Partial& partial, const Energies& energies, i32 tile, i32 pass) {
    if (threadIdx.x >= KEYS) return;
    const i32 buffer = tile % 2, at = tile * KEYS + i32(threadIdx.x);
    f32 peak = partial.peaks[buffer][0], value = 0;
#pragma unroll
    for (int w = 1; w < WARPS; ++w) peak = fmaxf(peak, partial.peaks[buffer][w]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) value += partial.sums[buffer][w][threadIdx.x] * exp2_fast(partial.peaks[buffer][w] - peak);
    if (pass > 0) {
        const f32 before = energies.peaks_of(pass - 1)[at / 32], larger = fmaxf(peak, before);
        value = value * exp2_fast(peak - larger) + energies.values[at] * exp2_fast(before - larger);
        peak = larger;
    }
    energies.values[at] = value;
    if (at % 32 == 0) energies.peaks_of(pass)[at / 32] = peak;
}
