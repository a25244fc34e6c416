// A stage of gemm_int8's ring, 64 inputs of a block's tile: how it is copied, and what a warp makes of it.
//
// Stage, in bytes: input codes [tokens][64]; their scales [2 groups][tokens][scale, scale x sum]; then of each 64 weight rows
// the low plane of the tile; the high planes; weight scales [rows][4 floats]. 16-byte chunk j of a token's codes lies at
// j ^ (token / 2 % 4), so that neither the copies nor ldmatrix meet a bank twice.
//
// The weight rows of a block are those of its rows of y, with SWIGLU the gate's and then the up's.
#pragma once
#include "epilogue.cuh"
#include "int8_operands.cuh"

using Format = Packing<FORMAT>;

constexpr bool PAIRED = EPILOGUE == EPILOGUE_SWIGLU;
constexpr int SOURCES = PAIRED ? 2 : 1;
constexpr int SHARE = SLICES / SOURCES;  // of a warp's 16-row slices, from each source
constexpr int WARP_ROWS = 16 * SHARE;    // of y
constexpr int BLOCK_ROWS = WARP_ROWS * WARPS;
constexpr int BLOCK_TOKENS = 8 * COLUMNS;
constexpr int THREADS = 32 * WARPS;
constexpr int ROW_TILES = BLOCK_ROWS / TILE_ROWS;  // from each source
constexpr int PAIRS_AT = BLOCK_TOKENS * TILE_K;
constexpr int LOW_AT = PAIRS_AT + BLOCK_TOKENS * 16;
constexpr int HIGH_AT = LOW_AT + SOURCES * ROW_TILES * Format::low_bytes;
constexpr int SCALES_AT = HIGH_AT + SOURCES * ROW_TILES * Format::high_bytes;
constexpr int STAGE_BYTES = SCALES_AT + SOURCES * BLOCK_ROWS * 16;
constexpr bool SHIFTED = !Format::lookup && Format::centre != 0;  // whether weights add something to every value
static_assert(BLOCK_ROWS % TILE_ROWS == 0 && TILE_ROWS % WARP_ROWS == 0, "a warp's rows lie in one tile");

extern __shared__ __align__(128) u8 shared[];

// A weight, from its first tile of this block's rows on; row tiles past the last one repeat it, and are never stored.
struct Source {
    const u8 *low, *high;
    const f32* scales;
};

// `Bytes` of each of ROW_TILES row tiles, `pitch` bytes apart, of which `most` are there.
template <int Bytes>
SP_DEVICE void copy_rows(u32 to, const u8* from, i64 pitch, int most, int thread) {
    constexpr int chunks = Bytes / 16;
#pragma unroll
    for (int first = 0; first < ROW_TILES * chunks; first += THREADS) {
        const int i = first + thread;
        if (ROW_TILES * chunks % THREADS != 0 && i >= ROW_TILES * chunks) break;
        cp_async_16(to + i * 16, from + min(i / chunks, most - 1) * pitch + i % chunks * 16);
    }
}

// Starts the copies of one of `k_tiles` tiles along k. `most`: row tiles from this block's first one on.
SP_DEVICE void copy_stage(u32 stage, const i8* codes, const f32* pairs, const Source (&weights)[SOURCES], int tile,
                          int k_tiles, int token0, int held, int most, int thread) {
    // A copying thread's chunks lie THREADS apart, whole rows of codes and of a period of their swizzle.
    static_assert(BLOCK_TOKENS * 4 % THREADS == 0 && THREADS % 32 == 0, "copies of codes");
    const u8* from = reinterpret_cast<const u8*>(codes + (i64(tile) * held + token0) * TILE_K) + thread * 16;
    const u32 to = stage + thread / 4 * TILE_K + ((thread % 4) ^ (thread / 8 % 4)) * 16;
#pragma unroll
    for (int first = 0; first < BLOCK_TOKENS * 4; first += THREADS) cp_async_16(to + first * 16, from + first * 16);
    static_assert(BLOCK_TOKENS <= THREADS, "two tokens of a group a thread");
    if (thread < BLOCK_TOKENS) {
        const int group = thread / (BLOCK_TOKENS / 2), two = thread % (BLOCK_TOKENS / 2) * 2;
        cp_async_16(stage + PAIRS_AT + thread * 16, pairs + ((i64(tile) * 2 + group) * held + token0 + two) * 2);
    }
#pragma unroll
    for (int i = 0; i < SOURCES; ++i) {
        const Source& w = weights[i];
        const u32 at = stage + i * ROW_TILES * Format::low_bytes, high_at = stage + i * ROW_TILES * Format::high_bytes;
        copy_rows<Format::low_bytes>(at + LOW_AT, w.low + i64(tile) * Format::low_bytes,
                                     i64(k_tiles) * Format::low_bytes, most, thread);
        if constexpr (Format::high_bytes > 0)
            copy_rows<Format::high_bytes>(high_at + HIGH_AT, w.high + i64(tile) * Format::high_bytes,
                                          i64(k_tiles) * Format::high_bytes, most, thread);
        copy_rows<TILE_ROWS * 16>(stage + i * BLOCK_ROWS * 16 + SCALES_AT,
                                  reinterpret_cast<const u8*>(w.scales + i64(tile) * TILE_ROWS * 4),
                                  i64(k_tiles) * TILE_ROWS * 16, most, thread);
    }
}

// A warp's weights of a group of 32 inputs: operands, and of rows g and g + 8 the scale and what is added, or two scales.
struct WarpWeights {
    u32 a[SLICES][4];
    float2 scales[SLICES][2];

    SP_DEVICE void load(const u8* stage, int group, int warp, int lane) {
#pragma unroll
        for (int m = 0; m < SLICES; ++m) {
            const int row = m / SHARE * BLOCK_ROWS + warp * WARP_ROWS + m % SHARE * 16;  // of the stage's weight rows
            const int tile = row / TILE_ROWS, thread = row % TILE_ROWS * 2 + lane;
            Quants<FORMAT> q;
            load_quants<FORMAT>(q, stage + LOW_AT + tile * Format::low_bytes, stage + HIGH_AT + tile * Format::high_bytes, thread);
#pragma unroll
            for (int i = 0; i < 4; ++i) a[m][i] = signed_bytes<FORMAT>(q, 2 * group + i / 2, i % 2);
            const float2* from = reinterpret_cast<const float2*>(stage + SCALES_AT) + (row + lane / 4) * 2 + group;
            scales[m][0] = from[0], scales[m][1] = from[16];
        }
    }
};

// Adds a group's sums d of 8 tokens: `x`, of tokens 2 c and 2 c + 1, scale and scale times sum; of rows g and g + 8 the scale,
// and what the weight adds to every value.
template <bool Shifts>
SP_DEVICE void add_scaled(f32 (&sum)[4], const int (&d)[4], const float4& x, const f32 (&scale)[2], const f32 (&shift)[2]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const f32 factor = e % 2 ? x.z : x.x, inputs = e % 2 ? x.w : x.y;
        const f32 whole = fmaf(__uint_as_float(u32(d[e])), factor, -MAGIC * factor);  // rounded once: MAGIC * factor is exact
        sum[e] = fmaf(scale[e / 2], whole, sum[e]);
        if constexpr (Shifts) sum[e] = fmaf(shift[e / 2], inputs, sum[e]);
    }
}

// Multiplies 8 tokens by a warp's rows: `b0` and `b1` as ldmatrix gives them, of each 16 inputs.
SP_DEVICE void multiply_column(f32 (&sum)[SLICES][4], const WarpWeights& w, u32 b0, u32 b1, const float4& x) {
#pragma unroll
    for (int m = 0; m < SLICES; ++m) {
        const float2 &low = w.scales[m][0], &high = w.scales[m][1];
        const f32 first[2] = {low.x, high.x}, second[2] = {low.y, high.y};
        int d[4];
        if constexpr (Format::group == 16) {
            multiply_16(d, w.a[m][0], w.a[m][1], b0);
            add_scaled<false>(sum[m], d, x, first, second);
            multiply_16(d, w.a[m][2], w.a[m][3], b1);
            add_scaled<false>(sum[m], d, x, second, second);
        } else {
            multiply_32(d, w.a[m], b0, b1);
            add_scaled<SHIFTED>(sum[m], d, x, first, second);
        }
    }
}

// Where lane l finds its row for ldmatrix in group 0: token l % 8 (+ 8 from lane 16 on), of its 64 inputs chunk l / 8 % 2.
SP_DEVICE u32 columns_place(int lane) {
    return (lane % 8 + lane / 16 * 8) * TILE_K + ((lane / 8 % 2) ^ (lane % 8 / 2)) * 16;
}

// Operands and scales of 16 tokens, as lanes hold them.
struct Columns {
    u32 b[4];
    float4 x[2];

    SP_DEVICE void load(u32 codes, const float4* pairs, int j) {
        ldmatrix_x4(b, codes + j * 8 * TILE_K);
        x[0] = pairs[j * 4], x[1] = pairs[j * 4 + 4];
    }
};

// Multiplies a stage's tokens by a warp's rows, a group. Lanes meet after every two columns, so that the compiler loads no
// more than the next two ahead: it would take the registers of sums for all of them.
SP_DEVICE void multiply_columns(f32 (&sum)[COLUMNS][SLICES][4], const WarpWeights& w, const u8* stage, int group, int lane) {
    const u32 codes = shared_address(stage) + (columns_place(lane) ^ group * 32);
    const float4* pairs = reinterpret_cast<const float4*>(stage + PAIRS_AT) + group * (BLOCK_TOKENS / 2) + lane % 4;
    Columns columns[2];
    columns[0].load(codes, pairs, 0);
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
        const Columns& now = columns[j / 2 % 2];
        if (j + 2 < COLUMNS) columns[1 - j / 2 % 2].load(codes, pairs, j + 2);
        multiply_column(sum[j], w, now.b[0], now.b[1], now.x[0]);
        multiply_column(sum[j + 1], w, now.b[2], now.b[3], now.x[1]);
        __syncwarp();
    }
}
