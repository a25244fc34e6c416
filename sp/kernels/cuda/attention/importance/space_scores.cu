// Scores of tokens from the worth of ranges of a text (space_worth.cu) and from attention weights:
//
//   space_parts   x[0, t] = units[u] of the unit u that holds t, x[1, t] = the largest of the windows that do,
//                 x[2, t] = the mean of looked[t - half .. t + half] inside of the text; and sums of a block's tokens
//   space_scores  scores[t] = sum_p weight_p (x[p, t] - mean(x[p])) / deviation(x[p]), without parts whose values are equal
//
// Sums are of float64 and of differences from the first token's values, so that equal values deviate by nothing, and are made
// in one order, so that results are the same from run to run. Of 131,072 tokens 0.5 MB are read and 2 MB written and read
// again: some 10 microseconds, most of which are waits for the places of units.
//
// Layouts: units f32 (count,), bounds i32 (count + 1,), windows f32 (steps + inside - 1,), of which `inside` hold a step of
//   `step` tokens, looked f32 (tokens,), x f32 (3, tokens), sums 6 float64 a block: of three differences, and of their squares.
// Launch: both 256 threads a block, 1024 tokens. 16-byte aligned arrays. sm_80 and newer.
#include "types.cuh"

constexpr int THREADS = 256, EACH = 1024;

struct Parts {
    f32 x[3];
};

SP_DEVICE Parts parts_of(int token, const f32* units, const i32* bounds, const f32* windows, const f32* looked, int count,
                         int tokens, int step, int inside, int half) {
    int unit = 0, behind = count;
    while (behind - unit > 1) {
        const int middle = (unit + behind) / 2;
        if (bounds[middle] <= token) unit = middle;
        else behind = middle;
    }
    f32 best = windows[token / step];
    for (int i = 1; i < inside; i++) best = fmaxf(best, windows[token / step + i]);
    const int first = max(token - half, 0), last = min(token + half + 1, tokens);
    f32 sum = 0;
    for (int i = first; i < last; i++) sum += looked[i];
    return {units[unit], best, sum / f32(last - first)};
}

// Adds up what all threads of the block have of six sums, always in the same order; they lie in all[.][0] then.
SP_DEVICE void fold(f64 (&all)[6][THREADS]) {
    for (int apart = THREADS / 2; apart > 0; apart /= 2) {
        __syncthreads();
        if (int(threadIdx.x) < apart)
            for (int i = 0; i < 6; i++) all[i][threadIdx.x] += all[i][threadIdx.x + apart];
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
space_parts(const f32* units, const i32* bounds, const f32* windows, const f32* looked, f32* x, u64* sums, i32 count,
            i32 tokens, i32 step, i32 inside, i32 half) {
    __shared__ alignas(16) f64 all[6][THREADS];
    const Parts origin = parts_of(0, units, bounds, windows, looked, count, tokens, step, inside, half);
    f64 found[6] = {};
    for (int i = int(threadIdx.x); i < EACH; i += THREADS) {
        const int token = int(blockIdx.x) * EACH + i;
        if (token >= tokens) break;
        const Parts mine = parts_of(token, units, bounds, windows, looked, count, tokens, step, inside, half);
#pragma unroll
        for (int p = 0; p < 3; p++) {
            x[i64(p) * tokens + token] = mine.x[p];
            const f64 off = f64(mine.x[p]) - f64(origin.x[p]);
            found[p] += off, found[3 + p] += off * off;
        }
    }
#pragma unroll
    for (int i = 0; i < 6; i++) all[i][threadIdx.x] = found[i];
    fold(all);
    if (threadIdx.x < 6) reinterpret_cast<f64*>(sums)[6 * blockIdx.x + threadIdx.x] = all[threadIdx.x][0];
}

extern "C" __global__ void __launch_bounds__(THREADS)
space_scores(const f32* x, const u64* sums, f32* scores, i32 tokens, i32 blocks, f32 of_unit, f32 of_window, f32 of_look) {
    __shared__ alignas(16) f64 all[6][THREADS];
    f64 found[6] = {};
    for (int block = int(threadIdx.x); block < blocks; block += THREADS)
#pragma unroll
        for (int i = 0; i < 6; i++) found[i] += reinterpret_cast<const f64*>(sums)[6 * i64(block) + i];
#pragma unroll
    for (int i = 0; i < 6; i++) all[i][threadIdx.x] = found[i];
    fold(all);
    const f32 weights[3] = {of_unit, of_window, of_look};
    f64 centre[3], factor[3];
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const f64 mean = all[p][0] / tokens, variance = all[3 + p][0] / tokens - mean * mean;
        centre[p] = f64(x[i64(p) * tokens]) + mean;
        factor[p] = variance > 0 ? f64(weights[p]) / sqrt(variance) : 0;
    }
    for (int i = int(threadIdx.x); i < EACH; i += THREADS) {
        const int token = int(blockIdx.x) * EACH + i;
        if (token >= tokens) break;
        f64 total = 0;
#pragma unroll
        for (int p = 0; p < 3; p++) total += factor[p] * (f64(x[i64(p) * tokens + token]) - centre[p]);
        scores[token] = f32(total);
    }
}
