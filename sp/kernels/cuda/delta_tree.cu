// A Gated DeltaNet layer between its matrices over a tree of nodes, each going on from its parent: convolution along the
// ancestors, SiLU, unit q and k, gates, the delta rule, gated norm. The state S before the tree is read once and kept.
//
//   u_i = b_i (v_i - exp(G_i) S^T k_i - sum_{j < i} r_ij (k_j . k_i) u_j),      r_ij = exp(G_i - G_j), j an ancestor of i
//   o_i = (exp(G_i) S^T q_i + sum_{j <= i} r_ij (k_j . q_i) u_j) / sqrt(HEAD_DIM),  y = rms_norm(o, norm) * silu(z)
//
// x            bf16 (nodes, channels), channels = (2 key_heads + value_heads) * HEAD_DIM: q | k | v
// z, y         bf16 (nodes, value_heads * HEAD_DIM)
// alpha, beta  f32 (nodes, value_heads);  a, dt_bias f32 (value_heads);  norm f32 (HEAD_DIM)
// taps         f32 (channels, 4);  history f32 (3, channels);  state f32 (value_heads, HEAD_DIM keys, HEAD_DIM values)
// seen         u64 (nodes): bit j of word i says that j is i or an ancestor; ancestors stand before
// keys         f32 (nodes, key_heads, HEAD_DIM) unit k;  added f32 (nodes, value_heads, HEAD_DIM) u
// decays       f32 (nodes, value_heads) g;  inputs bf16 (nodes, channels), a copy of x
//
// Grid (value_heads), 4 * HEAD_DIM + 64 threads; nodes in 1 .. NODES, a multiple of 8. Block p takes value head p and key head
// p % key_heads. Rows k and q of all nodes meet [S | K^T] on the tensor cores, every number as a sum of three bf16, which
// hold float32's 24 bits (Henry, Tang, Heinecke 2019): rows that lead to u take the six products above 2^-24, rows q
// alone the three above 2^-16, far below the rounding of y. A warp has 16 columns of S, for half of the keys, in registers.
// With A and P the products between nodes, (I + A) u = R: one warp inverts I + A while the others finish R, and u and o
// are products with R. G is summed in float64 and kept as two float32: after a deep decay differences of G must still be
// exact. history holds bf16 values. Capturable. 16-byte aligned rows. sm_80+. The limit is the latency of the phases between
// barriers, and instructions that run once; only value_heads multiprocessors work.
#include "early.cuh"
#include "gates.cuh"

#define GROUPS (HEAD_DIM / 16)  // of 16 columns
#define WARPS (2 * GROUPS)      // and two helpers: the tree and its inverse; the gates
#define THREADS (32 * (WARPS + 2))
#define E (HEAD_DIM / 32)       // channels of a lane
#define WIDTH (3 * HEAD_DIM)    // q, k and v of a node

#include "tree_products.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    delta_tree(const u16* x, const u16* z, const f32* alpha, const f32* beta, const f32* __restrict__ taps,
               const f32* __restrict__ a, const f32* __restrict__ dt_bias, const f32* __restrict__ norm,
               const f32* history, const f32* state, const u64* seen, u16* y, f32* keys, f32* added, f32* decays,
               u16* inputs, i32 nodes, i32 key_heads, i32 value_heads, f32 eps) {
    extern __shared__ __align__(16) u8 shared[];
    u16* const parts = reinterpret_cast<u16*>(shared);                  // (3, ROWS, PART): k and q
    int4* const windows = reinterpret_cast<int4*>(parts + 3 * ROWS * PART);  // where a node's inputs lie, newest first
    f64* const logs = reinterpret_cast<f64*>(windows + NODES);   // g
    float2* const sums = reinterpret_cast<float2*>(logs + NODES);  // G, and what its rounding left
    u64* const lines = reinterpret_cast<u64*>(sums + NODES);     // seen
    f32* const grown = reinterpret_cast<f32*>(lines + NODES);    // exp(G)
    f32* const strengths = grown + NODES;                        // b
    f32* const rows = strengths + NODES;  // (ROWS, HEAD_DIM): v, then the right side R; S^T q, then o
    f32* const gram = rows + ROWS * HEAD_DIM;                           // (NODES, GRAM): of node j with rows k and q
    // Before S^T q and the products: what the convolution needs.
    f32* const weights = rows + NODES * HEAD_DIM;             // (4, WIDTH) taps
    u16* const raw = reinterpret_cast<u16*>(weights + 4 * WIDTH);  // (3 + NODES, WIDTH) inputs, history first
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, group = lane / 4, pair = lane % 4;
    const i32 p = blockIdx.x, head = p % key_heads;
    const bool first = p < key_heads;  // of the blocks of this key head
    const i32 channels = (2 * key_heads + value_heads) * HEAD_DIM;
    const i32 own = E * lane;  // first channel of the lane
    // Where a channel of this head's q, k and v lies in a row of all heads.
    auto place = [&](i32 c) {
        const i32 part = c / HEAD_DIM;
        return (part == 0 ? head : part == 1 ? key_heads + head : 2 * key_heads + p) * HEAD_DIM + c % HEAD_DIM;
    };

    for (i32 line = thread; line < HEAD_DIM * HEAD_DIM / 32; line += THREADS)
        prefetch_l2(state + i64(p) * HEAD_DIM * HEAD_DIM + line * 32);
    float4 tap = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (thread < WIDTH) tap = *reinterpret_cast<const float4*>(taps + place(thread) * 4);
    const f32 rate = a[p], bias = dt_bias[p];
    wait_for_earlier();
    for (i32 item = thread; item < nodes * (WIDTH / 8); item += THREADS) {
        const i32 t = item / (WIDTH / 8), c = item % (WIDTH / 8) * 8;
        cp_async_16(shared_address(raw + (3 + t) * WIDTH + c), x + i64(t) * channels + place(c));
    }
    cp_async_commit();
    float4 old = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // of the history, which holds bf16 values
    const i32 age = thread / (WIDTH / 4), old_at = thread % (WIDTH / 4) * 4;
    if (age < 3) old = *reinterpret_cast<const float4*>(history + i64(age) * channels + place(old_at));
    // A warp's share of S: 16 columns, half of the keys.
    const i32 columns = 16 * (warp % GROUPS), half = warp / GROUPS;
    float2 S[HALF][4];
    if (warp < WARPS) {
        const f32* const from = state + (i64(p) * HEAD_DIM + half * HALF * 16 + 2 * pair) * HEAD_DIM + columns + 2 * group;
#pragma unroll
        for (int step = 0; step < HALF; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                S[step][i] = *reinterpret_cast<const float2*>(from + (16 * step + i % 2 + 8 * (i / 2)) * HEAD_DIM);
    }
    f32 alphas[SETS] = {}, betas[SETS] = {};
#pragma unroll
    for (int set = 0; set < SETS; ++set) {
        const i32 t = lane + 32 * set;
        if (warp == WARPS && t < NODES) {
            u64 line = t < nodes ? seen[t] : 0;
            lines[t] = line;
            i32 row[4], older = 3;
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // the node, its nearest ancestors, then the history
                row[i] = line ? 3 + 63 - __clzll(i64(line)) : --older;
                line &= line ? (u64(1) << (row[i] - 3)) - 1 : 0;
            }
            windows[t] = make_int4(row[0] * WIDTH, row[1] * WIDTH, row[2] * WIDTH, row[3] * WIDTH);
        }
        if (warp > WARPS && t < nodes) alphas[set] = alpha[i64(t) * value_heads + p], betas[set] = beta[i64(t) * value_heads + p];
    }
    if (thread < WIDTH) {
        weights[thread] = tap.x, weights[WIDTH + thread] = tap.y;
        weights[2 * WIDTH + thread] = tap.z, weights[3 * WIDTH + thread] = tap.w;
    }
    if (age < 3)
        *reinterpret_cast<uint2*>(raw + age * WIDTH + old_at) = make_uint2(pack_bf16(old.x, old.y), pack_bf16(old.z, old.w));
    cp_async_wait<0>();
    __syncthreads();

    if (warp > WARPS) {
#pragma unroll
        for (int set = 0; set < SETS; ++set) {
            const i32 t = lane + 32 * set;
            const f32 g = t < nodes ? rate * softplus(alphas[set] + bias) : 0.0f;
            if (t < NODES) logs[t] = g, strengths[t] = t < nodes ? sigmoid(betas[set]) : 0.0f;
            if (t < nodes) decays[i64(t) * value_heads + p] = g;
        }
        __syncwarp();
#pragma unroll
        for (int set = 0; set < SETS; ++set) {
            const i32 t = lane + 32 * set;
            const u64 line = t < NODES ? lines[t] : 0;
            f64 sum[4] = {};
#pragma unroll 4
            for (i32 j = 0; j < NODES; j += 4)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i] += line >> (j + i) & 1 ? logs[j + i] : 0.0;
            sum[0] += sum[1] + (sum[2] + sum[3]);
            const f32 high = f32(sum[0]);
            if (t < NODES) sums[t] = make_float2(high, f32(sum[0] - high)), grown[t] = expf(high);
        }
    } else if (warp < WARPS) {
#pragma unroll 1
        for (i32 t = warp; t < NODES; t += WARPS) {
            f32 mixed[3][E] = {};
            if (t < nodes) {
                const int4 rows_of = windows[t];
                const i32 row[4] = {rows_of.w, rows_of.z, rows_of.y, rows_of.x};
#pragma unroll
                for (int tap = 0; tap < 4; ++tap)
#pragma unroll
                    for (int part = 0; part < 3; ++part) {
                        f32 weight[E];
                        u32 words[E / 2];
                        load_words<E>(reinterpret_cast<u32*>(weight), weights + tap * WIDTH + part * HEAD_DIM + own);
                        load_words<E / 2>(words, raw + row[tap] + part * HEAD_DIM + own);
#pragma unroll
                        for (int i = 0; i < E; i += 2) {
                            mixed[part][i] += weight[i] * low_bf16(words[i / 2]);
                            mixed[part][i + 1] += weight[i + 1] * high_bf16(words[i / 2]);
                        }
                    }
#pragma unroll
                for (int part = 0; part < 3; ++part)
#pragma unroll
                    for (int i = 0; i < E; ++i) mixed[part][i] = silu(mixed[part][i]);
            }
            f32 qq = 0.0f, kk = 0.0f;
#pragma unroll
            for (int i = 0; i < E; ++i) qq += mixed[0][i] * mixed[0][i], kk += mixed[1][i] * mixed[1][i];
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
                qq += __shfl_xor_sync(~0u, qq, offset), kk += __shfl_xor_sync(~0u, kk, offset);
            qq = rsqrtf(qq + eps) * rsqrtf(f32(HEAD_DIM)), kk = rsqrtf(kk + eps);
#pragma unroll
            for (int i = 0; i < E; ++i) mixed[0][i] *= qq, mixed[1][i] *= kk;
            store_parts(parts + t * PART + own, mixed[1]);
            store_parts(parts + (NODES + t) * PART + own, mixed[0]);
            store_words<E>(rows + t * HEAD_DIM + own, reinterpret_cast<const u32*>(mixed[2]));
            f32* const key = keys + (i64(t) * key_heads + head) * HEAD_DIM + own;
            if (first && t < nodes) store_words<E>(key, reinterpret_cast<const u32*>(mixed[1]));
        }
    }
    u32 B[HALF][2][3][2];
    if (warp < WARPS) take_state(B, S);
    for (i32 item = thread; item < nodes * (WIDTH / 8); item += THREADS) {
        const i32 t = item / (WIDTH / 8), c = item % (WIDTH / 8) * 8;
        if (first || c >= 2 * HEAD_DIM)
            *reinterpret_cast<uint4*>(inputs + i64(t) * channels + place(c)) =
                *reinterpret_cast<const uint4*>(raw + (3 + t) * WIDTH + c);
    }
    __syncthreads();
    let_next_start();  // not before the state is here: the next kernel's reads would delay it

    const u32 part_rows = shared_address(parts + lane % 16 * PART + lane / 16 * 8);
    // The halves of the keys meet in place: each warp takes half of the rows, then the other half.
    constexpr i32 MIDDLE = (ROWS / 16 + 1) / 2 * 16;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        if (warp < WARPS)
#pragma unroll 1
            for (i32 top = pass == half ? 0 : MIDDLE; top < (pass == half ? MIDDLE : ROWS); top += 16) {
                f32 acc[2][2][4] = {};
                const u32 from = part_rows + 2 * (top * PART + half * HALF * 16);
                top < NODES ? multiply<3>(acc, from, B) : multiply<2>(acc, from, B);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const i32 row = top + group + 8 * i, node = row < NODES ? row : row - NODES;
                    float4* const at = reinterpret_cast<float4*>(rows + row * HEAD_DIM + columns + 4 * pair);
                    float4 four = pass > 0 || row < NODES ? *at : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    const f32 scale = row < NODES ? -grown[node] : grown[node];
                    const f32 last = pass > 0 && row < NODES ? strengths[node] : 1.0f;
                    four.x = last * (four.x + scale * (acc[0][0][2 * i] + acc[1][0][2 * i]));
                    four.y = last * (four.y + scale * (acc[0][1][2 * i] + acc[1][1][2 * i]));
                    four.z = last * (four.z + scale * (acc[0][0][2 * i + 1] + acc[1][0][2 * i + 1]));
                    four.w = last * (four.w + scale * (acc[0][1][2 * i + 1] + acc[1][1][2 * i + 1]));
                    *at = four;
                }
            }
        if (pass == 0 && half > 0)  // the helpers first; then those whose rows q take fewer products
#pragma unroll 1
            for (i32 tile = WARPS + 1 - warp; tile < ROWS / 16 * (NODES / 8); tile += GROUPS + 2) {
                const i32 top = tile / (NODES / 8) * 16, left = tile % (NODES / 8) * 8;
                f32 acc[4][4] = {};
                const u32 from = part_rows + 2 * top * PART;
                const u32 part_keys = shared_address(parts + (left + lane % 8) * PART + lane / 8 % 2 * 8);
                top < NODES ? multiply_keys<3>(acc, from, part_keys) : multiply_keys<2>(acc, from, part_keys);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const i32 row = top + group + i / 2 * 8, node = row < NODES ? row : row - NODES;
                    const i32 j = left + 2 * pair + i % 2;
                    const float2 low = sums[j], high = sums[node];
                    const f32 decay = expf((high.x - low.x) + (high.y - low.y));
                    const f32 ratio = lines[node] >> j & 1 ? decay : 0.0f;
                    const f32 sum = acc[0][i] + acc[1][i] + acc[2][i] + acc[3][i];
                    gram[j * GRAM + row] = ratio * (row < NODES ? strengths[node] : 1.0f) * sum;
                }
            }
        if (pass == 1 && warp == WARPS)
#pragma unroll 1
            for (i32 from = 0; from < nodes; from += 32) solve(gram, lane, from);
        if (pass == 0) __syncthreads();
    }
    constexpr int TURNS = (NODES + WARPS - 1) / WARPS;  // rows of y that a warp writes
    u32 gates[TURNS][E / 2];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
        if (warp < WARPS && warp + turn * WARPS < nodes)
            load_words<E / 2>(gates[turn], z + (i64(warp + turn * WARPS) * value_heads + p) * HEAD_DIM + own);
    f32 weight[E];
    load_words<E>(reinterpret_cast<u32*>(weight), norm + own);
    __syncthreads();

    // A warp takes 4 rows of u or of o, a lane E columns of them.
    for (i32 task = warp; task < 2 * (NODES / 4); task += WARPS + 2) {
        const bool of_u = task < NODES / 4;
        const i32 start = 4 * (task % (NODES / 4));
        if (start >= nodes) continue;
        f32 out[4][E] = {};
        if (!of_u)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_words<E>(reinterpret_cast<u32*>(out[i]), rows + (NODES + start + i) * HEAD_DIM + own);
        const f32* const shares = gram + (of_u ? 0 : NODES) + start;
#pragma unroll 4
        for (i32 j = 0; j < start + 4; ++j) {
            f32 right[E], share[4];
            load_words<E>(reinterpret_cast<u32*>(right), rows + j * HEAD_DIM + own);
            load_words<4>(reinterpret_cast<u32*>(share), shares + j * GRAM);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int c = 0; c < E; ++c) out[i][c] += share[i] * right[c];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32* const words = reinterpret_cast<const u32*>(out[i]);
            if (!of_u)
                store_words<E>(rows + (NODES + start + i) * HEAD_DIM + own, words);
            else if (start + i < nodes)
                store_words<E>(added + (i64(start + i) * value_heads + p) * HEAD_DIM + own, words);
        }
    }
    __syncthreads();

#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const i32 t = warp + turn * WARPS;
        if (warp >= WARPS || t >= nodes) break;
        f32 o[E], sum = 0.0f;
        load_words<E>(reinterpret_cast<u32*>(o), rows + (NODES + t) * HEAD_DIM + own);
#pragma unroll
        for (int i = 0; i < E; ++i) sum += o[i] * o[i];
        const f32 scale = rsqrtf(warp_sum(sum) * (1.0f / HEAD_DIM) + eps);
        u32 words[E / 2];
#pragma unroll
        for (int i = 0; i < E; i += 2)
            words[i / 2] = pack_bf16(o[i] * scale * weight[i] * silu(low_bf16(gates[turn][i / 2])),
                                     o[i + 1] * scale * weight[i + 1] * silu(high_bf16(gates[turn][i / 2])));
        store_words<E / 2>(y + (i64(t) * value_heads + p) * HEAD_DIM + own, words);
    }
}
