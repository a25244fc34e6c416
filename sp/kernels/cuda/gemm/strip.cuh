// One strip (16 rows of a row tile) of a packed weight, a stage at a time: its way into shared memory and its product.
//
// A stage is what a warp fetches at once: a super-block of 256 inputs for K-quants (its scale headers come with it), a
// tile of 64 inputs for the other formats. `Stage<F>` says where its parts lie in a ring slot; every lane copies
// 16-byte pieces.
//
// Products are exact but for float32 sums: A holds the codes raised by 128 (or the codes, where they are 8 bits), so
// nothing is rounded on the way to the tensor cores, and the scales multiply the float32 sums of a group. What 128 too
// much and the minima of Q4_K and Q5_K add is taken off for a super-block at once, by one more product: (rows x groups)
// codes of scales or minima times (groups x tokens) sums of inputs, each sum as two bf16.
#pragma once
#include "fragment.cuh"
#include "mma.cuh"

template <int F>
using Stage = Slot<F, STAGE_ROWS>;

// The planes of one weight, as plane_offsets of sp/ops/matmul/fragment_order.py lays them out.
struct Planes {
    const u8 *low, *high, *scales, *deltas;
};

SP_DEVICE i64 aligned_up(i64 bytes) { return (bytes + 255) & ~i64(255); }

template <int F>
SP_DEVICE Planes planes_of(const u8* data, i64 row_tiles, i64 k_tiles) {
    using S = Stage<F>;
    Planes p;
    p.low = data;
    p.high = p.low + aligned_up(row_tiles * k_tiles * Packing<F>::low_bytes);
    p.scales = p.high + aligned_up(row_tiles * k_tiles * Packing<F>::high_bytes);
    p.deltas = p.scales + aligned_up(row_tiles * (k_tiles / S::tiles) * Packing<F>::scales_bytes);
    return p;
}

// Where the parts of stage 0 of a strip begin for this lane; stages of a strip follow each other at fixed distances.
template <int F>
SP_DEVICE Planes strip_of(Planes p, int strip, int k_tiles, int lane) {
    using S = Stage<F>;
    const i64 row_tile = strip / 4;
    const int quarter = strip % 4;
    p.low += row_tile * k_tiles * Packing<F>::low_bytes + quarter * 512 + lane * 16;
    if constexpr (S::high > 0) {
        constexpr int per_tile = S::high / S::tiles / 16;  // 16-byte pieces a tile
        p.high += row_tile * k_tiles * Packing<F>::high_bytes;
        p.high += lane / per_tile * Packing<F>::high_bytes + quarter * per_tile * 16 + lane % per_tile * 16;
    }
    if constexpr (S::super) {
        const i64 first = row_tile * (k_tiles / S::tiles) * TILE_ROWS;
        p.scales += first * 16 + quarter * 256 + lane * 16;
        if constexpr (S::deltas > 0)
            if (lane >= 16) p.scales = p.deltas + first * 2 + quarter * 32 + (lane - 16) * 16;
    } else if constexpr (S::scales > 0) {
        p.scales += row_tile * k_tiles * Packing<F>::scales_bytes + lane / 2 * 128 + quarter * 32 + lane % 2 * 16;
    }
    return p;
}

// Starts the copies of stage `index` of a strip into a ring slot.
template <int F>
SP_DEVICE void fetch_stage(u32 slot, const Planes& p, i32 index, int lane) {
    using S = Stage<F>;
    const u8* low = p.low + i64(index) * (S::tiles * Packing<F>::low_bytes);
#pragma unroll
    for (int i = 0; i < S::low / 512; ++i) cp_async_16(slot + i * 512 + lane * 16, low + i * 2048);
    if constexpr (S::high > 0) {
        const u8* high = p.high + i64(index) * (S::tiles * Packing<F>::high_bytes);
        constexpr int pieces = S::high / 512, tiles_a_piece = S::tiles / pieces;
#pragma unroll
        for (int i = 0; i < pieces; ++i)
            cp_async_16(slot + S::high_at + i * 512 + lane * 16, high + i * tiles_a_piece * Packing<F>::high_bytes);
    }
    if constexpr (S::scales > 0) {
        const bool delta = S::deltas > 0 && lane >= 16;
        const u8* scales = p.scales + i64(index) * (delta ? Packing<F>::deltas_bytes : Packing<F>::scales_bytes);
        if (lane < (S::scales + S::deltas) / 16) cp_async_16(slot + S::scales_at + lane * 16, scales);
    }
}

// Where a lane reads the inputs in shared memory, see strip_input.cuh. A lane whose token is not held reads another's,
// or nothing at all: its column of the result is never looked at.
struct Inputs {
    u32 x;            // bf16 in B-fragment order: 64 bytes a group of 32 inputs
    const u8* sums32; // 32 bytes a super-block and token: sums of 8 groups of 32 inputs as high and low bf16
    const u8* sums16; // 64 bytes: sums of 16 groups of 16
    bool held;
};

template <int T, int P>
SP_DEVICE Inputs inputs_of(const u8* x, const u8* sums32, const u8* sums16, int lane) {
    const int token = lane / 4 % T, c = lane % 4;
    const u32 at = shared_address(x) + token * P + c * 16;
    return {at, sums32 + token * 32 + c * 4, sums16 + token * 64 + c * 4, lane < 4 * T};
}

// B fragments of the two steps of a group of 32 inputs; whatever was in the registers where no token is held.
template <int T>
SP_DEVICE uint4 input_pair(u32 address, bool held) {
    uint4 v;
    if constexpr (T < 8)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0; @p ld.shared.v4.b32 {%0, %1, %2, %3}, [%5];}"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(int(held)), "r"(address));
    else
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(address));
    return v;
}

// d = a b + d as in mma.cuh, but free to be moved.
SP_DEVICE void multiply_add(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Byte i (< 64) as 128 + byte, any byte as 32768 + byte.
SP_DEVICE f32 small_float(u32 bytes, int i) {
    return __uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044 | i << 8));
}
SP_DEVICE f32 large_float(u32 bytes, int i) {
    return __uint_as_float(__byte_perm(bytes, 0x47000000u, 0x7404 | i << 4));
}

// Bytes 2 i and 2 i + 1 as two bf16: bytes below 64; any byte, less 128.
SP_DEVICE u32 small_pair(u32 bytes, int i) {
    return fma_bf16x2(__byte_perm(bytes, 0x43434343u, i == 0 ? 0x4140 : 0x4342), BF16_ONE, 0xC300C300u);
}
SP_DEVICE u32 signed_pair(u32 bytes, int i) {
    const u32 b = __byte_perm(bytes, 0, i == 0 ? 0x4140 : 0x4342);
    return fma_bf16x2(masked_or(b, 0x007F007Fu, BF16_128), BF16_ONE, (b & 0x00800080u) ^ 0xC380C380u);
}

SP_DEVICE u32 load_u32(const u8* p) { return *reinterpret_cast<const u32*>(p); }

// The scales of a stage for rows g and g + 8, as they come: `codes` a byte for each group of 32 (Q4_K, Q5_K: two words)
// or of 16 inputs (Q6_K: four words, raised by 128), `minima` the four bytes of which this lane needs two.
struct Scales {
    u32 codes[2][4], minima[2];
    f32 d[2], dmin[2];
};

template <int F>
SP_DEVICE Scales load_scales(const u8* slot, int lane) {
    using S = Stage<F>;
    Scales v = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = lane / 4 + 8 * r;
        if constexpr (Packing<F>::minima) {
            const uint4 h = reinterpret_cast<const uint4*>(slot + S::scales_at)[row];
            v.d[r] = low_f16(h.x), v.dmin[r] = high_f16(h.x);
            v.codes[r][0] = h.y & 0x3f3f3f3fu, v.codes[r][1] = (h.w & 0x0f0f0f0fu) | ((h.y >> 2) & 0x30303030u);
            v.minima[r] = lane % 4 < 2 ? h.z & 0x3f3f3f3fu : ((h.w >> 4) & 0x0f0f0f0fu) | ((h.z >> 2) & 0x30303030u);
        } else if constexpr (S::super) {
            const uint4 h = reinterpret_cast<const uint4*>(slot + S::scales_at)[row];
            v.d[r] = f32_from_f16(reinterpret_cast<const u16*>(slot + S::deltas_at)[row]);
#pragma unroll
            for (int i = 0; i < 4; ++i) v.codes[r][i] = word_of(h, i) ^ 0x80808080u;
        }
    }
    return v;
}

// Factors of group p (and for Q6_K its half s) of tile t of a stage, for rows g and g + 8.
template <int F>
SP_DEVICE f32 group_scale(const Scales& v, const u8* slot, int r, int t, int p, int s, int lane) {
    if constexpr (Packing<F>::minima)
        return fmaf(small_float(v.codes[r][t / 2], t % 2 * 2 + p), v.d[r], -128 * v.d[r]);
    else if constexpr (Packing<F>::super)
        return fmaf(large_float(v.codes[r][t], 2 * p + s), v.d[r], -32896 * v.d[r]);
    else
        return f32_from_f16(reinterpret_cast<const u16*>(slot + Stage<F>::scales_at)[p * 16 + lane / 4 + 8 * r]);
}

// acc += W X for one stage; acc[nt][0..3] as D of mma.cuh: tokens 8 nt + 2 c, + 1 of rows g and g + 8.
template <int F, int T, int P, int N = (T + 7) / 8>
SP_DEVICE void multiply_stage(f32 (&acc)[N][4], const u8* slot, const Inputs& in, int index, int lane) {
    using S = Stage<F>;
    const u32 x = in.x + index * (S::tiles * 128);
    const Scales scales = load_scales<F>(slot, lane);
#pragma unroll
    for (int t = 0; t < S::tiles; ++t) {
        Quants<F> q;
#pragma unroll
        for (int p = 0; p < Packing<F>::low_parts; ++p)
            q.low[p] = reinterpret_cast<const uint4*>(slot + (t * Packing<F>::low_parts + p) * 512)[lane];
        load_high<F>(q, slot + S::high_at + t * (S::high / S::tiles), lane);
#pragma unroll
        for (int p = 0; p < 2; ++p) {  // groups of 32 inputs: steps 2 p and 2 p + 1
            u32 a[2][4];
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                if constexpr (Packing<F>::plain) {
                    a_fragment<F>(a[s], q, 2 * p + s, 0, 0);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        if constexpr (S::super)
                            a[s][j] = raised_pair<F>(q, 2 * p + s, j);
                        else
                            a[s][j] = integer_pair<F>(q, 2 * p + s, j);
                    }
                }
            }
#pragma unroll
            for (int nt = 0; nt < N; ++nt) {
                const uint4 b = input_pair<T>(x + (2 * t + p) * 64 + nt * 8 * P, in.held);
                if constexpr (Packing<F>::plain) {
                    multiply_add(acc[nt], a[0], b.x, b.y);
                    multiply_add(acc[nt], a[1], b.z, b.w);
                } else if constexpr (Packing<F>::group == 16) {
                    f32 first[4] = {}, second[4] = {};
                    multiply_add(first, a[0], b.x, b.y);
                    multiply_add(second, a[1], b.z, b.w);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        acc[nt][i] = fmaf(group_scale<F>(scales, slot, i / 2, t, p, 0, lane), first[i], acc[nt][i]);
                        acc[nt][i] = fmaf(group_scale<F>(scales, slot, i / 2, t, p, 1, lane), second[i], acc[nt][i]);
                    }
                } else {
                    f32 sum[4] = {};
                    multiply_add(sum, a[0], b.x, b.y);
                    multiply_add(sum, a[1], b.z, b.w);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        acc[nt][i] = fmaf(group_scale<F>(scales, slot, i / 2, t, p, 0, lane), sum[i], acc[nt][i]);
                }
            }
        }
    }
    if constexpr (Packing<F>::minima) {
        u32 minima[4], codes[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            minima[r] = minima[r + 2] = small_pair(scales.minima[r], lane & 1);
            codes[r] = codes[r + 2] = small_pair(lane % 4 < 2 ? scales.codes[r][0] : scales.codes[r][1], lane & 1);
        }
#pragma unroll
        for (int nt = 0; nt < N; ++nt) {
            const u8* sums = in.sums32 + index * (T * 32) + nt * 256;
            const u32 high = load_u32(sums), low = load_u32(sums + 16);
            f32 lowest[4] = {}, excess[4] = {};
            multiply_add(lowest, minima, high, low);
            multiply_add(excess, codes, high, low);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                acc[nt][i] = fmaf(-scales.dmin[i / 2], lowest[i], acc[nt][i]);
                acc[nt][i] = fmaf(-128 * scales.d[i / 2], excess[i], acc[nt][i]);
            }
        }
    } else if constexpr (S::super) {
        u32 codes[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            codes[r] = signed_pair(lane % 4 < 2 ? scales.codes[r][0] : scales.codes[r][1], lane & 1);
            codes[r + 2] = signed_pair(lane % 4 < 2 ? scales.codes[r][2] : scales.codes[r][3], lane & 1);
        }
#pragma unroll
        for (int nt = 0; nt < N; ++nt) {
            const u8* sums = in.sums16 + index * (T * 64) + nt * 512;
            f32 excess[4] = {};
            multiply_add(excess, codes, load_u32(sums), load_u32(sums + 16));
            multiply_add(excess, codes, load_u32(sums + 32), load_u32(sums + 48));
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[nt][i] = fmaf((-128 - Packing<F>::middle) * scales.d[i / 2], excess[i], acc[nt][i]);
        }
    }
}
