// Scores of a few query rows against every cached key of a layer, and the maxima and sums of their softmax.
//
//   importance_scores  s[h, i, j] = scale * q[i, h] . k[j, h / group] for j <= min(before + i, tokens - 1), else -inf;
//                      of every split of the keys: the largest s of a row and the sum of 2^(s - largest)
//   importance_norms   splits -> (M, 1 / Z) of a row, so that its softmax is 2^(s - M) / Z
//
// Layouts: q f16 (n, heads, D); pages f16 (pool_pages, 128, kv_heads, D), token j in slot j % 128 of page table[j / 128];
//   scores f32 (heads, n, pitch), pitch = tokens rounded up to 128, -inf past `tokens`; parts float2 (heads, n, splits);
//   norms float2 (heads, n). Slots past `tokens` may hold NaN.
// Launch: importance_scores (splits, kv_heads, ceil(n group / 16)) blocks of 4 warps; importance_norms 4 warps a block, a
//   warp a row. `scale` includes log2(e). 16-byte aligned arrays. sm_80 and newer. Defines: HEAD_DIM 64, 128, 256, 512.
//
// The n * group rows that share a kv head are the 16 rows of mma.m16n8k16, keys its 8 columns. Dims inside a fragment may
// stand in any order as long as both operands agree: lane (g, c) takes dims 8 (4 j + c) .. + 7 of key g as one 16-byte load,
// straight from its page, so a key is read once and needs no shared memory. Sums are taken in a fixed order.
#include "mma.cuh"
#include "softmax.cuh"

constexpr int D = HEAD_DIM, WARPS = 4, PAGE_TOKENS = 128;
constexpr int PART = D == 512 ? 8 : D / 32;  // chunks of a key that are read before any is multiplied: what registers hold

struct Total {
    f32 most, sum;  // largest score, and the sum of 2^(score - most)
};

SP_DEVICE Total merged(const Total& a, const Total& b) {
    const f32 most = fmaxf(a.most, b.most);
    return {most, a.sum * exp2_fast(a.most - most) + b.sum * exp2_fast(b.most - most)};
}

SP_DEVICE Total from_lane(const Total& mine, int offset) {
    return {__shfl_xor_sync(0xffffffffu, mine.most, offset), __shfl_xor_sync(0xffffffffu, mine.sum, offset)};
}

SP_DEVICE uint4 chunk_of(const u16* row, int chunk) { return reinterpret_cast<const uint4*>(row)[chunk]; }

extern "C" __global__ void __launch_bounds__(32 * WARPS)
importance_scores(const u16* q, const u8* k_pages, const i32* table, f32* scores, f32* parts, i32 n, i32 tokens, i32 before,
                  i32 heads, i32 kv_heads, i32 pitch, f32 scale) {
    __shared__ Total totals[WARPS][16];
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), g = lane / 4, c = lane % 4;
    const i32 kv_head = i32(blockIdx.y), group = heads / kv_heads, rows = n * group, splits = i32(gridDim.x);
    const i32 first_row = 16 * i32(blockIdx.z);
    // Row of this kv head -> row of (heads, n).
    const auto place = [&](i32 row) { return i64(kv_head * group + row % group) * n + row / group; };

    u32 a[D / 16][4];
    i32 limit[2];
    f32* to[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = first_row + g + 8 * r;
        const bool exists = row < rows;
        limit[r] = exists ? min(before + row / group, tokens - 1) : -1;
        to[r] = exists ? scores + place(row) * pitch : nullptr;
        const u16* from = q + (exists ? i64(row / group) * heads + kv_head * group + row % group : 0) * D;
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            const uint4 w = exists ? chunk_of(from, 4 * j + c) : make_uint4(0, 0, 0, 0);
            a[2 * j][r] = w.x, a[2 * j][2 + r] = w.y;
            a[2 * j + 1][r] = w.z, a[2 * j + 1][2 + r] = w.w;
        }
    }

    const i32 tiles = pitch / 16, span = (tiles + splits - 1) / splits;
    const i32 begin = i32(blockIdx.x) * span, end = min(begin + span, tiles);
    Total total[2] = {{NEVER, 0}, {NEVER, 0}};
    for (i32 tile = begin + warp; tile < end; tile += WARPS) {
        const i32 key = 16 * tile;
        const i64 token = i64(table[key / PAGE_TOKENS]) * PAGE_TOKENS + key % PAGE_TOKENS;
        const u16* keys = reinterpret_cast<const u16*>(k_pages) + (token * kv_heads + kv_head) * D;
        f32 s[2][4] = {};
#pragma unroll
        for (int first = 0; first < D / 32; first += PART) {
            uint4 b[2][PART];
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int j = 0; j < PART; j++)
                    b[t][j] = chunk_of(keys + i64(8 * t + g) * kv_heads * D, 4 * (first + j) + c);
#pragma unroll
            for (int j = 0; j < PART; j++)
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    mma_f16(s[t], a[2 * (first + j)], b[t][j].x, b[t][j].y);
                    mma_f16(s[t], a[2 * (first + j) + 1], b[t][j].z, b[t][j].w);
                }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 most = total[r].most;
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    f32& value = s[t][2 * r + i];
                    value = key + 8 * t + 2 * c + i <= limit[r] ? value * scale : __int_as_float(0xff800000);
                    most = fmaxf(most, value);
                }
            f32 sum = total[r].sum * exp2_fast(total[r].most - most);
#pragma unroll
            for (int t = 0; t < 2; t++) {
                sum += exp2_fast(s[t][2 * r] - most) + exp2_fast(s[t][2 * r + 1] - most);
                if (to[r]) *reinterpret_cast<float2*>(to[r] + key + 8 * t + 2 * c) = make_float2(s[t][2 * r], s[t][2 * r + 1]);
            }
            total[r] = {most, sum};
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] = merged(total[r], from_lane(total[r], 1));
        total[r] = merged(total[r], from_lane(total[r], 2));
        if (c == 0) totals[warp][g + 8 * r] = total[r];
    }
    __syncthreads();
    const i32 row = first_row + i32(threadIdx.x);
    if (threadIdx.x < 16 && row < rows) {
        Total all = totals[0][threadIdx.x];
#pragma unroll
        for (int w = 1; w < WARPS; w++) all = merged(all, totals[w][threadIdx.x]);
        reinterpret_cast<float2*>(parts)[place(row) * splits + blockIdx.x] = make_float2(all.most, all.sum);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
importance_norms(const f32* parts, f32* norms, i32 rows, i32 splits) {
    const i32 row = i32(blockIdx.x) * WARPS + i32(threadIdx.x / 32), lane = i32(threadIdx.x % 32);
    if (row >= rows) return;
    Total total = {NEVER, 0};
    for (i32 split = lane; split < splits; split += 32) {
        const float2 part = reinterpret_cast<const float2*>(parts)[i64(row) * splits + split];
        total = merged(total, {part.x, part.y});
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total = merged(total, from_lane(total, offset));
    if (lane == 0) reinterpret_cast<float2*>(norms)[row] = make_float2(total.most, 1.0f / total.sum);
}
