// Which expert's weight a block of tokens is multiplied by, in the prefill products of mixtures of experts.
//
// Weights of experts lie one under the other in one fragment-ordered weight, `pitch` row tiles each. Tokens are sorted by
// expert and every expert's begin at a whole block (sort_slots.cu): block b belongs to experts[b], and there are *count.
// Without the define EXPERTS there is one weight and nothing of this is computed.
#pragma once
#include "types.cuh"

#ifndef EXPERTS
#define EXPERTS 0
#endif

struct ExpertBlocks {
    const i32* experts;
    const u32* count;
    u32 held, pitch, first, second;  // row tiles: of all, of an expert, before its matrix, before the other of a gated unit

    // Row tiles before the matrix (or with `other` the second one) of a block of tokens.
    SP_DEVICE u32 base(u32 block, bool other) const {
        return EXPERTS ? u32(experts[block]) * pitch + (other ? second : first) : 0;
    }
};

#if EXPERTS
#define EXPERT_PARAMETERS , const i32* __restrict__ experts, const u32* __restrict__ count, u32 held, u32 pitch, u32 first, u32 second_first
#define EXPERT_BLOCKS {experts, count, held, pitch, first, second_first}
#else
#define EXPERT_PARAMETERS
#define EXPERT_BLOCKS {}
#endif
