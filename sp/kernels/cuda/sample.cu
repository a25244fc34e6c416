// Choosing the next token from logits on the device: argmax, and sampling under temperature, top-k and top-p.
//
// argmax: the first of the largest. token[0] = min { i : logits[i] = max }.
//   logits f32 (vocab); best u64 (blocks), scratch; arrivals u32 (1), zero before and after; token i32 (1)
//   Grid (blocks), 256 threads. Each block packs (ordered bits of the logit, ~id) into a u64 and takes the maximum; the
//   last block to arrive takes the maximum of those.
//
// sample_token: rank tokens by (logit, then lowest id); keep the first top_k (0: all); of these the shortest prefix
//   whose weight reaches top_p of theirs; draw by weight = floor(2^40 exp((logit - max) / temperature)).
//   seed, step i64 (1): u = the 64 bits of Philox4x32-10 with key `seed` at counter `step`; the token drawn is the first
//   in id order whose running sum exceeds floor(u total / 2^64). step is moved on by one. best i32 (1): the argmax.
//   One block of 1024 threads. The rank of the last kept token is found by its bits, 8 at a time, from counts and sums
//   of weights by digit. Every sum is an integer, so the outcome does not depend on the order of additions.
//
// Neither synchronises with the host: both may be captured in a CUDA graph. NaN logits lose to numbers. sm_80+.
// Philox: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011. top-p: Holtzman et al. 2020.
#include "mma.cuh"

#define BLOCK 1024
#define RUN 8

// Order-preserving bits of a float; NaN below everything.
SP_DEVICE u32 ordered(f32 value) {
    if (value != value) return 0u;
    const u32 bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

SP_DEVICE f32 from_ordered(u32 key) {
    return key == 0u ? __uint_as_float(0xff800000u)
                     : __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

SP_DEVICE u64 larger(u64 left, u64 right) { return left > right ? left : right; }

SP_DEVICE u64 warp_largest(u64 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(~0u, value, offset));
    return value;
}

extern "C" __global__ void __launch_bounds__(256)
    argmax(const f32* __restrict__ logits, u64* best, u32* arrivals, i32* token, i32 vocab) {
    __shared__ u64 found[8];
    __shared__ bool last;
    u64 own = 0;
    for (i32 i = blockIdx.x * 256 + threadIdx.x; i < vocab; i += gridDim.x * 256)
        own = larger(own, u64(ordered(logits[i])) << 32 | u32(~i));
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

SP_DEVICE u64 philox(u64 seed, u64 step) {
    u32 c0 = u32(step), c1 = u32(step >> 32), c2 = 0, c3 = 0, k0 = u32(seed), k1 = u32(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 left = u64(0xD2511F53u) * c0, right = u64(0xCD9E8D57u) * c2;
        c0 = u32(right >> 32) ^ c1 ^ k0, c1 = u32(right);
        c2 = u32(left >> 32) ^ c3 ^ k1, c3 = u32(left);
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return u64(c1) << 32 | c0;
}

// A set of tokens: keys above `key`, and of those equal to it the first `ties` by id.
struct Kept {
    u32 key;
    u64 ties;
};

SP_DEVICE u64 weight_of(u32 key, f32 most, f32 inverse) {
    return u64(expf((from_ordered(key) - most) * inverse) * 1099511627776.0f);
}

// The shortest prefix of the ranking whose count (ByWeight: summed weight) reaches `target` > 0. The set below `limit`
// need not be excluded: a target within the set is reached inside it.
template <bool ByWeight>
SP_DEVICE Kept shortest(const f32* logits, i32 vocab, u64 target, f32 most, f32 inverse, u64* bins, u64* shared_pair) {
    u32 prefix = 0;
    u64 above = 0;  // count or weight of keys over every key with this prefix
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) bins[threadIdx.x] = 0;
        __syncthreads();
        for (i32 i = threadIdx.x; i < vocab; i += BLOCK) {
            const u32 key = ordered(logits[i]);
            if (shift == 24 || key >> (shift + 8) == prefix)
                atomicAdd(bins + (key >> shift & 255u), ByWeight ? weight_of(key, most, inverse) : u64(1));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            i32 digit = 255;
            while (digit > 0 && above + bins[digit] < target) above += bins[digit--];
            shared_pair[0] = digit, shared_pair[1] = above;
        }
        __syncthreads();
        prefix = prefix << 8 | u32(shared_pair[0]);
        above = shared_pair[1];
        __syncthreads();
    }
    const u64 each = ByWeight ? weight_of(prefix, most, inverse) : u64(1);
    return {prefix, each ? (target - above + each - 1) / each : u64(vocab)};
}

// Sum over the block of `value`, and into `before` the sum over the threads before this one.
SP_DEVICE u64 block_scan(u64 value, u64& before, u64* sums) {
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 running = value;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const u64 other = __shfl_up_sync(~0u, running, offset);
        if (lane >= offset) running += other;
    }
    if (lane == 31) sums[warp] = running;
    __syncthreads();
    u64 total = 0, earlier = 0;
    for (i32 i = 0; i < BLOCK / 32; ++i) {
        if (i == warp) earlier = total;
        total += sums[i];
    }
    __syncthreads();
    before = earlier + running - value;
    return total;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sample_token(const f32* __restrict__ logits, const i32* __restrict__ best, const i64* __restrict__ seed, i64* step,
                 i32* token, i32 vocab, f32 temperature, i32 top_k, f32 top_p) {
    __shared__ u64 bins[256], sums[BLOCK / 32], pair[2];
    const u32 top = ordered(logits[best[0]]);
    const f32 most = from_ordered(top), inverse = 1.0f / temperature;
    Kept kept = {0u, u64(vocab)};
    if (top_k > 0 && top_k < vocab) kept = shortest<false>(logits, vocab, u64(top_k), most, inverse, bins, pair);

    // Weight of the kept set; with `draw` also the token of `target`. A thread takes RUN neighbours of each tile.
    auto walk = [&](Kept set, u64 target, bool draw) -> u64 {
        const u64 each = weight_of(set.key, most, inverse);
        u64 total = 0, ties = 0;
        for (i32 tile = 0; tile < vocab; tile += RUN * BLOCK) {
            const i32 first = tile + i32(threadIdx.x) * RUN;
            u32 keys[RUN];
            u64 equals = 0, own = 0, rank, before;
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                keys[j] = first + j < vocab ? ordered(logits[first + j]) : 0u;
                equals += first + j < vocab && keys[j] == set.key;
            }
            const u64 tile_ties = block_scan(equals, rank, sums);
            rank += ties;
            u64 weights[RUN];
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                const bool equal = first + j < vocab && keys[j] == set.key;
                weights[j] = keys[j] > set.key ? weight_of(keys[j], most, inverse) : equal && rank < set.ties ? each : 0;
                rank += equal;
                own += weights[j];
            }
            const u64 sum = block_scan(own, before, sums);
            before += total;
            if (draw && before <= target && target < before + own) {
#pragma unroll
                for (int j = 0; j < RUN; ++j) {
                    if (before <= target && target < before + weights[j]) token[0] = first + j;
                    before += weights[j];
                }
            }
            total += sum, ties += tile_ties;
            if (draw && target < total) break;
        }
        return total;
    };
    u64 total = walk(kept, 0, false);
    if (top_p < 1.0f) {
        const u64 wanted = u64(f64(top_p) * f64(total));
        const Kept nucleus = shortest<true>(logits, vocab, wanted ? wanted : 1, most, inverse, bins, pair);
        if (nucleus.key > kept.key || (nucleus.key == kept.key && nucleus.ties < kept.ties)) kept = nucleus;
        total = walk(kept, 0, false);
    }
    const u64 target = __umul64hi(philox(u64(seed[0]), u64(step[0])), total);
    walk(kept, target, true);
    __syncthreads();
    if (threadIdx.x == 0) step[0] += 1;
}
