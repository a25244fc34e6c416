// Packed weights in fragment order: one thread's plane words -> the A registers of mma.m16n8k16 (and of wgmma m64k16).
//
//   tile      64 rows x 64 k, tiles ordered [row_tile][k_tile]; thread t = 32 * warp + lane of 128, g = lane / 4, c = lane % 4
//   k16-step  s = 0..3 of a tile; registers a[j]: row 16 * warp + g + 8 * (j & 1), k = 16 s + 2 c + 8 * (j >> 1), +1 in the high half
//   planes    quant planes of a tile, each [thread][16, 8 or 4 bytes], except where a tile has several of them: [part][thread][16 bytes]
//   scales    as words of 2 bf16 for (row, group of 32 k): see `a_fragment`
//   words     codes of 3 to 6 bits lie in as many words, those of the low plane before those of the high one, a byte for each pair
//             of h = j >> 1 and half e at 8 h + 16 e, which `piece_of` (packings.cuh) shares out among steps and rows
//   codes     numbers in order, or places in a table of numbers of 7 bits and a sign, `values`, that are looked up
//
// Formats are named by their ggml type ids, as in sp.quant; `Packing<F>` (packings.cuh, written from the table there) has what
// is known of one.
// Source of the unpacking: the "magic number" that ors an integer into the fraction of a float, as in Kim, Henry,
// Fahim, Hassan Awadalla, "Who Says Elephants Can't Run", 2022, here on bf16, whose fraction holds 7 bits. Arches: 80+
// (fma.rn.bf16x2).
#pragma once
#include "types.cuh"
#include "packings.cuh"

enum ExpandedScales { TILE_SCALE_WORDS = 2 * TILE_ROWS };  // of a tile: [2 groups of 32 k][64 rows]

// ROWS rows of TILES tiles of a weight, a span or several, as they lie in a slot of a kernel's ring: codes, then scales;
// places and sizes in bytes.
template <int F, int ROWS, int TILES = Packing<F>::tiles>
struct Slot {
    using P = Packing<F>;
    static constexpr bool super = P::super;
    static constexpr int format = F, tiles = TILES, spans = TILES / P::tiles;
    static constexpr int low = tiles * P::low_bytes * ROWS / TILE_ROWS, high = tiles * P::high_bytes * ROWS / TILE_ROWS;
    static constexpr int scales = spans * P::scales_bytes * ROWS / TILE_ROWS;
    static constexpr int deltas = spans * P::deltas_bytes * ROWS / TILE_ROWS;
    static constexpr int high_at = low, scales_at = high_at + high, deltas_at = scales_at + scales;
    static constexpr int bytes = deltas_at + deltas;
};

// What a thread holds of a tile.
template <int F>
struct Quants {
    uint4 low[Packing<F>::low_parts];  // of 2 bits: the first two words
    u32 high[2];                       // of 2 bits: both, of 1 bit: the first
};

// Bits at which the word of a step has the code of register j = r + 2 h, half e, that is looked up: the four of a row lie
// together, in the order that products of bytes have (strip_one.cuh).
constexpr int nibble_at(int j, int e) { return 16 * (j % 2) + 4 * (j / 2 + 2 * e); }

// Loads the word or words of thread t of a tile's high plane (of what threads it has here), if there is one.
template <int F>
SP_DEVICE void load_high(Quants<F>& q, const void* high, int t) {
    if constexpr (Packing<F>::high_bits == 2) {
        const uint2 h = static_cast<const uint2*>(high)[t];
        q.high[0] = h.x, q.high[1] = h.y;
    }
    if constexpr (Packing<F>::high_bits == 1) q.high[0] = static_cast<const u32*>(high)[t];
}

// Loads the words of thread t from the tile's place in the planes (global or shared memory, 16-byte aligned).
template <int F>
SP_DEVICE void load_quants(Quants<F>& q, const void* low, const void* high, int t) {
    if constexpr (Packing<F>::low_word == 8) {
        const uint2 l = static_cast<const uint2*>(low)[t];
        q.low[0].x = l.x, q.low[0].y = l.y;
    } else {
#pragma unroll
        for (int p = 0; p < Packing<F>::low_parts; ++p) q.low[p] = static_cast<const uint4*>(low)[p * TILE_THREADS + t];
    }
    load_high<F>(q, high, t);
}

SP_DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

SP_DEVICE u32 low_half_twice(u32 word) { return __byte_perm(word, 0, 0x1010); }
SP_DEVICE u32 high_half_twice(u32 word) { return __byte_perm(word, 0, 0x3232); }

SP_DEVICE u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// x shifted right by a constant, or left when it is negative.
SP_DEVICE u32 shifted(u32 x, int right) { return right >= 0 ? x >> right : x << -right; }

// (x & mask) | bits as one instruction; from C the compiler makes two, each with a constant of its own.
SP_DEVICE u32 masked_or(u32 x, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
    return d;
}

// Bits of a code that lies in pieces; 0 of other formats.
template <int F>
constexpr int PIECED = Packing<F>::low_bits < 8 && !Packing<F>::lookup ? Packing<F>::low_bits + Packing<F>::high_bits : 0;

// Word i of a thread's, those of the low plane first.
template <int F>
SP_DEVICE u32 code_word(const Quants<F>& q, int i) {
    constexpr int low = Packing<F>::low_word / 4;
    return i < low ? word_of(q.low[0], i) : q.high[i - low];
}

// Codes of rows g (r = 0) or g + 8 in step s at bit `at` of bytes from h on, those that `each` has a bit for, or-ed into `bits`.
template <int F>
SP_DEVICE u32 put_together(const Quants<F>& q, int s, int r, int h, int at, u32 each, u32 bits) {
    static_assert(PIECED<F> != 0, "codes of three to six bits");
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const Piece p = piece_of<PIECED<F>>(s, r, i);
        if (p.bits > 0)
            bits = masked_or(shifted(code_word<F>(q, p.word), 8 * h + p.at - p.to - at),
                             (((1u << p.bits) - 1) << p.to) * each << at, bits);
    }
    return bits;
}

// Bytes of two words, as __byte_perm chooses them, but by four bits each: the fourth repeats the top bit of the byte.
SP_DEVICE u32 permute(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

enum Bf16Pair : u32 {
    BF16_ONE = 0x3F803F80u,
    BF16_MINUS_ZERO = 0x80008000u,  // the addend that leaves a product as it is
    BF16_128 = 0x43004300u          // or-ing q < 128 into it gives 128 + q
};

// 128 + the raw code of register j in k16-step s, exact in bf16. `s` and `j` as below.
template <int F>
SP_DEVICE u32 raised_pair(const Quants<F>& q, int s, int j) {
    return put_together<F>(q, s, j & 1, j >> 1, 0, 0x00010001u, BF16_128);
}

// A table of sixteen bytes, and what codes find there.
struct Table {
    u32 words[4];
};

// The numbers of a format: two's complement, with `raised` added, or a magnitude with the sign as its top bit.
template <int F>
constexpr Table numbers_of(bool magnitudes, int raised = 0) {
    Table table = {};
    for (int i = 0; i < 16; ++i) {
        const int value = Packing<F>::values[i] + raised, size = value < 0 ? -value : value;
        const u32 byte = !magnitudes ? u32(value) & 255 : value < 0 ? 128 + size : size;
        table.words[i / 4] |= byte << (i % 4 * 8);
    }
    return table;
}

// Whether bytes whose codes differ in the fourth bit alone have the same top bit.
constexpr bool is_paired(const Table& table) {
    return (((table.words[0] ^ table.words[2]) | (table.words[1] ^ table.words[3])) & 0x80808080u) == 0;
}

constexpr u32 backwards(u32 word) {
    return word >> 24 | (word >> 8 & 0xff00u) | (word << 8 & 0xff0000u) | word << 24;
}

constexpr u32 inverted_where_top(u32 word) { return word ^ (word >> 7 & 0x01010101u) * 255; }

// a b + c by the multiplier, also where the compiler would rather have the unit that selects, shifts and permutes.
SP_DEVICE u32 product_plus(u32 a, u32 b, u32 c) {
    u32 d;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// The bytes of the four codes in the lower or upper half of a word, the lowest bits' first. A permutation looks each up
// by three bits, in either half of the table. If the fourth is set, it gives the top bit of what it found eight times: of
// the half that is not meant, 0 or 255, so that where tops are the same (`Paired`) an xor puts the two together, bytes of
// the second half with a top bit being held inverted. The second half is looked up backwards, by the inverse of the codes,
// which is -1 - p. Elsewhere the fourth bit chooses by a permutation more. A word of each half is hidden from the compiler,
// kernels having no threadIdx.y but 0: it would move the constant into a register again for every permutation.
template <bool Paired>
SP_DEVICE u32 look_up(const Table& table, u32 codes, int half) {
    if constexpr (Paired) {
        const u32 first = table.words[0] + threadIdx.y, ones = ~threadIdx.y;
        const u32 last = backwards(inverted_where_top(table.words[3])) + threadIdx.y;
        const u32 p = half ? codes >> 16 : codes;  // what is shifted in chooses nothing
        return permute(first, table.words[1], p) ^
               permute(last, backwards(inverted_where_top(table.words[2])), product_plus(p, ones, ones));
    } else {
        const u32 first = table.words[0] + threadIdx.y, second = table.words[2] + threadIdx.y;
        const u32 places = masked_or(codes, 0x77777777u, 0), choice = masked_or(codes >> 1, 0x44444444u, 0x32103210u);
        const u32 p = half ? places >> 16 : places, c = half ? choice >> 16 : choice;
        return permute(permute(first, table.words[1], p), permute(second, table.words[3], p), c);
    }
}

// The looked-up numbers of register j in k16-step s: the magnitude as 7 bits, 0, and a sign in the top bit of each half.
template <int F>
SP_DEVICE u32 signed_pair_of(const Quants<F>& q, int s, int j) {
    constexpr Table table = numbers_of<F>(true);
    constexpr bool paired = is_paired(table);
    const int h = j >> 1;  // bytes h and h + 2 of the row, each followed by its top bit eight times
    return permute(look_up<paired>(table, word_of(q.low[0], s), j & 1), 0, (10 + h) << 12 | (2 + h) << 8 | (8 + h) << 4 | h);
}

// The integer of register j in k16-step s, exact in bf16 (at most 8 significant bits): the code less the middle of its
// range (4, 8, 16 or 32), the signed byte for Q8_0, the number that is looked up. `s` and `j` must be compile-time
// constants after unrolling.
template <int F>
SP_DEVICE u32 integer_pair(const Quants<F>& q, int s, int j) {
    static_assert(!Packing<F>::plain, "BF16 and F16 hold no integers");
    if constexpr (Packing<F>::low_bits == 8) {  // byte b = q + 128: 128 + (b & 127), then -128 when its top bit is set, -256 when not
        u32 word = word_of(q.low[s >> 1], 2 * (s & 1) + (j >> 1));
        u32 b = __byte_perm(word, 0, j & 1 ? 0x4342 : 0x4140);
        return fma_bf16x2(masked_or(b, 0x007F007Fu, BF16_128), BF16_ONE, (b & 0x00800080u) ^ 0xC380C380u);
    } else if constexpr (Packing<F>::lookup) {
        const u32 b = signed_pair_of<F>(q, s, j);
        return fma_bf16x2(masked_or(b, 0x007F007Fu, BF16_128), BF16_ONE, 0xC300C300u) ^ (b & 0x80008000u);
    } else {
        constexpr u32 raised_middle = 0xC300C300u + Packing<F>::middle * 0x00010001u;  // -128 - middle, twice
        return fma_bf16x2(raised_pair<F>(q, s, j), BF16_ONE, raised_middle);
    }
}

// Whether something is added to the products with a scale.
template <int F>
constexpr bool has_shift = Packing<F>::lookup || Packing<F>::centre != 0;

// Integers times scale: a pair of values rounded once to bf16. `word`: the expanded-scale word of the row and of group
// s / 2.
template <int F>
SP_DEVICE u32 scaled_pair(u32 integers, int s, u32 word) {
    u32 scale = Packing<F>::group == 16 && (s & 1) ? high_half_twice(word) : low_half_twice(word);
    u32 shift = has_shift<F> ? high_half_twice(word) : u32(BF16_MINUS_ZERO);
    return fma_bf16x2(integers, scale, shift);
}

// The four A registers of k16-step s: values rounded once to bf16.
//
// `scale0`, `scale8`: the expanded-scale word of (row g, group s / 2) and of (row g + 8, group s / 2) of this warp's 16
// rows:
//   Q4_K Q5_K       low half s, high half c = 8 s - m (16 s - m); x = (q - 8) * s + c (q - 16). Counted from the middle, the
//                   products and c are smaller than q * s and m, and so is what rounding s and c to bf16 costs: a fifth of it
//   Q4_1 Q5_1       the same with c = 8 s + m (16 s + m)
//   Q4_0 Q5_0       low half s, high half 0; x = (q - 8) * s, (q - 16) * s
//   Q6_K Q3_K       low half the scale of the first 16 k of the group, high half of the second; x = (q - 32) * s, (q - 4) * s
//   Q8_0            low half s; x = q * s
//   IQ3_S           low half 2 s, high half s; x = (q - 8) * 2 s + s
//   IQ4_NL IQ4_XS   low half s, high half -128 s; x = (128 + v) * s - 128 s for the magnitude v that is looked up, rounded once;
//   MXFP4           the sign comes last
//   BF16 F16        not read
template <int F>
SP_DEVICE void a_fragment(u32 (&a)[4], const Quants<F>& q, int s, u32 scale0, u32 scale8) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if constexpr (F == BF16) {
            a[j] = word_of(q.low[s], j);
        } else if constexpr (F == F16) {
            float low, high;
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
                : "=f"(low), "=f"(high)
                : "r"(word_of(q.low[s], j)));
            a[j] = pack_bf16(low, high);
        } else if constexpr (Packing<F>::lookup) {
            const u32 b = signed_pair_of<F>(q, s, j);
            a[j] = scaled_pair<F>(masked_or(b, 0x007F007Fu, BF16_128), s, j & 1 ? scale8 : scale0) ^ (b & 0x80008000u);
        } else {
            a[j] = scaled_pair<F>(integer_pair<F>(q, s, j), s, j & 1 ? scale8 : scale0);
        }
    }
}
