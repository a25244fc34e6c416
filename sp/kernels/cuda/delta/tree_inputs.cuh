// The prologue of delta_tree.cu on the inputs of nodes: the convolution along the ancestors, unit q and k, and the
// gates. Defines as for tree_products.cuh.
#pragma once
#include "activations.cuh"
#include "tree_products.cuh"

#define SHARERS 4  // warps that share the nodes of q, of k or of v
#define CHUNK (NODES == 24 ? 6 : 4)  // nodes of a warp whose inputs are on their way together

// What tree nodes are to one head, in shared memory.
struct Numbers {
    f64 logs[NODES];       // g
    float2 sums[NODES];    // G, and what its rounding left
    u64 lines[NODES];      // seen
    f32 grown[NODES];      // exp(G)
    f32 strengths[NODES];  // b
};

// Where q, k or v of this head lie, and where what comes of them goes. Null: another block writes that.
struct Channels {
    const u16* x;
    const f32 *taps, *history;
    u16* inputs;
    i32 all;  // channels of a row of x
    f32* keys;
    i32 all_keys;  // of a row of keys
    u16* raw;      // (3 + NODES, HEAD_DIM): history and inputs
    u16* parts;    // of node 0; null for v
    f32* values;   // the columns from `skipped` on that the block has
    i32 skipped;
};

// By one of SHARERS warps, which takes every SHARERS-th node from `first` on; they meet at `barrier`. Of nodes past the
// last it makes something finite.
SP_DEVICE void mix(const Channels& c, const u64* seen, i32 first, i32 barrier, i32 nodes, f32 eps) {
    constexpr i32 PIECES = HEAD_DIM / 8;
    const i32 lane = threadIdx.x % 32, own = E * lane, mine = first + SHARERS * lane;
    f32 weight[4][E];
#pragma unroll
    for (int i = 0; i < E; ++i) {
        const float4 taps = *reinterpret_cast<const float4*>(c.taps + 4 * (own + i));
        weight[0][i] = taps.x, weight[1][i] = taps.y, weight[2][i] = taps.z, weight[3][i] = taps.w;
    }
    if (first < 3) {  // the history holds bf16 values
        f32 values[E];
        u32 words[E / 2];
        load_words<E>(reinterpret_cast<u32*>(values), c.history + i64(first) * c.all + own);
#pragma unroll
        for (int i = 0; i < E; i += 2) words[i / 2] = pack_bf16(values[i], values[i + 1]);
        store_words<E / 2>(c.raw + first * HEAD_DIM + own, words);
    }
    const u64 line = mine < nodes ? seen[mine] : 1;
    // Rows of raw that the nodes from `turn` on see, four lanes a node: it, its nearest ancestors, then the history.
    auto find = [&](i32 turn) {
        u64 left = __shfl_sync(~0u, line, turn + lane / 4);
        const i32 back = lane % 4, known = __popcll(left);
#pragma unroll
        for (int i = 0; i < 3; ++i)
            if (i < back && i + 1 < known) left ^= u64(1) << (63 - __clzll(i64(left)));
        return (back < known ? 66 - __clzll(i64(left)) : 2 - (back - known)) * HEAD_DIM;
    };
    i32 source = find(0);
    pdl_wait();
#pragma unroll
    for (i32 n = 0; n < NODES / SHARERS; n += 32 / PIECES) {
        const i32 t = first + SHARERS * (n + lane / PIECES), at = lane % PIECES * 8;
        if (t < nodes) cp_async_16(shared_address(c.raw + (3 + t) * HEAD_DIM + at), c.x + i64(t) * c.all + at);
    }
    cp_async_commit();
    cp_async_wait<0>();
#ifdef SP_DEBUG  // compute-sanitizer's racecheck takes a barrier of some warps for one of all: for it all meet
    __syncthreads();
#else
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(32 * SHARERS) : "memory");
#endif
#pragma unroll 1
    for (i32 turn = 0; turn < NODES / SHARERS; turn += CHUNK) {
        f32 mixed[CHUNK][E] = {}, squares[CHUNK] = {};
#pragma unroll
        for (int n = 0; n < CHUNK; ++n) {
            u32 words[4][E / 2];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_words<E / 2>(words[3 - i], c.raw + __shfl_sync(~0u, source, 4 * n + i) + own);
            const i32 t = first + SHARERS * (turn + n);
            if (c.inputs && t < nodes) store_words<E / 2>(c.inputs + i64(t) * c.all + own, words[3]);
#pragma unroll
            for (int tap = 0; tap < 4; ++tap)
#pragma unroll
                for (int i = 0; i < E; i += 2) {
                    mixed[n][i] += weight[tap][i] * low_bf16(words[tap][i / 2]);
                    mixed[n][i + 1] += weight[tap][i + 1] * high_bf16(words[tap][i / 2]);
                }
#pragma unroll
            for (int i = 0; i < E; ++i) mixed[n][i] = silu_rcp(mixed[n][i]), squares[n] += mixed[n][i] * mixed[n][i];
        }
        if (c.parts) {
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
#pragma unroll
                for (int n = 0; n < CHUNK; ++n) squares[n] += __shfl_xor_sync(~0u, squares[n], offset);
#pragma unroll
            for (int n = 0; n < CHUNK; ++n) {
                const i32 t = first + SHARERS * (turn + n);
                const f32 unit = rsqrtf(squares[n] + eps);
#pragma unroll
                for (int i = 0; i < E; ++i) mixed[n][i] *= unit;
                if (c.keys && t < nodes)
                    store_words<E>(c.keys + i64(t) * c.all_keys + own, reinterpret_cast<const u32*>(mixed[n]));
#pragma unroll
                for (int i = 0; i < E; ++i) mixed[n][i] *= UNIT;
                store_parts(c.parts + t * PART + own, mixed[n]);
            }
        } else if (own / COLUMNS == c.skipped / COLUMNS) {
#pragma unroll
            for (int n = 0; n < CHUNK; ++n)
                store_words<E>(c.values + (first + SHARERS * (turn + n)) * LINE + own % COLUMNS,
                               reinterpret_cast<const u32*>(mixed[n]));
        }
        source = find(turn + CHUNK);
    }
}

// By one warp, with alpha, beta and seen of the nodes lane, lane + 32; decays of a node every `stride` numbers.
template <int SETS>
SP_DEVICE void find_gates(Numbers& numbers, const f32 (&alphas)[SETS], const f32 (&betas)[SETS], const u64 (&lines)[SETS],
                          f32 rate, f32 bias, f32* decays, i32 stride, i32 nodes) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int set = 0; set < SETS; ++set) {
        const i32 t = lane + 32 * set;
        const f32 g = t < nodes ? rate * softplus(alphas[set] + bias) : 0.0f;
        if (t < NODES) {
            numbers.logs[t] = g, numbers.strengths[t] = t < nodes ? sigmoid(betas[set]) : 0.0f;
            numbers.lines[t] = lines[set];
        }
        if (t < nodes) decays[i64(t) * stride] = g;
    }
    __syncwarp();
#pragma unroll
    for (int set = 0; set < SETS; ++set) {
        const i32 t = lane + 32 * set;
        f64 sum[4] = {};
#pragma unroll 4
        for (i32 j = 0; j < NODES; j += 4)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] += lines[set] >> (j + i) & 1 ? numbers.logs[j + i] : 0.0;
        sum[0] += sum[1] + (sum[2] + sum[3]);
        const f32 high = f32(sum[0]);
        if (t < NODES) numbers.sums[t] = make_float2(high, f32(sum[0] - high)), numbers.grown[t] = expf(high);
    }
}
