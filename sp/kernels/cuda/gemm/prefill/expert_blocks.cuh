// The expert whose weight a block of tokens is multiplied by, in the prefill products of mixtures of experts.
//
// Weights of experts lie one under the other in one fragment-ordered weight, `pitch` row tiles each. Tokens are sorted by
// expert and every expert's begin at a whole block; tiles[i] says which tokens are multiplied together, and there are *count
// (sort_slots.cu). Without the define EXPERTS there is one weight and nothing of this is computed.
#pragma once
#include "types.cuh"

#ifndef EXPERTS
#define EXPERTS 0
#endif

struct ExpertBlocks {
    const i32* tiles;
    const u32* count;
    u32 held, pitch, first, second;  // row tiles: of all, of an expert, before its matrix, before the other of a gated unit

    // Row tiles before the matrix (or with `other` the second one) of a tile of tokens.
    SP_DEVICE u32 base(u32 tile, bool other) const {
        return EXPERTS ? (u32(tiles[tile]) & 1023) * pitch + (other ? second : first) : 0;
    }

    // Its first block, and how many of its tokens are worth multiplying: up to 64, 128 or 256 (0, 1, 2).
    SP_DEVICE u32 block(u32 tile) const { return u32(tiles[tile]) >> 12; }
    SP_DEVICE u32 width(u32 tile) const { return u32(tiles[tile]) >> 10 & 3; }
};

#if EXPERTS
#define EXPERT_PARAMETERS , const i32* __restrict__ owners, const u32* __restrict__ count, u32 held, u32 pitch, u32 first, u32 second_first
#define EXPERT_BLOCKS {owners, count, held, pitch, first, second_first}
#else
#define EXPERT_PARAMETERS
#define EXPERT_BLOCKS {}
#endif
