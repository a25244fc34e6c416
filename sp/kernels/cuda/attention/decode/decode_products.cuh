// The two products of attention_decode.cu and the softmax between them, on one unit of keys and one of values.
//
// S^T = K Q^T and O^T = V^T P^T, with tokens (then dims) as the 16 rows of mma.m16n8k16 and query rows as its 8 columns. Dims
// and tokens inside a fragment may stand in any order as long as both operands agree: threads take packed blocks by whole
// words, and every value is unpacked once.
#pragma once
#include "decode_units.cuh"
#include "softmax.cuh"

constexpr int OUTPUTS = 4 * GROUPS;  // fragments of 16 dims
constexpr bool PACKED_LEVELS = K_FORMAT == K5_ROWS || K_FORMAT == V4_ROWS || V_FORMAT == V4_ROWS;

struct State {
    f32 o[OUTPUTS][TILES][4];
    f32 reference[TILES][2], total[TILES][2];
};

SP_DEVICE u32 transpose(u32 matrix) {
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(matrix));
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
    u32 magic, level_bits, scale, own[2], value_scale, value_own, select, value_select, pair_select, key_pair;

    SP_DEVICE Places(int g, int c) {
        magic = level_bits = 0;
        if (K_FORMAT == Q4_ROWS || V_FORMAT == Q4_ROWS) asm volatile("mov.b32 %0, 0x64006400;" : "=r"(magic));
        if (PACKED_LEVELS) asm volatile("mov.b32 %0, %1;" : "=r"(level_bits) : "n"(LEVEL_BITS));
        scale = g * K_PITCH;
        own[0] = own[1] = 0, select = key_pair = 0;
        if (K_FORMAT == Q4_ROWS) {
            own[0] = g * K_PITCH + 4 * (c ? c : 4), own[1] = g * K_PITCH + 4 * (5 + c);
            select = c == 0 ? 0x3254 : 0x7654;
        } else if (K_FORMAT == Q8_ROWS) {
            own[0] = scale + 8 * c, own[1] = scale + 36 + 8 * c;
        } else if (K_FORMAT == K5_ROWS || K_FORMAT == V4_ROWS) {
            own[0] = scale + 4 + 4 * c, key_pair = 0x4240 + 0x0101 * (c / 2);
            if (K_FORMAT == K5_ROWS) own[1] = scale + 36 + c / 2 * 4, select = c % 2 * 16;
        }
        value_scale = 2 * c * V_PITCH, value_own = value_select = pair_select = 0;
        if (V_FORMAT == Q4_ROWS) {
            value_own = value_scale + 4 * (g == 0 ? 4 : g < 4 ? g : g + 1);
            value_scale += g < 4 ? 0 : 16;
            value_select = g == 0 ? 0x3254 : 0x7654;
        } else if (V_FORMAT == Q8_ROWS) {
            value_own = value_scale + (g < 4 ? 8 * g : 4 + 8 * g);
            value_scale += g < 4 ? 0 : 32;
            value_select = g < 4 ? 0x5432 : 0x3210;
        } else if (V_FORMAT == V4_ROWS) {
            value_own = value_scale + 4 + 4 * g;
        }
        pair_select = V_FORMAT == V4_ROWS ? 0x4400u + 0x1111u * u32(g / 2) : g < 4 ? 0x5410 : 0x7632;
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

// Eight values of a packed row that a lane has of 32, in the fragments of two steps.
struct KeyWords {
    u32 w[2][2], upper, d[2];  // words, and a scale twice, of the first 32 values of 64 and of the others
    Levels levels;             // of codes of four bits: the low halves are of the first 32 values
    u32 level_bits;

    SP_DEVICE KeyWords(u32 row, const Places& at, u32 own, u32 behind)
        : upper(0), levels(0, 0), level_bits(at.level_bits) {
        if (K_FORMAT == Q8_ROWS) {
            const u32 x[3] = {load_word(own), load_word(own + 4), load_word(own + 8)};
            w[0][0] = __byte_perm(x[0], x[1], 0x5432), w[0][1] = __byte_perm(x[1], x[2], 0x5432);
            w[1][0] = load_word(behind), w[1][1] = load_word(behind + 4);
            d[0] = __byte_perm(load_word(row), 0, 0x1010), d[1] = __byte_perm(load_word(row + 32), 0, 0x3232);
        } else {
            const u32 scales = load_word(row);
            w[0][0] = w[0][1] = load_word(own), w[1][0] = w[1][1] = load_word(own + 16);
            if (K_FORMAT == K5_ROWS) upper = load_word(behind) >> at.select;
            const u32 both = __byte_perm(scales, 0, at.key_pair) << 7;
            d[0] = half_twice(both, 0), levels = Levels(both);
        }
    }
    // Two of them: of the first 32 or the others, of the first or second step, the first or second register.
    SP_DEVICE u32 pair(int half, int step, int reg) const {
        if (K_FORMAT == Q8_ROWS) return h2_mul(eight_bits(w[half][step] >> 8 * reg), d[half]);
        const int place = 2 * step + reg;
        if (K_FORMAT == K5_ROWS && half == 0) return h2_mul(six_bits(w[0][0], upper, place), d[0]);
        return levels.twice(half).of(w[half][0], place, level_bits);
    }
};

// Scores of 16 tokens: s[t][0..1] token g and rows 2c, 2c + 1 of tile t; s[t][2..3] token g + 8.
SP_DEVICE void scores(f32 (&s)[TILES][4], u32 unit, const u32 (&q)[STEPS][TILES][2], const Places& at, int g, int c) {
#pragma unroll
    for (int t = 0; t < TILES; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
    if constexpr (K_FORMAT == Q4_ROWS) {
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            u32 scales[2][2], w[2][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 row = unit + 8 * i * K_PITCH + 36 * p;
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
    } else if constexpr (PACKED_KEYS) {
        constexpr int BYTES = row_bytes(K_FORMAT, 64);
        f32 odd[TILES][4] = {};
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            const u32 near = unit + BYTES * p, far = near + 8 * K_PITCH;
            const KeyWords rows[2] = {{near + at.scale, at, near + at.own[0], near + at.own[1]},
                                      {far + at.scale, at, far + at.own[0], far + at.own[1]}};
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    u32 a[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) a[i] = rows[i % 2].pair(half, step, i / 2);
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        const u32 (&b)[2] = q[4 * p + 2 * half + step][t];
                        mma_f16(step ? odd[t] : s[t], a, b[0], b[1]);
                    }
                }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[t][i] += odd[t][i];
    } else {
        f32 odd[TILES][4] = {};  // a second chain, for the latency of the matrix unit
#pragma unroll
        for (int j = 0; j < STEPS / 2; j++) {
            u32 a[4], b[4];
            load_words(a, unit + g * K_PITCH + swizzled<false>(g, 4 * j + c) * 16);
            load_words(b, unit + (g + 8) * K_PITCH + swizzled<false>(g, 4 * j + c) * 16);
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
    constexpr int OFFSETS[4] = {0, V_PITCH, 8 * V_PITCH, 9 * V_PITCH};
    if constexpr (V_FORMAT == Q4_ROWS) {
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
                    a[0][2 * i] = h2_mul(low_codes(r, at.magic), scale[i]);
                    a[0][2 * i + 1] = h2_mul(high_codes(r, at.magic), scale[i]);
                    a[1][2 * i] = h2_mul(low_codes(later, at.magic), scale[i]);
                    a[1][2 * i + 1] = h2_mul(high_codes(later, at.magic), scale[i]);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    mma_f16(state.o[4 * j + 2 * pair][t], a[0], p[t][0], p[t][1]);
                    mma_f16(state.o[4 * j + 2 * pair + 1][t], a[1], p[t][0], p[t][1]);
                }
            }
        }
    } else if constexpr (PACKED_VALUES) {
        constexpr int BYTES = row_bytes(V_FORMAT, 64);
        const bool third = at.value_select == 0x5432;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 x[4], w[4][2];  // of V4 both words are the same
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 row = unit + OFFSETS[i] + BYTES * j, own = row + at.value_own;
                x[i] = load_word(row + at.value_scale);
                w[i][0] = w[i][1] = load_word(own);
                if (V_FORMAT == Q8_ROWS) {
                    const u32 next = load_word(own + 4);
                    w[i][0] = __byte_perm(w[i][0], next, at.value_select);
                    w[i][1] = third ? __byte_perm(next, load_word(own + 8), 0x5432) : next;
                }
            }
            const u32 scale[2] = {__byte_perm(x[0], x[1], at.pair_select), __byte_perm(x[2], x[3], at.pair_select)};
            const Levels levels[2] = {Levels((scale[0] & 0x00ff00ffu) << 7), Levels((scale[1] & 0x00ff00ffu) << 7)};
#pragma unroll
            for (int byte = 0; byte < 4; byte++) {
                const u32 order = byte / 2 ? 0x7632 : 0x5410;
                u32 a[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {  // tokens 2c and 2c + 1, then 8 on; first half of the dims, then the second
                    const int pair = i / 2, half = i % 2;
                    const u32 r = __byte_perm(w[2 * pair][half], w[2 * pair + 1][half], order);
                    if (V_FORMAT == Q8_ROWS) a[i] = h2_mul(eight_bits(r >> byte % 2 * 8), scale[pair]);
                    else a[i] = levels[pair].of(r, 2 * half + byte % 2, at.level_bits);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) mma_f16(state.o[4 * j + byte][t], a, p[t][0], p[t][1]);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 w[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)  // the swizzle depends on token / 2 % 4 = c alone
                load_words(w[i], unit + 2 * c * V_PITCH + OFFSETS[i] + swizzled<true>(2 * c, 8 * j + g) * 16);
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
