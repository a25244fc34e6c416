// The order in which blocks of prefill attention on Hopper take their tiles and their stages. Defines: STAGES, QUERIES (128).
#pragma once
#include "types.cuh"

struct Ring {
    u32 stage = 0, phase = 0;
    SP_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

struct Shape {
    i32 n, tokens, heads, group, section, early, query_blocks;
    const i32* reach;  // first key that a query sees, with WINDOW
    // Longest rows first, in the early part and in each section.
    SP_DEVICE void place(i32 tile, i32& head, i32& block) const {
        const bool now = tile < heads * early;
        const i32 wide = now ? heads : section, count = now ? early : query_blocks - early;
        const i32 number = now ? tile : tile - heads * early, inside = number % (wide * count);
        head = number / (wide * count) * wide + inside % wide;
        block = (now ? query_blocks : count) - 1 - inside / wide;
    }
};
