// The scale words of gemm_sm90's stages, made from the scales as they lie in the weight by a warp for each row tile of a
// block, while both wait for the stage to be free: what it reads is asked for before that wait, so nobody waits for it.
//
// Lane l makes the words of rows l and l + 32 of K-quants, one super-block after another, and four in a row of the formats
// with an f16 for 32 inputs. Defines as in gemm_sm90.cu. Arch 90a.
#pragma once
#include "gemm_sm90_work.cuh"
#include "scale_words.cuh"

template <int F, bool Super = Stage<F>::super>
struct ScaleRows;

template <int F>
struct ScaleRows<F, true> {
    uint4 header[2];
    u16 delta[2];

    // Of k-step `k`, `tile` counted through the weight; the first k-step of a piece is `fresh`.
    SP_DEVICE void load(const Planes& weight, i64 tile, u32 k, bool fresh, u32 lane) {
        if (!fresh && k % 4 != 0) return;
        const i64 first = tile / 4 * TILE_ROWS + lane;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            header[i] = load_words4(weight.scales + (first + 32 * i) * 16);
            delta[i] = F == Q6_K ? *reinterpret_cast<const u16*>(weight.deltas + (first + 32 * i) * 2) : u16(0);
        }
    }

    SP_DEVICE void store(u32* words, u32 k, u32 lane) const {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            words[i / 2 * TILE_ROWS + i % 2 * 32 + lane] =
                scale_word<F>(header[i % 2], delta[i % 2], 2 * (k % 4) + i / 2);
    }
};

template <int F>
struct ScaleRows<F, false> {
    uint2 scales;

    SP_DEVICE void load(const Planes& weight, i64 tile, u32, bool, u32 lane) {
        scales = load_words2(weight.scales + tile * (2 * TILE_SCALE_WORDS) + lane * 8);
    }

    SP_DEVICE void store(u32* words, u32, u32 lane) const {
        reinterpret_cast<uint4*>(words)[lane] = make_uint4(scale_word(u16(scales.x)), scale_word(u16(scales.x >> 16)),
                                                           scale_word(u16(scales.y)), scale_word(u16(scales.y >> 16)));
    }
};
