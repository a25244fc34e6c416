// One head's row of HEAD_DIM values spread over a warp: load, norm, Hadamard rotation, store.
//
// Lane l holds values [l * E, l * E + E), E = HEAD_DIM / 32, in float32; HEAD_DIM is 64, 128, 256 or 512. `scratch` is HEAD_DIM
// floats of shared memory of this warp's own. A row in a page is HEAD_DIM f16, or HEAD_DIM / 32 blocks of Q4_0 (18 bytes:
// f16 d, then byte j = code j | code (j + 16) << 4), bytes as sp.quant.Q4_0 encodes the same float32 values.
#pragma once
#include "mma.cuh"

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

// Orthonormal Sylvester-Hadamard matrix over consecutive blocks of BLOCK values, a power of two from E to HEAD_DIM.
template <int BLOCK>
SP_DEVICE void hadamard(HeadRow& r, u32 lane) {
#pragma unroll
    for (int step = 1; step < E; step *= 2)
#pragma unroll
        for (int i = 0; i < E; i++)
            if ((i & step) == 0) {
                const f32 a = r.x[i], b = r.x[i + step];
                r.x[i] = a + b, r.x[i + step] = a - b;
            }
#pragma unroll
    for (int step = 1; step < BLOCK / E; step *= 2)
#pragma unroll
        for (int i = 0; i < E; i++) {
            const f32 other = __shfl_xor_sync(0xffffffffu, r.x[i], step);
            r.x[i] = lane & step ? other - r.x[i] : r.x[i] + other;
        }
    const f32 scale = BLOCK == 256 ? 0.0625f : BLOCK == 64 ? 0.125f : rsqrtf(f32(BLOCK));
#pragma unroll
    for (int i = 0; i < E; i++) r.x[i] *= scale;
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

// A page's row of this head and token; `pages` is (pool_pages, 128, kv_heads, row bytes).
template <bool PACKED>
SP_DEVICE void store_in_page(u8* pages, const i32* table, i32 slot, int head, int kv_heads, const HeadRow& r, f32* scratch,
                             u32 lane) {
    constexpr int ROW = PACKED ? HEAD_DIM / 32 * 18 : HEAD_DIM * 2;
    const i64 token = i64(table[slot / PAGE_TOKENS]) * PAGE_TOKENS + slot % PAGE_TOKENS;
    u8* row = pages + (token * kv_heads + head) * ROW;
    if (!PACKED) {
        store_f16(reinterpret_cast<u16*>(row), r, lane);
        return;
    }
    encode_q4_0(reinterpret_cast<u8*>(scratch), r, lane);
    __syncwarp();
    for (int i = int(lane); i < ROW / 4; i += 32)
        reinterpret_cast<u32*>(row)[i] = reinterpret_cast<const u32*>(scratch)[i];
    __syncwarp();
}
