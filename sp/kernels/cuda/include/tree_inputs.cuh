// What delta_tree.cu makes of the inputs of nodes before any product: the convolution along the ancestors, unit q and k;
// and the gates. Defines as for tree_products.cuh.
#pragma once
#include "gates.cuh"
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

// Where a lane's E channels of q, k or v lie, and where what comes of them goes. Null: another block writes that.
struct Channels {
    const u16* x;
    const f32 *taps, *history;
    u16* inputs;
    i32 all;  // channels of a row of x
    f32* keys;
    i32 all_keys;  // of a row of keys
    u16* parts;    // of node 0; null for v
    f32* values;
};

// By one of SHARERS warps, which takes every SHARERS-th node from `first` on.
SP_DEVICE void mix(const Channels& c, const u64* seen, i32 first, i32 nodes, f32 eps) {
    const i32 lane = threadIdx.x % 32, mine = first + SHARERS * lane;
    f32 weight[4][E];
#pragma unroll
    for (int i = 0; i < E; ++i) {
        const float4 taps = *reinterpret_cast<const float4*>(c.taps + 4 * i);
        weight[0][i] = taps.x, weight[1][i] = taps.y, weight[2][i] = taps.z, weight[3][i] = taps.w;
    }
    // A lane finds the three nearest ancestors of one node, 8 bits each, nearest first; 64 to 66 is the history, newest first.
    u32 nearest = 0;
    if (mine < nodes) {
        u64 line = seen[mine] & (u64(1) << mine) - 1;
        u32 older = 64;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const u32 row = line ? 63 - __clzll(i64(line)) : older++;
            line &= line ? (u64(1) << row) - 1 : 0;
            nearest |= row << 8 * i;
        }
    }
    wait_for_earlier();
    u32 old[3][E / 2];
#pragma unroll
    for (int i = 0; i < 3; ++i) {  // the history holds bf16 values
        f32 values[E];
        load_words<E>(reinterpret_cast<u32*>(values), c.history + i64(2 - i) * c.all);
#pragma unroll
        for (int j = 0; j < E; j += 2) old[i][j / 2] = pack_bf16(values[j], values[j + 1]);
    }
#pragma unroll 1
    for (i32 turn = 0; turn < NODES / SHARERS; turn += CHUNK) {
        u32 words[CHUNK][4][E / 2] = {};
#pragma unroll
        for (int n = 0; n < CHUNK; ++n) {
            const i32 t = first + SHARERS * (turn + n);
            const u32 rows = __shfl_sync(~0u, nearest, turn + n);
            if (t >= nodes) continue;
            load_words<E / 2>(words[n][3], c.x + i64(t) * c.all);
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                const u32 row = rows >> 8 * i & 255;
                if (row < 64) {
                    load_words<E / 2>(words[n][2 - i], c.x + i64(row) * c.all);
                } else {
#pragma unroll
                    for (int j = 0; j < E / 2; ++j) words[n][2 - i][j] = row == 64 ? old[0][j] : row == 65 ? old[1][j] : old[2][j];
                }
            }
        }
        f32 mixed[CHUNK][E] = {}, squares[CHUNK] = {};
#pragma unroll
        for (int n = 0; n < CHUNK; ++n) {
#pragma unroll
            for (int tap = 0; tap < 4; ++tap)
#pragma unroll
                for (int i = 0; i < E; i += 2) {
                    mixed[n][i] += weight[tap][i] * low_bf16(words[n][tap][i / 2]);
                    mixed[n][i + 1] += weight[tap][i + 1] * high_bf16(words[n][tap][i / 2]);
                }
#pragma unroll
            for (int i = 0; i < E; ++i) mixed[n][i] = silu(mixed[n][i]), squares[n] += mixed[n][i] * mixed[n][i];
        }
        if (c.parts)
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
#pragma unroll
                for (int n = 0; n < CHUNK; ++n) squares[n] += __shfl_xor_sync(~0u, squares[n], offset);
#pragma unroll
        for (int n = 0; n < CHUNK; ++n) {
            const i32 t = first + SHARERS * (turn + n);
            if (!c.parts) {
                store_words<E>(c.values + t * HEAD_DIM, reinterpret_cast<const u32*>(mixed[n]));
            } else {
                const f32 unit = rsqrtf(squares[n] + eps);
#pragma unroll
                for (int i = 0; i < E; ++i) mixed[n][i] *= unit;
                if (c.keys && t < nodes)
                    store_words<E>(c.keys + i64(t) * c.all_keys, reinterpret_cast<const u32*>(mixed[n]));
#pragma unroll
                for (int i = 0; i < E; ++i) mixed[n][i] *= UNIT;
                store_parts(c.parts + t * PART, mixed[n]);
            }
            if (c.inputs && t < nodes) store_words<E / 2>(c.inputs + i64(t) * c.all, words[n][3]);
        }
    }
}

// By one warp: alpha and beta are of node 0, one every `stride` numbers; so are decays.
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
