// Choosing the next token from logits on the device: argmax, and sampling under temperature, top-k and top-p.
//
// argmax: the first of the largest of each row. token[r] = min { i : logits[r, i] = max }.
//   logits f32 (rows, vocab); best u64 (rows, blocks), scratch; arrivals u32 (rows), zero before and after; token i32 (rows);
//   bins u64 (2 * BINS), null or made zero for sample_bins. Grid (blocks, rows), 256 threads; bound by memory. Words of 16 bytes,
//   four of them asked for together; a row may begin between two.
//
// sample_bins, then sample_token: rank tokens by (logit, then lowest id); keep the first top_k (0: all); of these the
//   shortest prefix whose weight reaches top_p of theirs; draw by weight = floor(2^40 exp((logit - max) / temperature)).
//   u = the 64 bits of Philox4x32-10 with key `seed` at counter `step`; the token drawn is the first kept one in id
//   order at which the running sum exceeds floor(u total / 2^64). seed, step i64 (1); step is moved on by one.
//   sample_bins: how many tokens, and what weight, lie in each step of (max - logit) / temperature; grid (blocks), 256.
//   sample_token: candidates are the tokens of all bins up to the one where top_k, or else top_p, must end; the last block to
//   arrive ranks them by a bitonic sort in shared memory. Without top-k and top-p every block sums a slice instead, and
//   the last one walks the slice of the draw. More than CAPACITY candidates (a flat distribution) are ranked by their
//   bits instead, 8 at a time, by one block: right, but slow. candidates u64 (CAPACITY), slices u64 (blocks),
//   counters u32 (2), zero before and after. Grid (blocks), 1024 threads.
//
// Every sum is an integer, so the outcome does not depend on the order of additions. No host synchronisation: all may be
// captured in a CUDA graph. NaN logits lose to numbers. sm_80+.
// Philox: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011. top-p: Holtzman et al. 2020.
#include "pdl.cuh"
#include "ranking.cuh"

constexpr i32 AT_ONCE = 4;  // words that a thread of argmax asks for together

extern "C" __global__ void __launch_bounds__(256)
    argmax(const f32* logits, u64* best, u32* arrivals, i32* token, u64* bins, i32 vocab) {
    __shared__ u64 found[8];
    __shared__ bool last;
    pdl_launch_dependents();
    pdl_wait();
    if (bins)
        for (i32 i = blockIdx.x * 256 + threadIdx.x; i < 2 * BINS; i += gridDim.x * 256) bins[i] = 0;
    logits += i64(blockIdx.y) * vocab, best += blockIdx.y * gridDim.x, arrivals += blockIdx.y, token += blockIdx.y;
    u64 own = 0;
    const auto meet = [&](f32 value, i32 i) { own = larger(own, u64(ordered(value)) << 32 | u32(~i)); };
    const i32 begin = min(vocab, i32(-(reinterpret_cast<u64>(logits) / 4) % 4)), words = (vocab - begin) / 4;
    const i32 apart = gridDim.x * 256;
    for (i32 first = blockIdx.x * 256 + threadIdx.x; first < words; first += AT_ONCE * apart) {
        float4 four[AT_ONCE];
#pragma unroll
        for (i32 j = 0; j < AT_ONCE; j++)
            four[j] = __ldcs(reinterpret_cast<const float4*>(logits + begin) + min(first + j * apart, words - 1));
#pragma unroll
        for (i32 j = 0; j < AT_ONCE; j++) {
            const i32 i = begin + 4 * min(first + j * apart, words - 1);
            meet(four[j].x, i), meet(four[j].y, i + 1), meet(four[j].z, i + 2), meet(four[j].w, i + 3);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < 8) {  // the ends of the row, some of them again
        const i32 i = threadIdx.x < 4 ? threadIdx.x : vocab - 8 + threadIdx.x;
        if (i >= 0 && i < vocab) meet(logits[i], i);
    }
    own = warp_largest(own);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 8; ++i) own = larger(own, found[i]);
        best[blockIdx.x] = own;
        __threadfence();
        last = atomicInc(arrivals, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x >= 32) return;
    __threadfence();
    own = 0;
    for (i32 i = threadIdx.x; i < gridDim.x; i += 32) own = larger(own, reinterpret_cast<volatile u64*>(best)[i]);
    own = warp_largest(own);
    if (threadIdx.x == 0) token[0] = i32(~u32(own));
}

extern "C" __global__ void __launch_bounds__(256)
    sample_bins(const f32* __restrict__ logits, const i32* __restrict__ best, u64* bins, i32 vocab, f32 temperature) {
    __shared__ u64 weights[BINS];
    __shared__ u32 counts[BINS];
    for (i32 i = threadIdx.x; i < BINS; i += 256) weights[i] = 0, counts[i] = 0;
    const Scale scale = {ordered(logits[best[0]]), 1.0f / temperature};
    __syncthreads();
    for (i32 i = blockIdx.x * 256 + threadIdx.x; i < vocab; i += gridDim.x * 256) {
        const u32 key = ordered(logits[i]);
        const i32 bin = scale.bin(key);
        if (bin == BINS - 1) continue;  // the rest, whose weight is zero
        atomicAdd(counts + bin, 1u);
        atomicAdd(weights + bin, scale.weight(key));
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < BINS - 1; i += 256)
        if (counts[i]) atomicAdd(bins + i, u64(counts[i])), atomicAdd(bins + BINS + i, weights[i]);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sample_token(const f32* __restrict__ logits, const i32* __restrict__ best, const u64* __restrict__ bins,
                 u64* candidates, u64* slices, u32* counters, const i64* __restrict__ seed, i64* step, i32* token,
                 i32 vocab, f32 temperature, i32 top_k, f32 top_p) {
    extern __shared__ u64 ranked[];  // (CAPACITY)
    __shared__ u64 sums[BLOCK / 32], edge[2];
    __shared__ u32 flag[2];
    const Scale scale = {ordered(logits[best[0]]), 1.0f / temperature};
    const bool all = top_k <= 0 && top_p >= 1.0f;
    const u64 most = top_k > 0 ? u64(min(top_k, vocab)) : u64(vocab);
    const i32 thread = threadIdx.x, each = (vocab + gridDim.x - 1) / gridDim.x;
    const i32 begin = min(vocab, i32(blockIdx.x) * each), end = min(vocab, begin + each);
    u64 before;

    u64 count = u64(vocab);
    if (all) {
        u64 own = 0;
        for (i32 i = begin + thread; i < end; i += BLOCK) own += scale.weight(ordered(logits[i]));
        own = block_scan(own, before, sums);
        if (thread == 0) slices[blockIdx.x] = own;
    } else {
        u64 weight_before;
        const u64 weight = bins[BINS + thread];
        const u64 others = block_scan(thread < BINS - 1 ? bins[thread] : 0, before, sums);
        const u64 own = thread < BINS - 1 ? bins[thread] : u64(vocab) - others;
        block_scan(weight, weight_before, sums);
        if (before < most && most <= before + own) flag[0] = thread, edge[0] = weight_before + weight;
        __syncthreads();
        if (top_k <= 0) {  // then edge[0] is the weight of all, and top_p can end earlier
            const u64 wanted = share_of(top_p, edge[0]);
            __syncthreads();
            if (weight_before < wanted && wanted <= weight_before + weight) flag[0] = thread;
            __syncthreads();
        }
        const i32 cut = i32(flag[0]);
        if (thread == cut) edge[1] = before + own;
        __syncthreads();
        count = edge[1];
        if (count <= CAPACITY) {
            for (i32 i = begin + thread; i < end; i += BLOCK) {
                const u32 key = ordered(logits[i]);
                if (scale.bin(key) <= cut) candidates[atomicAdd(counters + 1, 1u)] = u64(key) << 32 | u32(~i);
            }
        }
    }
    __syncthreads();
    if (thread == 0) {
        __threadfence();
        flag[1] = atomicInc(counters, gridDim.x - 1);
    }
    __syncthreads();
    if (flag[1] != gridDim.x - 1) return;
    __threadfence();

    const u64 random = philox(u64(seed[0]), u64(step[0]));
    if (all) {
        const u64 own = thread < gridDim.x ? reinterpret_cast<volatile u64*>(slices)[thread] : 0;
        const u64 target = __umul64hi(random, block_scan(own, before, sums));
        __syncthreads();
        if (thread < gridDim.x && before <= target && target < before + own) flag[0] = thread, edge[0] = before;
        __syncthreads();
        const i32 from = min(vocab, i32(flag[0]) * each);
        draw(logits, from, min(vocab, from + each), Kept{0u, u64(vocab)}, scale, target - edge[0], token, sums);
    } else if (count <= CAPACITY) {
        i32 size = 1;
        while (size < i32(count)) size *= 2;
        for (i32 i = thread; i < size; i += BLOCK)
            ranked[i] = i < i32(count) ? reinterpret_cast<volatile u64*>(candidates)[i] : 0;
        sort_down(ranked, size);
        i32 kept = i32(count < most ? count : most);
        if (top_p < 1.0f) {
            const u64 total = top_k > 0 ? weight_range(ranked, kept, 32, scale, ~0ull, flag, sums) : edge[0];
            weight_range(ranked, kept, 32, scale, share_of(top_p, total) - 1, flag, sums);
            kept = i32(flag[0]) + 1;
        }
        __syncthreads();
        for (i32 i = thread; i < size; i += BLOCK)  // by id from now on; the dropped become padding
            ranked[i] = i < kept ? ranked[i] << 32 | ranked[i] >> 32 : 0;
        sort_down(ranked, size);
        const u64 total = weight_range(ranked, kept, 0, scale, ~0ull, flag, sums);
        weight_range(ranked, kept, 0, scale, __umul64hi(random, total), flag, sums);
        if (thread == 0) token[0] = i32(~u32(ranked[flag[0]] >> 32)), counters[1] = 0;
    } else {
        Kept set = {0u, u64(vocab)};
        if (top_k > 0) set = shortest<false>(logits, vocab, most, scale, ranked, edge);
        u64 total = draw(logits, 0, vocab, set, scale, ~0ull, token, sums);
        if (top_p < 1.0f) {
            const Kept nucleus = shortest<true>(logits, vocab, share_of(top_p, total), scale, ranked, edge);
            if (nucleus.key > set.key || (nucleus.key == set.key && nucleus.ties < set.ties)) set = nucleus;
            total = draw(logits, 0, vocab, set, scale, ~0ull, token, sums);
        }
        draw(logits, 0, vocab, set, scale, __umul64hi(random, total), token, sums);
    }
    if (thread == 0) step[0] += 1;
}
