// Reduces the softmax weights of one layer to an importance per token, and folds it into that of the layers before.
//
//   w[h, i, j] = 2^(s[h, i, j] - M[h, i]) / Z[h, i], see importance.cu; with GIVEN s[h, i, j] itself, of any sign
//   importance_fold  over the heads, largest or sum, of w after what comes before the heads: a moving average along j
//                    (POOL_AT 1: of every w; 2: after the queries), largest or mean over the queries (QUERIES_FIRST)
//   importance_heat  by_layer[x] = mean over i and the tokens j of chunk x of max_h w; by_head[h, x] = the mean of w itself
//
// Layouts: scores f32 (heads, n, pitch), norms float2 (heads, n) of (M, 1 / Z), null with GIVEN; running f32 (n, tokens), or (1, tokens) with
//   QUERIES_FIRST; by_layer f32 (chunks,), by_head f32 (heads, chunks) or null, chunks of 32 tokens.
// Launch: importance_fold (ceil(tokens / (256 - WIDTH + 1)), rows of running) blocks of 256 threads, a thread a token and the
//   outer ones for the average alone; `first` overwrites `running` instead of adding. importance_heat 8 warps a block,
//   a warp a chunk. sm_80 and newer.
// Defines: WIDTH of the average, odd; ZERO_EDGES (divide by WIDTH also at the ends); QUERIES_FIRST; POOL_AT 0 (none before
//   the heads), 1, 2; HEADS_MAX; QUERIES_MAX; GIVEN (0 if not given).
#include "mma.cuh"
#include "softmax.cuh"

#ifndef GIVEN
#define GIVEN 0
#endif

constexpr int THREADS = 256, HALF = WIDTH / 2, TILE = THREADS - 2 * HALF, CHUNK = 32;

struct Weights {
    const f32* scores;
    const float2* norms;
    i64 pitch;
    i32 n, token;
    bool inside;

    SP_DEVICE f32 operator()(i32 head, i32 query) const {
        const i64 row = i64(head) * n + query;
        if (GIVEN) return inside ? scores[row * pitch + token] : 0.0f;
        const float2 norm = norms[row];
        return inside ? exp2_fast(scores[row * pitch + token] - norm.x) * norm.y : 0.0f;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
importance_fold(const f32* scores, const f32* norms, f32* running, i32 n, i32 tokens, i32 heads, i32 pitch, i32 first) {
    __shared__ f32 row[2][THREADS];
    const int t = int(threadIdx.x);
    const i32 token = i32(blockIdx.x) * TILE - HALF + t;
    const bool mine = t >= HALF && t < HALF + TILE && token < tokens;
    const f32 count = ZERO_EDGES ? f32(WIDTH) : f32(min(token + HALF, tokens - 1) - max(token - HALF, 0) + 1);
    const Weights weight = {scores, reinterpret_cast<const float2*>(norms), pitch, n, token, token >= 0 && token < tokens};
    int side = 0;  // two buffers: a barrier a row is enough
    const auto pooled = [&](f32 value) {
        row[side][t] = value;
        __syncthreads();
        f32 sum = 0;
        if (mine) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum += row[side][t - HALF + i];
        }
        side ^= 1;
        return mine ? sum / count : 0.0f;
    };
    const f32 least = GIVEN ? __int_as_float(0xff800000) : 0.0f;  // weights are not negative
    f32 folded = HEADS_MAX ? least : 0.0f;
    for (i32 head = 0; head < heads; head++) {
        f32 value = QUERIES_FIRST && QUERIES_MAX ? least : 0.0f;
        if (QUERIES_FIRST) {
            for (i32 query = 0; query < n; query++) {
                f32 w = weight(head, query);
                if (POOL_AT == 1) w = pooled(w);
                value = QUERIES_MAX ? fmaxf(value, w) : value + w;
            }
            if (!QUERIES_MAX) value /= f32(n);
            if (POOL_AT == 2) value = pooled(value);
        } else {
            value = weight(head, i32(blockIdx.y));
            if (POOL_AT == 1) value = pooled(value);
        }
        folded = HEADS_MAX ? fmaxf(folded, value) : folded + value;
    }
    if (!mine) return;
    f32* to = running + i64(blockIdx.y) * tokens + token;
    if (!first) folded = HEADS_MAX ? fmaxf(*to, folded) : *to + folded;
    *to = folded;
}

extern "C" __global__ void __launch_bounds__(THREADS)
importance_heat(const f32* scores, const f32* norms, f32* by_layer, f32* by_head, i32 n, i32 tokens, i32 heads, i32 pitch) {
    const i32 chunks = (tokens + CHUNK - 1) / CHUNK, lane = i32(threadIdx.x % 32);
    const i32 chunk = i32(blockIdx.x) * (THREADS / 32) + i32(threadIdx.x / 32);
    if (chunk >= chunks) return;
    const i32 token = chunk * CHUNK + lane;
    const f32 share = 1.0f / (f32(n) * f32(min(CHUNK, tokens - chunk * CHUNK)));
    const Weights weight = {scores, reinterpret_cast<const float2*>(norms), pitch, n, token, token < tokens};
    f32 sum = 0;
    for (i32 query = 0; query < n; query++) {
        f32 most = GIVEN ? __int_as_float(0xff800000) : 0.0f;
#pragma unroll 8
        for (i32 head = 0; head < heads; head++) most = fmaxf(most, weight(head, query));
        sum += most;
    }
    sum = warp_sum(sum);
    if (lane == 0) by_layer[chunk] = sum * share;
    if (!by_head) return;
    for (i32 head = 0; head < heads; head++) {
        f32 mean = 0;
#pragma unroll 8
        for (i32 query = 0; query < n; query++) mean += weight(head, query);
        mean = warp_sum(mean);
        if (lane == 0) by_head[i64(head) * chunks + chunk] = mean * share;
    }
}
