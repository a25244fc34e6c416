// The scale words of gemm_sm90's stages, made from the scales as they lie in the weight by a warp for each row tile of a
// block. It runs as far ahead of the products as the loads do, so no products wait for what it reads.
//
// Lane l makes the words of rows l and l + 32 of super-blocks, and four in a row of blocks of 32 inputs.
// What is read at once (a span) serves `steps` k-steps and is unpacked once, and which of them it is is known to the
// compiler: every instruction here takes power from the products. Defines as in gemm_sm90.cu. Arch 90a.
#pragma once
#include "gemm_sm90_work.cuh"
#include "scale_words.cuh"

template <int F>
SP_DEVICE typename RowWords<F>::Header load_header(const u8* from) {
    if constexpr (sizeof(typename RowWords<F>::Header) == 16)
        return load_words4(from);
    else
        return load_words2(from);
}

template <int F, bool Super = Packing<F>::super>
struct TileScales {
    static constexpr u32 steps = 4;
    u32 row;  // this lane's first of the next span, counted through the plane
    RowWords<F> rows[2];

    // `span` counted through the weight.
    SP_DEVICE void start(u32 span, u32 lane) { row = span * TILE_ROWS + lane; }

    SP_DEVICE void load(const Planes& weight) {
        constexpr u32 bytes = Packing<F>::scale_bytes;
#pragma unroll
        for (u32 i = 0; i < 64; i += 32)
            rows[i / 32].unpack(load_header<F>(weight.scales + row * i64(bytes) + i * bytes),
                                Packing<F>::delta_bytes ? *reinterpret_cast<const u16*>(weight.deltas + row * i64(2) + i * 2) : u16(0));
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
    static constexpr int bytes = Packing<F>::scale_bytes;
    u32 four;  // this lane's next scales, counted through the plane
    u32 scales[bytes ? bytes : 1];

    SP_DEVICE void start(u32 span, u32 lane) { four = span * (TILE_SCALE_WORDS / 4) + lane; }

    SP_DEVICE void load(const Planes& weight) {
        const u8* from = weight.scales + four * i64(4 * bytes);
        if constexpr (bytes == 1) {
            scales[0] = load_word(from);
        } else if constexpr (bytes == 2) {
            const uint2 v = load_words2(from);
            scales[0] = v.x, scales[1] = v.y;
        } else {
            const uint4 v = load_words4(from);
            scales[0] = v.x, scales[1] = v.y, scales[2] = v.z, scales[3] = v.w;
        }
        four += TILE_SCALE_WORDS / 4;
    }

    SP_DEVICE void store(u32* words, u32, u32 lane) const {
        reinterpret_cast<uint4*>(words)[lane] = make_uint4(word(0), word(1), word(2), word(3));
    }

    SP_DEVICE u32 word(int i) const { return block_word<F>(scales[i * bytes / 4] >> (i * bytes % 4 * 8)); }
};
