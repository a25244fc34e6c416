// Selects key blocks for a block of queries by their energies: the second half of block_select.cu and
// block_select_sm90.cu, which document the rule.
#pragma once
#include "block_energies.cuh"
#include "block_sums.cuh"
constexpr f32 SMALLEST = 1.17549435e-38f;  // energies below count as none

// One list, for `copies` query heads.
struct List {
    i32 *counts, *indices, copies;
    i64 apart;  // lists of two neighbouring heads, in counts
    i32 width;

    SP_DEVICE i32* of(i32 copy) const { return indices + copy * apart * width; }
    SP_DEVICE void count(i32 listed) const {
        for (i32 copy = 0; copy < copies; ++copy) counts[copy * apart] = listed;
    }
};

// The list of one block of queries, of the first head of `together`.
SP_DEVICE List list_at(i32* counts, i32* indices, i32 width, i32 query_blocks, i32 block, i32 head, i32 together) {
    const i64 at = i64(head) * query_blocks + block;
    return {counts + at, indices + at * width, together, query_blocks, width};
}

SP_DEVICE void list_all(const List& list, i32 candidates) {
    for (i32 copy = 0; copy < list.copies; ++copy)
        for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) list.of(copy)[j] = j;
    if (threadIdx.x == 0) list.count(candidates);
}

struct Choice {
    i32 sink, window, least, unforced, most_blocks;
    f32 alpha, share;
};

SP_DEVICE void choose(const Choice& given, f32* values, const f32* peaks, i32 candidates, i32 first_block, const List& list) {
    __shared__ f32 scratch[3 * WARPS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto forced = [&](i32 j) { return j < given.sink || j > first_block - given.window; };
    // One maximum for all blocks, then the threshold.
    f32 top = NEVER;
    for (i32 j = i32(threadIdx.x); j < (candidates + 31) / 32; j += THREADS) top = fmaxf(top, peaks[j]);
    top = block_max(top, scratch);
    f32 most = 0;
    for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) {
        const f32 value = values[j] * exp2_fast(peaks[j / 32] - top);
        values[j] = value;
        if (!given.unforced || !forced(j)) most = fmaxf(most, value);
    }
    most = block_max(most, scratch);
    const f32 share = given.share;
    const bool ranked = RULE > 0 || share > 0;
    const f32 bound = ranked ? INFINITY_F : given.alpha > 0 ? fmaxf(given.alpha * most, SMALLEST) : 0.0f;
    // Bits of the budget-th largest energy, and how many that equal it are within the budget.
    const auto key_of = [&](i32 j) { return ranked && forced(j) ? 0x7f800000 : __float_as_int(values[j]); };
#if RULE == 2
    // The weakest of the fewest that hold the share, two bits of its key a round, as below; how many there are then.
    __shared__ u64 sums[3 * WARPS];
    u64 held[1] = {};
    for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) held[0] += in_steps(values[j]);
    block_sum(held, sums);
    const u64 wanted = min(u64(f64(held[0]) * f64(share)), held[0]);
    u32 weakest = 0;
    for (i32 shift = 30; shift >= 0; shift -= 2) {
        u64 found[3] = {};
        for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) {
            const u64 own = in_steps(values[j]);
#pragma unroll
            for (u32 digit = 1; digit < 4; ++digit)
                if (u32(key_of(j)) >= (weakest | digit << shift)) found[digit - 1] += own;
        }
        block_sum(found, sums);
        weakest |= u32((found[0] >= wanted) + (found[1] >= wanted) + (found[2] >= wanted)) << shift;
    }
    u64 stronger[2] = {};  // what they hold, and how many they are
    for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS)
        if (u32(key_of(j)) > weakest) stronger[0] += in_steps(values[j]), ++stronger[1];
    block_sum(stronger, sums);
    const u64 own = weakest < 0x7f800000u ? in_steps(__int_as_float(i32(weakest))) : 0;  // at most the forced are needed
    const i32 holding = own == 0 ? 0 : i32(min(stronger[1] + (wanted - stronger[0] + own - 1) / own, u64(candidates)));
    const i32 budget = min(min(max(holding, given.least), given.most_blocks), candidates);
#elif RULE == 1
    const i32 root = i32(fminf(ceilf(__fmul_rn(share, __fsqrt_rn(f32(candidates)))), f32(candidates)));
    const i32 budget = min(min(max(root, given.least), given.most_blocks), candidates);
#else
    const i32 budget = min(ranked ? i32(ceilf(__fmul_rn(share, f32(candidates)))) : given.least, candidates);
#endif
    i32 key = 0x7fffffff, ties = 0;
    if (budget > 0) {
        // Two bits a round: blocks whose key is at least that of digit 1, 2, 3. Keys are not negative. It ends as soon as no more
        // than the budget are left.
        u32 found_key = 0;
        i32 reach = candidates;  // blocks whose key is at least found_key
        for (i32 shift = 30; shift >= 0 && reach > budget; shift -= 2) {
            i32 found[3] = {};
            for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) {
                const u32 own = u32(key_of(j));
#pragma unroll
                for (u32 digit = 1; digit < 4; ++digit) found[digit - 1] += own >= (found_key | digit << shift);
            }
            block_sum(found, reinterpret_cast<i32*>(scratch));
            u32 digit = 0;
#pragma unroll
            for (u32 i = 0; i < 3; ++i)
                if (found[i] >= budget) digit = i + 1, reach = found[i];
            found_key |= digit << shift;
        }
        key = i32(found_key) - 1;  // all from found_key on, or of those that equal it as many as the budget has room for
        if (reach > budget) {
            key = i32(found_key);
            i32 above[1] = {};
            for (i32 j = i32(threadIdx.x); j < candidates; j += THREADS) above[0] += key_of(j) > key;
            block_sum(above, reinterpret_cast<i32*>(scratch));
            ties = budget - above[0];
        }
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
        const bool keep = real && (forced(j) || values[j] >= bound || strong);
        const u32 kept = __ballot_sync(0xffffffffu, keep);
        if (keep)
            for (i32 copy = 0; copy < list.copies; ++copy) list.of(copy)[listed + __popc(kept & before)] = j;
        listed += __popc(kept), equal += __popc(same);
    }
    if (lane == 0) list.count(listed);
}
