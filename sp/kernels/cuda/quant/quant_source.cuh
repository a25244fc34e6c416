// A thread's words of one weight in fragment order, tile after tile along k, from global memory into registers.
//
// `slice` is one of the four 16-row slices of a tile. Nothing is kept in L1 but scales, of which a line serves four loads.
// Loads are volatile: they stay where the pipeline of a kernel puts them, well ahead of their use.
#pragma once
#include "fragment.cuh"

SP_DEVICE uint4 load_words4(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

SP_DEVICE uint2 load_words2(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

SP_DEVICE u32 load_word(const void* p) {
    u32 v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// Where this thread's words of one weight lie in the tile that is loaded next.
template <int F>
struct QuantSource {
    using Format = Packing<F>;
    const u8 *low, *high;
    const u32* scales;

    SP_DEVICE void start(const u8* low0, const u8* high0, const u32* scales0, i64 tile, int slice, int lane) {
        low = low0 + tile * Format::low_bytes + (32 * slice + lane) * Format::low_word;
        high = high0 + tile * Format::high_bytes + (32 * slice + lane) * (Format::high_bytes / TILE_THREADS);
        scales = scales0 + tile * TILE_SCALE_WORDS + 16 * slice + lane / 4;
    }
    SP_DEVICE void advance(bool more) {
        low += more ? Format::low_bytes : 0;
        high += more ? Format::high_bytes : 0;
        scales += more ? TILE_SCALE_WORDS : 0;
    }
    SP_DEVICE void load_part(Quants<F>& q, int slice, int part) const {
        const u8* from = low + (part * TILE_THREADS + 32 * slice) * Format::low_word;
        if constexpr (Format::low_word == 8) {
            const uint2 l = load_words2(from);
            q.low[0].x = l.x, q.low[0].y = l.y;
        } else {
            q.low[part] = load_words4(from);
        }
    }
    SP_DEVICE void load_high(Quants<F>& q, int slice) const {
        if constexpr (Format::high_bits == 2) {
            uint2 h = load_words2(high + 32 * slice * 8);
            q.high[0] = h.x, q.high[1] = h.y;
        }
        if constexpr (Format::high_bits == 1) q.high[0] = load_word(high + 32 * slice * 4);
    }
    SP_DEVICE void load_scales(u32 (&words)[2], int slice, int group) const {
        words[0] = load_word(scales + group * TILE_ROWS + 16 * slice);
        words[1] = load_word(scales + group * TILE_ROWS + 16 * slice + 8);
    }
};
