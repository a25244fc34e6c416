// Building blocks of sample.cu: order-preserving bits, integer weights, block-wide scan and sort of u64, Philox.
#pragma once
#include "mma.cuh"

#define BLOCK 1024      // threads of the block-wide functions
#define BINS 1024       // one a thread
#define PER_UNIT 36.0f  // bins to a unit of (max - logit) / temperature; weights are zero from 27.8 on
#define CAPACITY 8192
#define RUN 4

// Order-preserving bits of a float; NaN below everything.
SP_DEVICE u32 ordered(f32 value) {
    if (value != value) return 0u;
    const u32 bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

SP_DEVICE f32 from_ordered(u32 key) {
    return key == 0u ? __uint_as_float(0xff800000u) : __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

struct Scale {
    u32 top;  // key of the largest logit
    f32 inverse;

    SP_DEVICE f32 below(u32 key) const {
        return key == top ? 0.0f : (from_ordered(key) - from_ordered(top)) * inverse;
    }
    SP_DEVICE u64 weight(u32 key) const { return u64(expf(below(key)) * 1099511627776.0f); }
    SP_DEVICE i32 bin(u32 key) const { return min(i32(-below(key) * PER_UNIT), BINS - 1); }
};

SP_DEVICE u64 larger(u64 left, u64 right) { return left > right ? left : right; }

SP_DEVICE u64 warp_largest(u64 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(~0u, value, offset));
    return value;
}

// The part `share` of a sum of weights, at least one unit.
SP_DEVICE u64 share_of(f32 share, u64 total) {
    const u64 part = u64(f64(share) * f64(total));
    return part ? part : 1;
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

// Sum over the block of `value`, and into `before` the sum over the threads before this one. sums: (BLOCK / 32) shared.
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

// Bitonic sort of a power of two of values in shared memory, largest first.
SP_DEVICE void sort_down(u64* values, i32 size) {
    for (i32 width = 2; width <= size; width *= 2)
        for (i32 gap = width / 2; gap > 0; gap /= 2) {
            __syncthreads();
            for (i32 i = threadIdx.x; i < size / 2; i += BLOCK) {
                const i32 low = i / gap * 2 * gap + i % gap, high = low + gap;
                const u64 first = values[low], second = values[high];
                if ((first < second) == ((low & width) == 0)) values[low] = second, values[high] = first;
            }
        }
    __syncthreads();
}

// Sum of the weights of values[0 .. count), their keys at bit `shift`; flag[0] becomes the first place at which the
// running sum exceeds `target`.
SP_DEVICE u64 weight_range(const u64* values, i32 count, i32 shift, const Scale& scale, u64 target, u32* flag,
                           u64* sums) {
    u64 total = 0;
    for (i32 tile = 0; tile < count; tile += BLOCK) {
        const i32 i = tile + i32(threadIdx.x);
        const u64 own = i < count ? scale.weight(u32(values[i] >> shift)) : 0;
        u64 before;
        const u64 sum = block_scan(own, before, sums);
        if (total + before <= target && target < total + before + own) flag[0] = u32(i);
        total += sum;
    }
    __syncthreads();
    return total;
}

// A set of tokens: keys above `key`, and of those equal to it the first `ties` by id.
struct Kept {
    u32 key;
    u64 ties;
};

// Weight of the kept tokens in [from, to), and into `token` the first at which the running sum exceeds `target`.
// Not inlined: its four calls in a block of 1024 threads would not fit the registers.
static __device__ __noinline__ u64 draw(const f32* logits, i32 from, i32 to, Kept set, Scale scale, u64 target,
                                        i32* token, u64* sums) {
    const u64 each = scale.weight(set.key);
    u64 total = 0, ties = 0;
    for (i32 tile = from; tile < to && total <= target; tile += RUN * BLOCK) {
        const i32 first = tile + i32(threadIdx.x) * RUN;
        u32 keys[RUN];
        u64 equals = 0, own = 0, rank, before;
#pragma unroll
        for (int j = 0; j < RUN; ++j) {
            keys[j] = first + j < to ? ordered(logits[first + j]) : 0u;
            equals += first + j < to && keys[j] == set.key;
        }
        const u64 tile_ties = block_scan(equals, rank, sums);
        rank += ties;
        const u64 spare = set.ties > rank ? set.ties - rank : 0;  // how many of this thread's equals are kept
        auto add = [&](int j, u64& sum, u64& left) {
            if (keys[j] > set.key) sum += scale.weight(keys[j]);
            if (keys[j] == set.key && first + j < to && left > 0) sum += each, --left;
        };
        u64 left = spare;
#pragma unroll
        for (int j = 0; j < RUN; ++j) add(j, own, left);
        const u64 sum = block_scan(own, before, sums);
        before += total;
        if (before <= target && target < before + own) {
            u64 running = before;
            left = spare;
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                const bool short_of = running <= target;
                add(j, running, left);
                if (short_of && target < running) token[0] = first + j;
            }
        }
        total += sum, ties += tile_ties;
    }
    return total;
}

// The shortest prefix of the ranking whose count (ByWeight: summed weight) reaches `target` > 0, found from the bits of
// its last key, 8 at a time. bins: (256) shared; pair: (2) shared.
template <bool ByWeight>
SP_DEVICE Kept shortest(const f32* logits, i32 vocab, u64 target, const Scale& scale, u64* bins, u64* pair) {
    u32 prefix = 0;
    u64 above = 0;  // count or weight of the keys over every key with this prefix
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < 256) bins[threadIdx.x] = 0;
        __syncthreads();
        for (i32 i = threadIdx.x; i < vocab; i += BLOCK) {
            const u32 key = ordered(logits[i]);
            if (shift == 24 || key >> (shift + 8) == prefix)
                atomicAdd(bins + (key >> shift & 255u), ByWeight ? scale.weight(key) : u64(1));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            i32 digit = 255;
            while (digit > 0 && above + bins[digit] < target) above += bins[digit--];
            pair[0] = digit, pair[1] = above;
        }
        __syncthreads();
        prefix = prefix << 8 | u32(pair[0]);
        above = pair[1];
    }
    const u64 each = ByWeight ? scale.weight(prefix) : u64(1);
    __syncthreads();
    return {prefix, each ? (target - above + each - 1) / each : u64(vocab)};
}
