// The likeliest tokens of each row of logits, and the logarithms of their probabilities.
//
//   tokens[r] = the k largest of logits[r], largest first, the lowest id first among equals
//   log_probs[r, i] = logits[r, tokens[r, i]] - log sum_j exp(logits[r, j])
//
// Layouts: logits f32 (rows, vocab); candidates u64 (rows, slices, k) and sums f32 (rows, slices, 2), scratch; arrivals u32
//   (rows,), zero before and after; tokens i32, log_probs f32 (rows, k).
// Launch: (slices, rows) blocks of 256 threads, slices = ceil(vocab / SLICE), at most 64; k is 1 to 16. A block holds a slice in
//   registers and takes the largest out of it k times; the last block of a row does so with what all found. Sums are added in
//   fixed order. NaN logits lose to numbers. sm_80 and newer.
#include "pdl.cuh"
#include "ranking.cuh"

constexpr int PER = 64, THREADS = 256, SLICE = PER * THREADS;  // logits of a thread and of a block
constexpr int MOST = 16, SLICES = 64;

// Largest of a value a thread; `found` is (2, 8), and calls take turns with its halves.
SP_DEVICE u64 block_largest(u64 value, u64 (&found)[2][THREADS / 32], int turn) {
    value = warp_largest(value);
    if (threadIdx.x % 32 == 0) found[turn % 2][threadIdx.x / 32] = value;
    __syncthreads();
    value = found[turn % 2][0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) value = larger(value, found[turn % 2][i]);
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
top_logprobs(const f32* logits, u64* candidates, f32* sums, u32* arrivals, i32* tokens, f32* log_probs, i32 vocab, i32 k) {
    __shared__ u64 found[2][THREADS / 32], pool[SLICES * MOST];
    __shared__ f32 parts[THREADS / 32];
    __shared__ bool last;
    pdl_launch_dependents();
    pdl_wait();
    const i32 thread = i32(threadIdx.x), row = i32(blockIdx.y), slices = i32(gridDim.x), slice = i32(blockIdx.x);
    const i32 first = slice * SLICE + thread;
    logits += i64(row) * vocab;
    u32 keys[PER];  // 0: none, or taken
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const i32 at = first + j * THREADS;
        keys[j] = at < vocab ? ordered(__fadd_rn(logits[at], 0.0f)) : 0u;  // -0 equals 0
    }
    u64 best = 0;
    const auto rescan = [&]() {
        u32 most = 0;
        int where = 0;
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (keys[j] > most) most = keys[j], where = j;
        best = most ? u64(most) << 32 | u32(~(first + where * THREADS)) : 0;
    };
    rescan();
    f32 highest = 0, sum = 0;
    for (int i = 0; i < k; i++) {
        const u64 taken = block_largest(best, found, i);
        if (thread == 0) candidates[(i64(row) * slices + slice) * k + i] = taken;
        if (i == 0) {
            highest = from_ordered(u32(taken >> 32));
#pragma unroll
            for (int j = 0; j < PER; j++) {
                const f32 value = from_ordered(keys[j]);
                if (keys[j]) sum += value == highest ? 1.0f : expf(value - highest);  // also where both are -inf
            }
        }
        if (best == taken && taken) {
            const int where = (i32(~u32(taken)) - first) / THREADS;
#pragma unroll
            for (int j = 0; j < PER; j++)
                if (j == where) keys[j] = 0;
            rescan();
        }
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0) parts[thread / 32] = sum;
    __syncthreads();
    if (thread == 0) {
        for (int i = 1; i < THREADS / 32; i++) sum += parts[i];
        reinterpret_cast<float2*>(sums)[row * slices + slice] = make_float2(highest, sum);
        __threadfence();
        last = atomicInc(arrivals + row, u32(slices) - 1) == u32(slices) - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();

    const volatile u64* all = candidates + i64(row) * slices * k;
    for (i32 i = thread; i < slices * k; i += THREADS) pool[i] = all[i];
    const volatile f32* found_sums = sums + i64(row) * slices * 2;
    f32 high[2], part[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const i32 at = thread % 32 + 32 * i;
        high[i] = from_ordered(0);
        if (at < slices) high[i] = found_sums[2 * at], part[i] = found_sums[2 * at + 1];
    }
    highest = warp_max(fmaxf(high[0], high[1])), sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (part[i] > 0) sum += high[i] == highest ? part[i] : part[i] * expf(high[i] - highest);
    const f32 logarithm = logf(warp_sum(sum));
    __syncthreads();
    u64 taken = ~0ull;
    for (int i = 0; i < k; i++) {
        best = 0;
        for (i32 j = thread; j < slices * k; j += THREADS)
            if (pool[j] < taken) best = larger(best, pool[j]);
        taken = block_largest(best, found, i);
        if (thread == 0) {
            tokens[row * k + i] = min(i32(~u32(taken)), vocab - 1) & 0x7fffffff;
            log_probs[row * k + i] = from_ordered(u32(taken >> 32)) - highest - logarithm;
        }
    }
}
