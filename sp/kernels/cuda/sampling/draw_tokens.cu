// Draws of tokens by given numbers, and the probabilities of given tokens, under p = softmax(logits / temperature).
//
//   draw_tokens   tokens[r] = min { i : w(0) + ... + w(i) > numbers[r] / 2^53 * (sum of w) }, w = p of row r, or with
//                 less w = max(p - q, 0), q its softmax, unless that is 0 everywhere, when it is p
//   token_shares  shares[r] = p(tokens[r]) of row r, the bits of a float64
//
// Layouts: logits, less f32 (rows, vocab); numbers u64 (rows) below 2^53; tokens i32 (rows); shares u64 (rows).
// Launch: a block of 512 threads a row. A warp sums a run of tokens, the warps' sums name the run of the draw, and its
//   warp walks that again. Sums are float64 in a fixed order. sm_80 and newer.
// Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023.
#include "types.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32;

SP_DEVICE f64 warp_sum(f64 value) {
#pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// The sum of a value of each thread of the block, in all of them.
SP_DEVICE f64 block_sum(f64 value, f64* scratch) {
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < WARPS ? scratch[threadIdx.x % 32] : 0.0);
}

struct Softmax {
    const f32* row;
    f32 top;
    f64 inverse, total;

    SP_DEVICE f64 weight(i32 i) const { return exp((f64(row[i]) - f64(top)) * inverse); }
    SP_DEVICE f64 share(i32 i) const { return weight(i) / total; }
};

SP_DEVICE Softmax softmax_of(const f32* row, i32 vocab, f32 temperature, f64* scratch) {
    f32 top = __int_as_float(0xff800000);
    for (i32 i = threadIdx.x; i < vocab; i += THREADS) top = fmaxf(top, row[i]);
#pragma unroll
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = top;
    __syncthreads();
    top = f32(scratch[threadIdx.x % WARPS]);
#pragma unroll
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    Softmax found = {row, top, 1.0 / f64(temperature), 1.0};
    f64 sum = 0;
    for (i32 i = threadIdx.x; i < vocab; i += THREADS) sum += found.weight(i);
    found.total = block_sum(sum, scratch);
    return found;
}

struct Weights {
    Softmax p, q;
    bool minus;

    SP_DEVICE f64 operator()(i32 i) const { return minus ? fmax(p.share(i) - q.share(i), 0.0) : p.share(i); }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    draw_tokens(const f32* __restrict__ logits, const f32* __restrict__ less, const u64* __restrict__ numbers,
                i32* tokens, i32 vocab, f32 temperature) {
    __shared__ f64 scratch[WARPS], sums[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 row = i64(blockIdx.x) * vocab;
    Weights weights = {softmax_of(logits + row, vocab, temperature, scratch), {}, less != nullptr};
    if (less) weights.q = softmax_of(less + row, vocab, temperature, scratch);
    const i32 run = (vocab + WARPS - 1) / WARPS, begin = min(warp * run, vocab), end = min(begin + run, vocab);
    f64 total = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
        f64 mine = 0;
        for (i32 i = begin + lane; i < end; i += 32) mine += weights(i);
        mine = warp_sum(mine);
        __syncthreads();
        if (lane == 0) sums[warp] = mine;
        __syncthreads();
        total = 0;
        for (int i = 0; i < WARPS; ++i) total += sums[i];
        if (total > 0) break;
        weights.minus = false;
    }
    const f64 wanted = f64(numbers[blockIdx.x]) * 0x1p-53 * total;
    f64 before = 0;
    int chosen = 0;
    while (chosen < WARPS - 1 && before + sums[chosen] <= wanted) before += sums[chosen++];
    if (warp != chosen) return;
    // The last token with any weight stands where rounding would have the sum end below what is wanted.
    i32 found = -1, last = -1;
    for (i32 base = begin; base < end && found < 0; base += 32) {
        const f64 own = base + lane < end ? weights(base + lane) : 0.0;
        f64 upto = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const f64 below = __shfl_up_sync(~0u, upto, step);
            if (lane >= step) upto += below;
        }
        const u32 passed = __ballot_sync(~0u, own > 0 && before + upto > wanted), any = __ballot_sync(~0u, own > 0);
        if (passed) found = base + __ffs(passed) - 1;
        if (any) last = base + 31 - __clz(any);
        before += __shfl_sync(~0u, upto, 31);
    }
    if (lane == 0) tokens[blockIdx.x] = found >= 0 ? found : max(last, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    token_shares(const f32* __restrict__ logits, const i32* __restrict__ tokens, u64* shares, i32 vocab,
                 f32 temperature) {
    __shared__ f64 scratch[WARPS];
    const Softmax p = softmax_of(logits + i64(blockIdx.x) * vocab, vocab, temperature, scratch);
    if (threadIdx.x == 0) shares[blockIdx.x] = u64(__double_as_longlong(p.share(tokens[blockIdx.x])));
}
