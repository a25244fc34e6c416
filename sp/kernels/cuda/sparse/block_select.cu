// Which blocks of 128 keys each block of 128 queries reads: energies against mean keys, a threshold or the strongest, lists.
//
//   s[i, J] = scale log2(e) q[i] . mean[J] over the rows i of a query block that see J;  M = max s
//   E[J] = sum_i 2^(s[i, J] - M);  J is listed where E[J] >= alpha max E, or among the `least` strongest, or forced, and
//   begins no later than the last row. With share > 0 instead: forced blocks, then the strongest, ceil(share candidates) in all.
//
// RULE 1 and 2 as with share > 0, but so many in all, no fewer than `least` and no more than `most`: 1, ceil(share sqrt(candidates));
// 2, the fewest that hold `share` of the sum of E, which is added up in steps of 2^-32, so that no order of adding matters.
//
// Rows see a block when its last token (late = 1) or its first (late = 0) is not after them. Forced: blocks below `sink`; the
// `window` blocks that end with the one of the first row; those after it; all, for the last `last_n` query blocks. `together`
// query heads have one list: their rows are one set. The maximum of E leaves forced blocks out where `unforced` is set.
//
// Layouts: q f16 (n, heads, HEAD_DIM), the last n of `tokens` tokens; means f16 (kv_heads, ceil(tokens / 128), HEAD_DIM);
//   counts i32 (heads, query blocks), indices i32 (heads, query blocks, width), ascending, `width` at least the blocks.
// Launch: heads / together * query blocks blocks of 32 WARPS threads, longest rows first.
// Needs: 16-byte aligned arrays; 1 <= n <= tokens; scale > 0; `together` 1 or heads / kv_heads; tokens <= 128 MOST_BLOCKS.
// Defines: HEAD_DIM 64, 128, 256; MOST_BLOCKS, a multiple of 64, for which shared memory was sized; RULE, 0 if there is none.
// sm_80 and newer.
//
// Queries are held in registers; mean keys come KEYS at a time through a ring of two tiles. A warp sums against its own running
// maximum, the warps' sums are joined one chunk later, and all are scaled to one maximum at the end: no score leaves the block.
// After Fan et al., "FlashPrefill", 2026.
#include "mma.cuh"
#include "softmax.cuh"
#ifndef RULE
#define RULE 0
#endif
// On an H200 heads of 128 gain by more blocks a multiprocessor, and where the energies of many key blocks leave no room for them
// by larger tiles (results/notes/block-select.md).
constexpr bool MEASURED = HEAD_DIM == 128 && __CUDA_ARCH__ == 900, LONG = MOST_BLOCKS > 2048;
constexpr int D = HEAD_DIM, ROWS = 128, BLOCK = 128, KEYS = MEASURED && LONG ? 64 : 32;  // of a tile
constexpr int SLICES = D > 128 ? 1 : 2, WARPS = ROWS / (16 * SLICES), THREADS = 32 * WARPS;
constexpr int PITCH = 2 * D, TILE = KEYS * PITCH;
constexpr f32 SMALLEST = 1.17549435e-38f;  // energies below count as none
// Blocks a multiprocessor: cards with 100 KiB of shared memory hold two anyway.
constexpr int RESIDENT = MEASURED ? (LONG ? 2 : 4) : D <= 128 && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900) ? 3 : 2;
#include "block_sums.cuh"
#define INFINITY_F __int_as_float(0x7f800000)
struct Energy {
    f32 value, reference;  // of one block: value 2^reference
};

extern __shared__ __align__(512) u8 shared[];  // queries, in their place later the ring | Energy of each block

SP_DEVICE u32 place(u32 row, u32 chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

// Rows apart by `pitch` values to a tile; past the `valid` ones the last again, whose scores are masked. A thread copies one
// chunk of every APART-th row; APART is a multiple of 8, so that its chunks lie at the same place of their rows.
template <int Rows>
SP_DEVICE void load_rows(u32 tile, const u16* source, i32 pitch, i32 valid) {
    constexpr int CHUNKS = D / 8, APART = THREADS / CHUNKS;
    const i32 row = i32(threadIdx.x) / CHUNKS, chunk = i32(threadIdx.x) % CHUNKS;
    source += chunk * 8;
    tile += place(row, chunk);
#pragma unroll
    for (int i = 0; i < Rows; i += APART) cp_async_16(tile + i * PITCH, source + min(row + i, valid - 1) * pitch);
}

// Lanes that differ in `Bit` share out 2 Half values: each keeps half of them, summed over the two.
template <int Half, u32 Bit>
SP_DEVICE void halve(f32 (&v)[8]) {
    const bool upper = threadIdx.x & Bit;
#pragma unroll
    for (int i = 0; i < Half; ++i) {
        const f32 give = upper ? v[i] : v[i + Half], keep = upper ? v[i + Half] : v[i];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, Bit);
    }
}

// Column sums over the warp's rows to `sums`: v[2 j + e] are those of this thread's rows, of column 8 j + 2 (lane % 4) + e.
SP_DEVICE void sum_columns(f32 (&v)[8], f32* sums) {
    const u32 lane = threadIdx.x % 32;
    halve<4, 16>(v), halve<2, 8>(v), halve<1, 4>(v);
    sums[lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2] = v[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
block_select(const u16* q, const u16* means, i32* counts, i32* indices, i32 n, i32 tokens, i32 heads, i32 kv_heads,
             i32 together, i32 width, i32 sink, i32 window, i32 last_n, i32 least, i32 late, i32 unforced, f32 alpha,
             f32 share, f32 scale, i32 most_blocks) {
    __shared__ f32 partial[2][WARPS][KEYS];
    __shared__ f32 references[2][WARPS];
    __shared__ f32 scratch[3 * WARPS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 query_blocks = (n + ROWS - 1) / ROWS, lists = heads / together;
    const i32 block = query_blocks - 1 - i32(blockIdx.x) / lists, first_head = i32(blockIdx.x) % lists * together;
    const i32 rows = min(ROWS, n - ROWS * block), start = tokens - n + ROWS * block;  // position of the first row
    const i32 candidates = (start + rows - 1) / BLOCK + 1;
    const auto list_of = [&](i32 copy) { return i64(first_head + copy) * query_blocks + block; };
    if (block >= query_blocks - last_n) {
        for (i32 copy = 0; copy < together; ++copy) {
            for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) indices[list_of(copy) * width + j] = j;
            if (threadIdx.x == 0) counts[list_of(copy)] = candidates;
        }
        return;
    }
    Energy* energies = reinterpret_cast<Energy*>(shared + ROWS * PITCH);
    const u32 tiles = shared_address(shared);
    const u16* mean_rows = means + i64(first_head / (heads / kv_heads)) * ((tokens + BLOCK - 1) / BLOCK) * D;
    const auto issue = [&](i32 chunk) {
        load_rows<KEYS>(tiles + chunk % 2 * TILE, mean_rows + i64(chunk) * KEYS * D, D, candidates - chunk * KEYS);
        cp_async_commit();
    };
    // Rows of this thread are row and row + 8 of each slice; each sees blocks up to its limit.
    const i32 warp_row = i32(warp) * 16 * SLICES, row = warp_row + i32(lane) / 4;
    const auto limit_of = [&](i32 r) { return r < rows ? (start + r - (late ? BLOCK - 1 : 0)) >> 7 : -1; };
    const i32 warp_limit = min(limit_of(warp_row), limit_of(warp_row + 16 * SLICES - 1));
    for (i32 pass = 0; pass < together; ++pass) {
        __syncthreads();
        load_rows<ROWS>(tiles, q + (i64(block) * ROWS * heads + first_head + pass) * D, heads * D, rows);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        u32 a[SLICES][D / 16][4];
#pragma unroll
        for (int m = 0; m < SLICES; ++m)
#pragma unroll
            for (int k = 0; k < D / 16; ++k)
                ldmatrix_x4(a[m][k], (tiles + place(warp_row + lane % 16, lane / 16) ^ k << 5) + 16 * m * PITCH);
        __syncthreads();
        issue(0);
        // The warps' sums over a chunk -> energies of its blocks, joined with those of earlier passes.
        const auto join = [&](i32 chunk) {
            if (threadIdx.x >= KEYS) return;
            const i32 buffer = chunk % 2;
            f32 reference = references[buffer][0], value = 0;
#pragma unroll
            for (int w = 1; w < WARPS; ++w) reference = fmaxf(reference, references[buffer][w]);
#pragma unroll
            for (int w = 0; w < WARPS; ++w)
                value += partial[buffer][w][threadIdx.x] * exp2_fast(references[buffer][w] - reference);
            Energy& mine = energies[chunk * KEYS + i32(threadIdx.x)];
            if (pass > 0) {
                const f32 larger = fmaxf(reference, mine.reference);
                value = value * exp2_fast(reference - larger) + mine.value * exp2_fast(mine.reference - larger);
                reference = larger;
            }
            mine = {value, reference};
        };
        const auto multiply = [&](f32 (&s)[SLICES][KEYS / 8][4], i32 chunk) {
            const u32 keys = tiles + chunk % 2 * TILE + place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
            for (int m = 0; m < SLICES; ++m)
#pragma unroll
                for (int j = 0; j < KEYS / 8; ++j) s[m][j][0] = s[m][j][1] = s[m][j][2] = s[m][j][3] = 0;
#pragma unroll
            for (int k = 0; k < D / 16; ++k)
#pragma unroll
                for (int j = 0; j < KEYS / 16; ++j) {
                    u32 b[4];
                    ldmatrix_x4(b, (keys ^ k << 5) + j * 16 * PITCH);  // tiles are aligned to a row: chunk 2 k + i of it
#pragma unroll
                    for (int m = 0; m < SLICES; ++m) {
                        mma_f16(s[m][2 * j], a[m][k], b[0], b[1]);
                        mma_f16(s[m][2 * j + 1], a[m][k], b[2], b[3]);
                    }
                }
        };
        f32 reference = NEVER;
        const auto add_up = [&](f32 (&s)[SLICES][KEYS / 8][4], i32 chunk) {
            if (chunk * KEYS + KEYS - 1 > warp_limit) {
                const i32 column = chunk * KEYS + i32(lane) % 4 * 2;
#pragma unroll
                for (int m = 0; m < SLICES; ++m)
#pragma unroll
                    for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            if (column + 8 * j + i % 2 > limit_of(row + 16 * m + i / 2 * 8)) s[m][j][i] = -INFINITY_F;
            }
            f32 most = -INFINITY_F;
#pragma unroll
            for (int m = 0; m < SLICES; ++m)
#pragma unroll
                for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) most = fmaxf(most, s[m][j][i]);
            reference = fmaxf(reference, warp_max(most) * scale);
#pragma unroll
            for (int half = 0; half < KEYS / 32; ++half) {
                f32 sums[8];
#pragma unroll
                for (int j = 0; j < 4; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        f32 sum = 0;
#pragma unroll
                        for (int m = 0; m < SLICES; ++m)
                            sum += exp2_fast(fmaf(s[m][4 * half + j][e], scale, -reference)) +
                                   exp2_fast(fmaf(s[m][4 * half + j][e + 2], scale, -reference));
                        sums[2 * j + e] = sum;
                    }
                sum_columns(sums, partial[chunk % 2][warp] + 32 * half);
            }
            if (lane == 0) references[chunk % 2][warp] = reference;
        };
        const i32 chunks = (candidates + KEYS - 1) / KEYS;
        for (i32 chunk = 0; chunk < chunks; ++chunk) {
            cp_async_wait<0>();
            __syncthreads();
            if (chunk + 1 < chunks) issue(chunk + 1);
            if (chunk > 0) join(chunk - 1);
            f32 s[SLICES][KEYS / 8][4];
            multiply(s, chunk);
            add_up(s, chunk);
        }
        __syncthreads();
        join((candidates - 1) / KEYS);
    }
    __syncthreads();
    // One maximum for all blocks, then the threshold.
    const i32 first_block = start / BLOCK;
    const auto forced = [&](i32 j) { return j < sink || j > first_block - window; };
    f32 top = NEVER;
    for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) top = fmaxf(top, energies[j].reference);
    top = block_max(top, scratch);
    f32 most = 0;
    for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) {
        const f32 value = energies[j].value * exp2_fast(energies[j].reference - top);
        energies[j].value = value;
        if (!unforced || !forced(j)) most = fmaxf(most, value);
    }
    most = block_max(most, scratch);
    const bool ranked = RULE > 0 || share > 0;
    const f32 bound = ranked ? INFINITY_F : alpha > 0 ? fmaxf(alpha * most, SMALLEST) : 0.0f;
    // Bits of the budget-th largest energy, and how many that equal it are within the budget.
    const auto key_of = [&](i32 j) { return ranked && forced(j) ? 0x7f800000 : __float_as_int(energies[j].value); };
#if RULE == 2
    // The weakest of the fewest that hold the share, two bits of its key a round, as below; how many there are then.
    __shared__ u64 sums[3 * WARPS];
    u64 held[1] = {};
    for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) held[0] += in_steps(energies[j].value);
    block_sum(held, sums);
    const u64 wanted = min(u64(f64(held[0]) * f64(share)), held[0]);
    u32 weakest = 0;
    for (i32 shift = 30; shift >= 0; shift -= 2) {
        u64 found[3] = {};
        for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) {
            const u64 own = in_steps(energies[j].value);
#pragma unroll
            for (u32 digit = 1; digit < 4; ++digit)
                if (u32(key_of(j)) >= (weakest | digit << shift)) found[digit - 1] += own;
        }
        block_sum(found, sums);
        weakest |= u32((found[0] >= wanted) + (found[1] >= wanted) + (found[2] >= wanted)) << shift;
    }
    u64 stronger[2] = {};  // what they hold, and how many they are
    for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS)
        if (u32(key_of(j)) > weakest) stronger[0] += in_steps(energies[j].value), ++stronger[1];
    block_sum(stronger, sums);
    const u64 own = weakest < 0x7f800000u ? in_steps(__int_as_float(i32(weakest))) : 0;  // at most the forced are needed
    const i32 holding = own == 0 ? 0 : i32(min(stronger[1] + (wanted - stronger[0] + own - 1) / own, u64(candidates)));
    const i32 budget = min(min(max(holding, least), most_blocks), candidates);
#elif RULE == 1
    const i32 root = i32(fminf(ceilf(__fmul_rn(share, __fsqrt_rn(f32(candidates)))), f32(candidates)));
    const i32 budget = min(min(max(root, least), most_blocks), candidates);
#else
    const i32 budget = min(ranked ? i32(ceilf(__fmul_rn(share, f32(candidates)))) : least, candidates);
#endif
    i32 key = 0x7fffffff, ties = 0;
    if (budget > 0) {
        // Two bits a round: blocks whose key is at least that of digit 1, 2, 3. Keys are not negative.
        u32 found_key = 0;
        for (i32 shift = 30; shift >= 0; shift -= 2) {
            i32 found[3] = {};
            for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) {
                const u32 own = u32(key_of(j));
#pragma unroll
                for (u32 digit = 1; digit < 4; ++digit) found[digit - 1] += own >= (found_key | digit << shift);
            }
            block_sum(found, reinterpret_cast<i32*>(scratch));
            const u32 digit = (found[0] >= budget) + (found[1] >= budget) + (found[2] >= budget);
            found_key |= digit << shift;
        }
        key = i32(found_key);
        i32 above[1] = {};
        for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) above[0] += key_of(j) > key;
        block_sum(above, reinterpret_cast<i32*>(scratch));
        ties = budget - above[0];
    }
    __syncthreads();
    if (warp > 0) return;
    i32 listed = 0, equal = 0;
    for (i32 base = 0; base < candidates; base += 32) {
        const i32 j = base + i32(lane);
        const bool real = j < candidates;
        const i32 own = real ? key_of(j) : -1;
        const u32 before = (1u << lane) - 1, same = __ballot_sync(0xffffffffu, own == key);
        const bool strong = own > key || (own == key && equal + __popc(same & before) < ties);
        const bool keep = real && (forced(j) || energies[j].value >= bound || strong);
        const u32 kept = __ballot_sync(0xffffffffu, keep);
        if (keep)
            for (i32 copy = 0; copy < together; ++copy)
                indices[list_of(copy) * width + listed + __popc(kept & before)] = j;
        listed += __popc(kept), equal += __popc(same);
    }
    if (lane == 0)
        for (i32 copy = 0; copy < together; ++copy) counts[list_of(copy)] = listed;
}
