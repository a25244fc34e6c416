// The scale words of gemm_sm90's stages, made from the scales as they lie in the weight by a warp for each row tile of a
// block. It runs as far ahead of the products as the loads do, so nobody waits for what it reads.
//
// Lane l makes the words of rows l and l + 32 of K-quants, and four in a row of the formats with an f16 for 32 inputs.
// What is read at once (a span) serves `steps` k-steps and is unpacked once, and which of them it is is known to the
// compiler: every instruction here takes power from the products. Defines as in gemm_sm90.cu. Arch 90a.
#pragma once
#include "gemm_sm90_work.cuh"
#include "scale_words.cuh"

template <int F, bool Super = Stage<F>::super>
struct TileScales {
    static constexpr u32 steps = 4;
    u32 row;  // this lane's first of the next span, counted through the plane
    RowWords<F> rows[2];

    // `span` counted through the weight.
    SP_DEVICE void start(u32 span, u32 lane) { row = span * TILE_ROWS + lane; }

    SP_DEVICE void load(const Planes& weight) {
#pragma unroll
        for (u32 i = 0; i < 64; i += 32)
            rows[i / 32].unpack(load_words4(weight.scales + row * i64(16) + i * 16),
                                Packing<F>::group == 16 ? *reinterpret_cast<const u16*>(weight.deltas + row * i64(2) + i * 2) : u16(0));
        row += TILE_ROWS;
    }

    SP_DEVICE void store(u32* words, u32 step, u32 lane) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint2 of_groups = rows[i].words(step);
            words[32 * i + lane] = of_groups.x;
            words[TILE_ROWS + 32 * i + lane] = of_groups.y;
        }
    }
};

template <int F>
struct TileScales<F, false> {
    static constexpr u32 steps = 1;
    u32 four;  // this lane's next scales, counted through the plane
    uint2 scales;

    SP_DEVICE void start(u32 span, u32 lane) { four = span * (TILE_SCALE_WORDS / 4) + lane; }

    SP_DEVICE void load(const Planes& weight) {
        scales = load_words2(weight.scales + four * i64(8));
        four += TILE_SCALE_WORDS / 4;
    }

    SP_DEVICE void store(u32* words, u32, u32 lane) const {
        reinterpret_cast<uint4*>(words)[lane] = make_uint4(scale_word(u16(scales.x)), scale_word(u16(scales.x >> 16)),
                                                           scale_word(u16(scales.y)), scale_word(u16(scales.y >> 16)));
    }
};
