// One head's row of HEAD_DIM values spread over a warp: load, norm, Hadamard rotation, store.
//
// Lane l holds values [l * E, l * E + E), E = HEAD_DIM / 32, in float32; HEAD_DIM is 64, 128, 256 or 512. `scratch` is HEAD_DIM
// floats of shared memory of this warp's own. A row in a page (page_rows.cuh) has the bytes that the format's encoder in
// sp.quant makes of the same float32 values; of K5 and V4 but for scales whose errors differ by rounding alone.
#pragma once
#include "page_rows.cuh"

constexpr int E = HEAD_DIM / 32;
constexpr int PAGE_TOKENS = 128;

struct HeadRow {
    f32 x[E];
};

// Bytes [lane * 2E, ...) of a row of 16-bit values as words; 4, 8 or 16 bytes in one access, 32 in two.
struct alignas(2 * E) HeadWords {
    u32 w[E / 2];
};

SP_DEVICE HeadRow load_bf16(const u16* row, u32 lane) {
    const HeadWords words = reinterpret_cast<const HeadWords*>(row)[lane];
    HeadRow r;
#pragma unroll
    for (int i = 0; i < E / 2; i++) r.x[2 * i] = low_bf16(words.w[i]), r.x[2 * i + 1] = high_bf16(words.w[i]);
    return r;
}

SP_DEVICE HeadRow f16_row(const HeadWords& words) {
    HeadRow r;
#pragma unroll
    for (int i = 0; i < E / 2; i++) r.x[2 * i] = low_f16(words.w[i]), r.x[2 * i + 1] = high_f16(words.w[i]);
    return r;
}

SP_DEVICE HeadWords f16_words(const HeadRow& r) {
    HeadWords words;
#pragma unroll
    for (int i = 0; i < E / 2; i++) words.w[i] = pack_f16(r.x[2 * i], r.x[2 * i + 1]);
    return words;
}

SP_DEVICE HeadRow load_f16(const u16* row, u32 lane) { return f16_row(reinterpret_cast<const HeadWords*>(row)[lane]); }

SP_DEVICE void store_f16(u16* row, const HeadRow& r, u32 lane) { reinterpret_cast<HeadWords*>(row)[lane] = f16_words(r); }

SP_DEVICE void store_bf16(u16* row, const HeadRow& r, u32 lane) {
    HeadWords words;
#pragma unroll
    for (int i = 0; i < E / 2; i++) words.w[i] = pack_bf16(r.x[2 * i], r.x[2 * i + 1]);
    reinterpret_cast<HeadWords*>(row)[lane] = words;
}

// r *= sigmoid of a lane's part of a row of bf16.
SP_DEVICE void gate(HeadRow& r, const HeadWords& words) {
#pragma unroll
    for (int i = 0; i < E; i++) {
        const f32 open = i % 2 ? high_bf16(words.w[i / 2]) : low_bf16(words.w[i / 2]);
        r.x[i] *= 1.0f / (1.0f + __expf(-open));
    }
}

SP_DEVICE f32 norm_scale(const HeadRow& r, f32 eps) {
    f32 squares = 0;
#pragma unroll
    for (int i = 0; i < E; i++) squares += r.x[i] * r.x[i];
    return 1.0f / sqrtf(warp_sum(squares) * (1.0f / HEAD_DIM) + eps);
}

SP_DEVICE void norm(HeadRow& r, const f32* weight, f32 eps, u32 lane) {
    const f32 scale = norm_scale(r, eps);
#pragma unroll
    for (int i = 0; i < E; i++) r.x[i] *= scale * weight[lane * E + i];
}

// The same without weights, and what a caller that keeps the row apart would store: its f16 values.
SP_DEVICE void bare_norm(HeadRow& r, f32 eps) {
    const f32 scale = norm_scale(r, eps);
#pragma unroll
    for (int i = 0; i < E; i++) r.x[i] = f32_from_f16(f16_from(r.x[i] * scale));
}

// Orthonormal Sylvester-Hadamard matrix over consecutive blocks of BLOCK values, a power of two from E to HEAD_DIM. With PARTS the
// first 32 of every 64 values are rotated together, and the second ones together.
template <int BLOCK, bool PARTS = false>
SP_DEVICE void hadamard(HeadRow& r, u32 lane) {
    constexpr int PART = 32 / E;  // lanes of 32 values
#pragma unroll
    for (int step = 1; step < E; step *= 2)
#pragma unroll
        for (int i = 0; i < E; i++)
            if ((i & step) == 0) {
                const f32 a = r.x[i], b = r.x[i + step];
                r.x[i] = a + b, r.x[i + step] = a - b;
            }
#pragma unroll
    for (int step = 1; step < BLOCK / E; step *= 2) {
        if (PARTS && step == PART) continue;
#pragma unroll
        for (int i = 0; i < E; i++) {
            const f32 other = __shfl_xor_sync(0xffffffffu, r.x[i], step);
            r.x[i] = lane & step ? other - r.x[i] : r.x[i] + other;
        }
    }
    constexpr int TOGETHER = PARTS ? BLOCK / 2 : BLOCK;
    const f32 scale = TOGETHER == 256 ? 0.0625f : TOGETHER == 64 ? 0.125f : rsqrtf(f32(TOGETHER));
#pragma unroll
    for (int i = 0; i < E; i++) r.x[i] *= scale;
}

// Keys as they are packed: r[i] = (r[order[i]] - offset[i]) * inverse[i], then rotated by parts. The arrays are of this head.
SP_DEVICE void to_basis(HeadRow& r, const i32* order, const f32* offset, const f32* inverse, f32* scratch, u32 lane) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < E; i++) scratch[lane * E + i] = r.x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < E; i++) {
        const int at = int(lane) * E + i;
        r.x[i] = __fmul_rn(__fsub_rn(scratch[order[at]], offset[at]), inverse[at]);
    }
    __syncwarp();
    hadamard<HEAD_DIM, true>(r, lane);
}

// Products and sums are rounded one after the other, as the encoder's definition wants; `bytes` is shared scratch.
SP_DEVICE void encode_q4_0(u8* bytes, const HeadRow& r, u32 lane) {
    constexpr int LANES = 32 / E;  // that hold a block
    f32 peak = r.x[0];
#pragma unroll
    for (int i = 1; i < E; i++)
        if (fabsf(r.x[i]) > fabsf(peak)) peak = r.x[i];
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        const f32 other = __shfl_xor_sync(0xffffffffu, peak, step);
        const bool lower = lane & step;  // `other` comes from values that stand before this lane's: it wins a tie
        if (fabsf(other) > fabsf(peak) || (lower && fabsf(other) == fabsf(peak))) peak = other;
    }
    const f32 d = __fdiv_rn(__fadd_rn(peak, 0.0f), -8.0f);
    const f32 inverse = fabsf(d) >= 0x1p-126f ? __fdiv_rn(1.0f, d) : 0.0f;
    u32 codes[(E + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < E; i++) {
        const u32 code = u32(__fadd_rn(__fmul_rn(r.x[i], inverse), 8.5f));
        codes[i / 4] |= min(code, 15u) << 8 * (i % 4);
    }
    u8* block = bytes + lane / LANES * 18;
    const u32 part = lane % LANES;
#pragma unroll
    for (int i = 0; i < (E + 3) / 4; i++) {
        const u32 high = __shfl_down_sync(0xffffffffu, codes[i], LANES / 2);
        const u32 packed = codes[i] | high << 4;
        if (part < LANES / 2) {
            u16* target = reinterpret_cast<u16*>(block + 2 + part * E + 4 * i);
            target[0] = u16(packed);
            if (E > 2) target[1] = u16(packed >> 16);
        }
    }
    if (part == 0) *reinterpret_cast<u16*>(block) = f16_from(d);
}

SP_DEVICE void encode_q8_0(u8* bytes, const HeadRow& r, u32 lane) {
    constexpr int LANES = 32 / E;
    f32 peak = 0;
#pragma unroll
    for (int i = 0; i < E; i++) peak = fmaxf(peak, fabsf(r.x[i]));
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, step));
    const f32 d = __fdiv_rn(peak, 127.0f), inverse = d >= 0x1p-126f ? __fdiv_rn(1.0f, d) : 0.0f;
    u8* block = bytes + lane / LANES * 34;
    u16* codes = reinterpret_cast<u16*>(block + 2 + lane % LANES * E);
#pragma unroll
    for (int i = 0; i < E; i += 2) {
        const i32 low = i32(roundf(__fmul_rn(r.x[i], inverse))), high = i32(roundf(__fmul_rn(r.x[i + 1], inverse)));
        codes[i / 2] = u16((low & 255) | (high & 255) << 8);
    }
    if (lane % LANES == 0) *reinterpret_cast<u16*>(block) = f16_from(d);
}

// `sp.quant.cached.levels` of a code of four bits, at a scale of 1, and the code of a value.
SP_DEVICE f32 bent_level(int code) {
    const f32 t = f32(code) - 7.5f;
    return __fmul_rn(t, __fadd_rn(1.0f, __fmul_rn(0.005f, __fmul_rn(t, t))));
}
SP_DEVICE int bent_code(f32 y) {
    constexpr f32 BORDERS[7] = {1.00875f, 2.0475001f, 3.14625f, 4.335f, 5.64375f, 7.1025f, 8.74125f};  // from 0 up
    const f32 size = __uint_as_float(__float_as_uint(fabsf(y)) - (y < 0));  // what lies on a border has the upper code
    const bool a = size >= BORDERS[3], b = size >= (a ? BORDERS[5] : BORDERS[1]);
    const bool c = size >= (a ? b ? BORDERS[6] : BORDERS[4] : b ? BORDERS[2] : BORDERS[0]);
    const int above = 4 * a + 2 * b + c;
    return y >= 0 ? 8 + above : 7 - above;
}

// Codes of a row of K5 or V4, a byte each, to bytes[0 .. HEAD_DIM), bytes of scales behind them.
template <bool KEYS>
SP_DEVICE void encode_groups(u8* bytes, const HeadRow& r, u32 lane) {
    constexpr int LANES = E >= 16 ? 1 : 16 / E;
    const bool heavy = KEYS && lane * E % 64 < 32;  // six bits, evenly spaced
    f32 peak = 0;
#pragma unroll
    for (int i = 0; i < E; i++) peak = fmaxf(peak, fabsf(r.x[i]));
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, step));
    // The byte closest to a scale that just covers the peak, and three more; not past the largest finite one.
    const i32 covering = i32(f16_from(__fmul_rn(peak, heavy ? 0.031746034f : 0.10406504f)));
    const i32 highest = min(covering + 64 + 3 * 128, 0x7bff) >> 7;
    f32 least = 0;
    i32 chosen = 0;
    int codes[E] = {};
#pragma unroll 1  // short code is fetched sooner
    for (int tried = 0; tried < 5; tried++) {
        const i32 byte = max(highest - tried, 0);
        const f32 d = f32_from_f16(u16(byte << 7)), inverse = d > 0 ? __fdiv_rn(1.0f, d) : 0.0f;
        f32 error = 0;
        int trial[E];
#pragma unroll
        for (int i = 0; i < E; i++) {
            const f32 y = __fmul_rn(r.x[i], inverse);
            trial[i] = heavy ? min(max(i32(floorf(y)) + 32, 0), 63) : bent_code(y);
            const f32 off = __fsub_rn(__fmul_rn(d, heavy ? f32(trial[i]) - 31.5f : bent_level(trial[i])), r.x[i]);
            error = __fadd_rn(error, __fmul_rn(off, off));
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) error += __shfl_xor_sync(0xffffffffu, error, step);
        if (tried > 0 && !(error < least)) continue;
        least = error, chosen = byte;
#pragma unroll
        for (int i = 0; i < E; i++) codes[i] = trial[i];
    }
#pragma unroll
    for (int i = 0; i < E; i++) bytes[lane * E + i] = u8(codes[i]);
    if (lane % LANES == 0) bytes[HEAD_DIM + lane * E / 16] = u8(chosen);
}

// Word i of a row of K5 or V4 from codes and scales as encode_groups leaves them.
template <bool KEYS>
SP_DEVICE u32 packed_word(const u8* bytes, int i) {
    constexpr int WORDS = KEYS ? 11 : 9;
    const int block = i / WORDS, word = i % WORDS;
    if (word == 0) return reinterpret_cast<const u32*>(bytes + HEAD_DIM)[block];
    const u32* codes = reinterpret_cast<const u32*>(bytes + 64 * block);
    if (word < 9) return (codes[2 * word - 2] & 0x0f0f0f0fu) | (codes[2 * word - 1] & 0x0f0f0f0fu) << 4;
    u32 out = 0;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const u32 low = codes[4 * (word - 9) + 2 * c] >> 4, high = codes[4 * (word - 9) + 2 * c + 1] >> 4;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const u32 a = low >> 16 * p, b = high >> 16 * p;
            const u32 byte = (a & 3) | (a >> 8 & 3) << 2 | (b & 3) << 4 | (b >> 8 & 3) << 6;
            out |= byte << 16 * c + 8 * p;
        }
    }
    return out;
}

// A page's row of this head and token; `pages` is (pool_pages, 128, kv_heads, row bytes).
template <int LAYOUT>
SP_DEVICE void store_in_page(u8* pages, const i32* table, i32 slot, int head, int kv_heads, const HeadRow& r, f32* scratch,
                             u32 lane) {
    constexpr int ROW = row_bytes(LAYOUT, HEAD_DIM);
    const i64 token = i64(table[slot / PAGE_TOKENS]) * PAGE_TOKENS + slot % PAGE_TOKENS;
    u8* row = pages + (token * kv_heads + head) * ROW;
    if constexpr (LAYOUT == F16_ROWS) {
        store_f16(reinterpret_cast<u16*>(row), r, lane);
    } else {
        u8* bytes = reinterpret_cast<u8*>(scratch);
        constexpr bool GROUPS = LAYOUT == K5_ROWS || LAYOUT == V4_ROWS;
        if constexpr (GROUPS) encode_groups<LAYOUT == K5_ROWS>(bytes, r, lane);
        else if constexpr (LAYOUT == Q8_ROWS) encode_q8_0(bytes, r, lane);
        else encode_q4_0(bytes, r, lane);
        __syncwarp();
        for (int i = int(lane); i < ROW / 4; i += 32)
            reinterpret_cast<u32*>(row)[i] = GROUPS ? packed_word<LAYOUT == K5_ROWS>(bytes, i) : reinterpret_cast<const u32*>(bytes)[i];
        __syncwarp();
    }
}
