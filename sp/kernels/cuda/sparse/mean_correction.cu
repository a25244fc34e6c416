// Adds to sparse attention what the blocks it left out would have given if each held 128 times its mean key and value.
//
//   out[i] <- (e^lse[i] out[i] + sum_J w[i, J] mean_v[J]) / (e^lse[i] + sum_J w[i, J]),  w[i, J] = 128 e^(scale q[i] . mean_k[J])
//   over blocks J that the query block does not list and that all its rows see whole
//
// Layouts: q f16 (n, heads, D), the last n of `tokens` tokens; mean_k, mean_v f16 (kv_heads, ceil(tokens / 128), D); lists as in
//   block_select.cu; lse f32 (heads, n), natural logarithms; out bf16 (n, heads, D), changed in place.
// Launch: heads * ceil(n / 64) blocks of 128 threads, longest rows first; scale includes log2(e).
// Needs: 16-byte aligned arrays; 1 <= n <= tokens; tokens <= 128 MOST_BLOCKS. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; MOST_BLOCKS, a multiple of 64, for which shared memory was sized.
// After Fan et al., "FlashPrefill v2", 2026.
#include "mma.cuh"
#include "softmax.cuh"

constexpr int D = HEAD_DIM, BLOCK = 128, WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS;
constexpr int KEYS = D > 128 ? 32 : 64;  // of a tile
constexpr int PITCH = 2 * D, TILE = KEYS * PITCH;

extern __shared__ __align__(512) u8 shared[];  // queries | tile of keys | tile of values | bit of each listed block

SP_DEVICE u32 place(u32 row, u32 chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

// Rows apart by `pitch` values to a tile; past the `valid` ones the last again.
template <int Rows>
SP_DEVICE void load_rows(u32 tile, const u16* source, i32 pitch, i32 valid) {
    constexpr int CHUNKS = D / 8, APART = THREADS / CHUNKS;
    const i32 row = i32(threadIdx.x) / CHUNKS, chunk = i32(threadIdx.x) % CHUNKS;
#pragma unroll
    for (int i = 0; i < Rows; i += APART)
        cp_async_16(tile + place(row + i, chunk), source + chunk * 8 + min(row + i, valid - 1) * pitch);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
mean_correction(const u16* q, const u16* mean_k, const u16* mean_v, const i32* counts, const i32* indices, const f32* lse,
                u16* out, i32 n, i32 tokens, i32 heads, i32 kv_heads, i32 width, f32 scale) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 tiles = (n + ROWS - 1) / ROWS, head = i32(blockIdx.x) % heads;
    const i32 first = (tiles - 1 - i32(blockIdx.x) / heads) * ROWS, block = first / BLOCK;
    const i32 whole = (tokens - n + block * BLOCK + 1) / BLOCK;  // blocks that end no later than the query block's first row
    const i32 blocks = (tokens + BLOCK - 1) / BLOCK;
    const i64 list = i64(head) * ((n + BLOCK - 1) / BLOCK) + block;
    u32* listed = reinterpret_cast<u32*>(shared + ROWS * PITCH + 2 * TILE);
    for (i32 i = i32(threadIdx.x); i <= whole / 32; i += THREADS) listed[i] = 0;
    __syncthreads();
    const i32 count = counts[list];
    for (i32 i = i32(threadIdx.x); i < count; i += THREADS) {
        const i32 j = indices[list * width + i];
        if (j < whole) atomicOr(listed + j / 32, 1u << j % 32);
    }

    const u32 queries = shared_address(shared), keys = queries + ROWS * PITCH, values = keys + TILE;
    load_rows<ROWS>(queries, q + (i64(first) * heads + head) * D, heads * D, n - first);
    cp_async_commit();
    const i64 head_rows = i64(head / (heads / kv_heads)) * blocks;
    __syncthreads();  // all bits are set

    f32 o[D / 8][4] = {};
    f32 reference[2] = {NEVER, NEVER}, total[2] = {0, 0};
    bool any = false;
    for (i32 base = 0; base < whole; base += KEYS) {
        u32 todo[2] = {0, 0};
        bool some = false;
#pragma unroll
        for (int half = 0; half < KEYS / 32; ++half) {
            const i32 left = whole - base - 32 * half;
            if (left > 0) todo[half] = ~listed[base / 32 + half] & (left >= 32 ? ~0u : (1u << left) - 1);
            some |= todo[half] != 0;
        }
        if (!some) continue;
        any = true;
        __syncthreads();
        load_rows<KEYS>(keys, mean_k + (head_rows + base) * D, D, whole - base);
        load_rows<KEYS>(values, mean_v + (head_rows + base) * D, D, whole - base);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        f32 s[KEYS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            u32 a[4];
            ldmatrix_x4(a, queries + place(warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j) {
                u32 b[4];
                ldmatrix_x4(b, keys + place(16 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
                mma_f16(s[2 * j], a, b[0], b[1]);
                mma_f16(s[2 * j + 1], a, b[2], b[3]);
            }
        }
        f32 most[2] = {NEVER, NEVER};
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 column = 8 * (j % 4) + 2 * (lane % 4) + i % 2;
                // 7 is the logarithm of the tokens of a block.
                s[j][i] = todo[j / 4] >> column & 1 ? fmaf(s[j][i], scale, 7.0f) : __int_as_float(0xff800000);
                most[i / 2] = fmaxf(most[i / 2], s[j][i]);
            }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            most[e] = fmaxf(most[e], __shfl_xor_sync(0xffffffffu, most[e], 1));
            most[e] = fmaxf(most[e], __shfl_xor_sync(0xffffffffu, most[e], 2));
            const f32 now = fmaxf(reference[e], most[e]), keep = exp2_fast(reference[e] - now);
            reference[e] = now, total[e] *= keep;
#pragma unroll
            for (int j = 0; j < D / 8; ++j) o[j][2 * e] *= keep, o[j][2 * e + 1] *= keep;
        }
        u32 p[KEYS / 16][4];
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[j][i] = exp2_fast(s[j][i] - reference[i / 2]), total[i / 2] += s[j][i];
            p[j / 2][j % 2 * 2] = pack_f16(s[j][0], s[j][1]);
            p[j / 2][j % 2 * 2 + 1] = pack_f16(s[j][2], s[j][3]);
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
            for (int j = 0; j < D / 16; ++j) {
                u32 b[4];
                ldmatrix_x4_trans(b, values + place(16 * k + lane % 16, 2 * j + lane / 16));
                mma_f16(o[2 * j], p[k], b[0], b[1]);
                mma_f16(o[2 * j + 1], p[k], b[2], b[3]);
            }
    }
    cp_async_wait<0>();
    if (!any) return;

#pragma unroll
    for (int e = 0; e < 2; ++e) {
        f32 sum = total[e];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const i32 row = first + i32(warp) * 16 + i32(lane) / 4 + 8 * e;
        if (row >= n) continue;
        const f32 own = lse[i64(head) * n + row] * 1.4426950408889634f, larger = fmaxf(own, reference[e]);
        const f32 before = exp2_fast(own - larger), added = exp2_fast(reference[e] - larger);
        const f32 inverse = 1.0f / (before + added * sum);
        u32* pairs = reinterpret_cast<u32*>(out + (i64(row) * heads + head) * D);
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            const u32 pair = pairs[4 * j + lane % 4];
            pairs[4 * j + lane % 4] = pack_bf16((low_bf16(pair) * before + o[j][2 * e] * added) * inverse,
                                                (high_bf16(pair) * before + o[j][2 * e + 1] * added) * inverse);
        }
    }
}
