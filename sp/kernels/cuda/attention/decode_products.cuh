// The two products of attention_decode.cu and the softmax between them, on one unit of keys and one of values.
//
// S^T = K Q^T and O^T = V^T P^T, with tokens (then dims) as the 16 rows of mma.m16n8k16 and query rows as its 8 columns. Dims
// and tokens inside a fragment may stand in any order as long as both operands agree: threads take packed blocks by whole
// words, and every value is unpacked once.
#pragma once
#include "decode_units.cuh"
#include "softmax.cuh"

constexpr int OUTPUTS = 4 * GROUPS;  // fragments of 16 dims

struct State {
    f32 o[OUTPUTS][TILES][4];
    f32 reference[TILES][2], total[TILES][2];
};

SP_DEVICE u32 hmul2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

SP_DEVICE u32 transpose(u32 matrix) {
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(matrix));
    return d;
}

// (w & mask) | magic in one instruction; the compiler needs to be told that one of the constants stays in a register.
SP_DEVICE u32 masked(u32 w, u32 mask, u32 magic) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "r"(mask), "r"(magic));
    return d;
}

// Low nibbles of bits 0..3 and 16..19, or high ones of bits 4..7 and 20..23, as f16x2 (code - 8), exactly.
SP_DEVICE u32 low_codes(u32 w, u32 magic) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(masked(w, 0x000f000fu, magic)), "r"(0x64086408u));
    return d;
}
SP_DEVICE u32 high_codes(u32 w, u32 magic) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(d)
        : "r"(masked(w, 0x00f000f0u, magic)), "r"(0x2c002c00u), "r"(0xd480d480u));
    return d;
}

// Where a lane reads in a unit, in bytes from its start, and how; the same for every unit.
struct Places {
    u32 magic, scale, own[2], value_scale, value_own, select, value_select, pair_select;

    SP_DEVICE Places(int g, int c) {
        asm volatile("mov.b32 %0, 0x64006400;" : "=r"(magic));
        scale = g * PITCH;
        own[0] = g * PITCH + 4 * (c ? c : 4), own[1] = g * PITCH + 4 * (5 + c);
        select = c == 0 ? 0x3254 : 0x7654;
        value_scale = 2 * c * PITCH + (g < 4 ? 0 : 16);
        value_own = 2 * c * PITCH + 4 * (g == 0 ? 4 : g < 4 ? g : g + 1);
        value_select = g == 0 ? 0x3254 : 0x7654;
        pair_select = g < 4 ? 0x5410 : 0x7632;
    }
};

SP_DEVICE u32 load_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}

SP_DEVICE void load_words(u32 (&w)[4], u32 address) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(address));
}

// Scores of 16 tokens: s[t][0..1] token g and rows 2c, 2c + 1 of tile t; s[t][2..3] token g + 8.
SP_DEVICE void scores(f32 (&s)[TILES][4], u32 unit, const u32 (&q)[STEPS][TILES][2], const Places& at, int g, int c) {
#pragma unroll
    for (int t = 0; t < TILES; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
    if (Q4) {
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            u32 scales[2][2], w[2][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 row = unit + 8 * i * PITCH + 36 * p;
                scales[0][i] = load_word(row + at.scale), scales[1][i] = load_word(row + at.scale + 16);
                w[0][i] = __byte_perm(scales[0][i], load_word(row + at.own[0]), at.select);
                w[1][i] = load_word(row + at.own[1]);
            }
#pragma unroll
            for (int b = 0; b < 2; b++) {
                u32 low[4], high[4];
                f32 d[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 later = w[b][i] >> 8;
                    low[i] = low_codes(w[b][i], at.magic), high[i] = high_codes(w[b][i], at.magic);
                    low[2 + i] = low_codes(later, at.magic), high[2 + i] = high_codes(later, at.magic);
                    d[i] = b ? high_f16(scales[1][i]) : low_f16(scales[0][i]);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    f32 sum[4] = {};
                    mma_f16(sum, low, q[4 * p + 2 * b][t][0], q[4 * p + 2 * b][t][1]);
                    mma_f16(sum, high, q[4 * p + 2 * b + 1][t][0], q[4 * p + 2 * b + 1][t][1]);
#pragma unroll
                    for (int i = 0; i < 4; i++) s[t][i] += d[i / 2] * sum[i];
                }
            }
        }
    } else {
        f32 odd[TILES][4] = {};  // a second chain, for the latency of the matrix unit
#pragma unroll
        for (int j = 0; j < STEPS / 2; j++) {
            u32 a[4], b[4];
            load_words(a, unit + g * PITCH + swizzled<false>(g, 4 * j + c) * 16);
            load_words(b, unit + (g + 8) * PITCH + swizzled<false>(g, 4 * j + c) * 16);
            const u32 first[4] = {a[0], b[0], a[1], b[1]}, second[4] = {a[2], b[2], a[3], b[3]};
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                mma_f16(s[t], first, q[2 * j][t][0], q[2 * j][t][1]);
                mma_f16(odd[t], second, q[2 * j + 1][t][0], q[2 * j + 1][t][1]);
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[t][i] += odd[t][i];
    }
}

// o += V^T P^T of 16 tokens; p[t] holds P^T of tile t as operand B.
SP_DEVICE void accumulate(State& state, u32 unit, const u32 (&p)[TILES][2], const Places& at, int g, int c) {
    // Tokens 2c, 2c + 1, 2c + 8, 2c + 9 are `i` rows past the first.
    constexpr int OFFSETS[4] = {0, PITCH, 8 * PITCH, 9 * PITCH};
    if (Q4) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 x[4], w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = load_word(unit + at.value_scale + OFFSETS[i] + 36 * j);
                w[i] = __byte_perm(x[i], load_word(unit + at.value_own + OFFSETS[i] + 36 * j), at.value_select);
            }
            const u32 scale[2] = {__byte_perm(x[0], x[1], at.pair_select), __byte_perm(x[2], x[3], at.pair_select)};
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {  // bytes 0 and 1, then 2 and 3, of the words of two tokens
                const u32 order = pair ? 0x7632 : 0x5410;
                u32 a[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 r = __byte_perm(w[2 * i], w[2 * i + 1], order), later = r >> 8;
                    a[0][2 * i] = hmul2(low_codes(r, at.magic), scale[i]);
                    a[0][2 * i + 1] = hmul2(high_codes(r, at.magic), scale[i]);
                    a[1][2 * i] = hmul2(low_codes(later, at.magic), scale[i]);
                    a[1][2 * i + 1] = hmul2(high_codes(later, at.magic), scale[i]);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    mma_f16(state.o[4 * j + 2 * pair][t], a[0], p[t][0], p[t][1]);
                    mma_f16(state.o[4 * j + 2 * pair + 1][t], a[1], p[t][0], p[t][1]);
                }
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 w[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)  // the swizzle depends on token / 2 % 4 = c alone
                load_words(w[i], unit + 2 * c * PITCH + OFFSETS[i] + swizzled<true>(2 * c, 8 * j + g) * 16);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const u32 a[4] = {__byte_perm(w[0][k], w[1][k], 0x5410), __byte_perm(w[0][k], w[1][k], 0x7632),
                                  __byte_perm(w[2][k], w[3][k], 0x5410), __byte_perm(w[2][k], w[3][k], 0x7632)};
#pragma unroll
                for (int t = 0; t < TILES; t++) mma_f16(state.o[4 * j + k][t], a, p[t][0], p[t][1]);
            }
        }
    }
}

// Scores to probabilities as operand B; moves references and rescales when a score outgrew its reference.
SP_DEVICE void probabilities(u32 (&p)[TILES][2], f32 (&s)[TILES][4], State& state) {
    bool outgrown = false;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) outgrown |= s[t][i] > state.reference[t][i % 2] + HEADROOM;
    if (__any_sync(0xffffffffu, outgrown)) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                f32 high = fmaxf(s[t][e], s[t][e + 2]);
#pragma unroll
                for (int step = 4; step < 32; step *= 2) high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, step));
                const f32 now = fmaxf(state.reference[t][e], high - OFFSET);
                const f32 keep = exp2_fast(state.reference[t][e] - now);
                state.reference[t][e] = now;
                state.total[t][e] *= keep;
#pragma unroll
                for (int m = 0; m < OUTPUTS; m++) state.o[m][t][e] *= keep, state.o[m][t][e + 2] *= keep;
            }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[t][i] = exp2_fast(s[t][i] - state.reference[t][i % 2]);
        state.total[t][0] += s[t][0] + s[t][2];
        state.total[t][1] += s[t][1] + s[t][3];
        p[t][0] = transpose(pack_f16(s[t][0], s[t][1]));
        p[t][1] = transpose(pack_f16(s[t][2], s[t][3]));
    }
}
