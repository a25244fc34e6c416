// attention_heads (head_norm_rope.cu) for prompts whose heads are rotated whole and whose pages are plain f16: the same
// results to the bit, in half of the instructions, since both values of a pair lie in one lane.
//
//   q: y[t, h] = rope(norm(q[t, h, :d]), positions[t]), f16, where there is one (heads is 0 else); k likewise, stored in its
//   page; v stored in its page. norm: x / sqrt(mean(x^2) + eps) * weight; rope: pairs of values turned by
//   positions[t] * turns[j], times magnitude
//
// Layouts: q (tokens, heads, stride) bf16 with stride >= d (a gate may follow), k, v (tokens, kv_heads, d) bf16,
//   y (tokens, heads, d) f16, turns i64 (d / 2,) as in rotary.cuh, pages (pool pages, 128, kv_heads, d) f16 by `table`.
// Launch: 4 warps a block, a warp a token: d / 8 lanes a head, each with four pairs of it; STEPS times as many heads at once as
//   fit a warp. Rows 16-byte aligned. Bound by memory. sm_80 and newer.
// Defines: HEAD_DIM 64, 128; INTERLEAVED, see rotary.cuh; NORM 0 where no norm comes before rope (weights are null).
#include "pdl.cuh"
#include "rotary.cuh"

#ifndef NORM
#define NORM 1
#endif
static_assert(!NORM || (HEAD_DIM == 128 && !INTERLEAVED), "sums of squares are added in the order of norm() for these alone");

enum { WARPS = 4, LANES = HEAD_DIM / 8, SIDE = 32 / LANES, STEPS = 4, HALF = HEAD_DIM / 2 };

// Four pairs of a head, 16 bits a value: those that come first, and those they are turned with; interleaved as they lie.
struct PairWords {
    uint2 first, second;
};

struct Pairs {
    f32 a[4], b[4];
};

SP_DEVICE PairWords load_pairs(const u16* row, u32 part) {
    if (INTERLEAVED) {
        const uint4 all = reinterpret_cast<const uint4*>(row)[part];
        return {make_uint2(all.x, all.y), make_uint2(all.z, all.w)};
    }
    const uint2* words = reinterpret_cast<const uint2*>(row);
    return {words[part], words[part + HEAD_DIM / 8]};
}

SP_DEVICE Pairs pairs_of(const PairWords& w) {
    if (INTERLEAVED)
        return {{low_bf16(w.first.x), low_bf16(w.first.y), low_bf16(w.second.x), low_bf16(w.second.y)},
                {high_bf16(w.first.x), high_bf16(w.first.y), high_bf16(w.second.x), high_bf16(w.second.y)}};
    return {{low_bf16(w.first.x), high_bf16(w.first.x), low_bf16(w.first.y), high_bf16(w.first.y)},
            {low_bf16(w.second.x), high_bf16(w.second.x), low_bf16(w.second.y), high_bf16(w.second.y)}};
}

SP_DEVICE void store_pairs(u16* row, const Pairs& r, u32 part) {
    if (INTERLEAVED) {
        reinterpret_cast<uint4*>(row)[part] = make_uint4(pack_f16(r.a[0], r.b[0]), pack_f16(r.a[1], r.b[1]),
                                                         pack_f16(r.a[2], r.b[2]), pack_f16(r.a[3], r.b[3]));
        return;
    }
    uint2* words = reinterpret_cast<uint2*>(row);
    words[part] = make_uint2(pack_f16(r.a[0], r.a[1]), pack_f16(r.a[2], r.a[3]));
    words[part + HEAD_DIM / 8] = make_uint2(pack_f16(r.b[0], r.b[1]), pack_f16(r.b[2], r.b[3]));
}

SP_DEVICE void norm(Pairs& r, const Pairs& weight, f32 eps) {
    f32 squares = 0, others = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) squares += r.a[i] * r.a[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) others += r.b[i] * r.b[i];
    squares += others;
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    const f32 scale = 1.0f / sqrtf(squares * (1.0f / HEAD_DIM) + eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) r.a[i] *= scale * weight.a[i], r.b[i] *= scale * weight.b[i];
}

SP_DEVICE Pairs weights_of(const f32* weight, u32 part) {
    const float4 a = reinterpret_cast<const float4*>(weight)[part], b = reinterpret_cast<const float4*>(weight + HALF)[part];
    return {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
}

struct PairAngles {
    f32 sine[4], cosine[4];
};

// The heads of a token: normed and turned where `Turned`, and stored one behind the other.
template <bool Turned>
SP_DEVICE void store_heads(const u16* from, i32 stride, u16* to, int heads, const f32* weight, const PairAngles& angles, f32 eps,
                           u32 lane) {
    const u32 part = lane % LANES;
    const int side = int(lane) / LANES;
    Pairs weights;
    if (NORM && Turned) weights = weights_of(weight, part);
    for (int begin = 0; begin < heads; begin += STEPS * SIDE) {
        PairWords words[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            if (i > 0 && begin + i * SIDE >= heads) break;  // the same in all lanes
            const int head = begin + i * SIDE + side;
            words[i] = load_pairs(from + i64(min(head, heads - 1)) * stride, part);
        }
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            if (i > 0 && begin + i * SIDE >= heads) break;
            const int head = begin + i * SIDE + side;
            Pairs r = pairs_of(words[i]);
            if (NORM && Turned) norm(r, weights, eps);
            if (Turned) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const f32 a = r.a[j], b = r.b[j];
                    r.a[j] = a * angles.cosine[j] - b * angles.sine[j];
                    r.b[j] = a * angles.sine[j] + b * angles.cosine[j];
                }
            }
            if (head < heads) store_pairs(to + i64(head) * HEAD_DIM, r, part);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
prompt_heads(const u16* q, const u16* k, const u16* v, const f32* q_weight, const f32* k_weight, const i64* positions,
             const i64* turns, u16* q_out, u8* k_pages, u8* v_pages, const i32* table, const i32* start, i32 offset,
             i32 tokens, i32 heads, i32 kv_heads, i32 stride, f32 eps, f32 magnitude) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 token = i64(blockIdx.x) * WARPS + warp;
    pdl_launch_dependents();
    pdl_wait();
    if (token >= tokens) return;
    PairAngles angles;
    const i64 position = positions[token];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const i32 fraction = i32(u64(position) * u64(turns[4 * (lane % LANES) + j]) >> 32);
        sincospif(f32(fraction) * 0x1p-31f, angles.sine + j, angles.cosine + j);
        angles.sine[j] *= magnitude, angles.cosine[j] *= magnitude;
    }
    if (heads > 0)
        store_heads<true>(q + token * heads * stride, stride, q_out + token * heads * HEAD_DIM, heads, q_weight, angles, eps, lane);
    const i64 slot = (start ? *start : 0) + offset + token;
    const i64 place = (i64(table[slot / PAGE_TOKENS]) * PAGE_TOKENS + slot % PAGE_TOKENS) * kv_heads * HEAD_DIM;
    const i64 given = token * kv_heads * HEAD_DIM;
    store_heads<true>(k + given, HEAD_DIM, reinterpret_cast<u16*>(k_pages) + place, kv_heads, k_weight, angles, eps, lane);
    store_heads<false>(v + given, HEAD_DIM, reinterpret_cast<u16*>(v_pages) + place, kv_heads, nullptr, angles, eps, lane);
}
