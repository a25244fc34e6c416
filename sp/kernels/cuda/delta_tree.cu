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
// Grid (value_heads), 2 * HEAD_DIM + 32 threads; nodes in 1 .. NODES, a multiple of 8. Block p takes value head p and key head
// p % key_heads. Rows k and q of all nodes meet [S | K^T] on the tensor cores, every number as a sum of three bf16, which
// hold float32's 24 bits (Henry, Tang, Heinecke 2019): rows that lead to u take the six products above 2^-24, rows q
// alone the three above 2^-16, far below the rounding of y. A warp has 16 columns of S, for all keys, in registers, and
// 8 columns of K^T. Then u by substitution in the order of the nodes, a thread a column. G is summed in float64: after a
// deep decay differences of G must still be exact. Capturable. 16-byte aligned rows. sm_80+. The limit is the latency of
// the five phases, and for many nodes the tensor cores; only value_heads multiprocessors work.
#include "early.cuh"
#include "gates.cuh"

#define WARPS (HEAD_DIM / 16)        // and one more for the gates
#define THREADS (32 * (WARPS + 1))
#define E (HEAD_DIM / 32)            // channels of a lane
#define WIDTH (3 * HEAD_DIM)         // q, k and v of a node
#define GRAM (ROWS + 4)              // row of the products between nodes

#include "tree_products.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    delta_tree(const u16* x, const u16* z, const f32* alpha, const f32* beta, const f32* __restrict__ taps,
               const f32* __restrict__ a, const f32* __restrict__ dt_bias, const f32* __restrict__ norm,
               const f32* history, const f32* state, const u64* seen, u16* y, f32* keys, f32* added, f32* decays,
               u16* inputs, i32 nodes, i32 key_heads, i32 value_heads, f32 eps) {
    extern __shared__ __align__(16) u8 shared[];
    u16* const parts = reinterpret_cast<u16*>(shared);                   // (3, ROWS, PART): k and q
    f64* const sums = reinterpret_cast<f64*>(parts + 3 * ROWS * PART);   // G
    u64* const lines = reinterpret_cast<u64*>(sums + NODES);             // seen
    f32* const logs = reinterpret_cast<f32*>(lines + NODES);             // g
    f32* const grown = logs + NODES;                                     // exp(G)
    f32* const strengths = grown + NODES;                                // b
    f32* const rows = strengths + NODES;                                 // (ROWS, HEAD_DIM): v, then u; S^T q, then o
    f32* const gram = rows + ROWS * HEAD_DIM;                            // (NODES, GRAM): node j, then rows k and q
    // Before S^T q and the products: the inputs of the convolution.
    f32* const past = rows + NODES * HEAD_DIM;                           // (3, WIDTH), oldest first
    u16* const raw = reinterpret_cast<u16*>(past + 3 * WIDTH);           // (NODES, WIDTH)
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, group = lane / 4, pair = lane % 4;
    const i32 p = blockIdx.x, head = p % key_heads;
    const bool first = p < key_heads;  // of the blocks of this key head
    const i32 channels = (2 * key_heads + value_heads) * HEAD_DIM;
    const i32 own = E * lane;  // first channel of the lane
    // Where a head's part of a row begins: of q, k or v.
    auto begin = [&](i32 part) { return (part == 0 ? head : part == 1 ? key_heads + head : 2 * key_heads + p) * HEAD_DIM; };

    for (i32 line = thread; line < HEAD_DIM * HEAD_DIM / 32; line += THREADS)
        prefetch_l2(state + i64(p) * HEAD_DIM * HEAD_DIM + line * 32);
    float4 tap[3][E];
    f32 weight[E], rate = 0.0f, bias = 0.0f;
    if (warp < WARPS) {
#pragma unroll
        for (int part = 0; part < 3; ++part)
#pragma unroll
            for (int i = 0; i < E; ++i)
                tap[part][i] = *reinterpret_cast<const float4*>(taps + (begin(part) + own + i) * 4);
#pragma unroll
        for (int i = 0; i < E; ++i) weight[i] = norm[own + i];
    } else {
        rate = a[p], bias = dt_bias[p];
    }
    wait_for_earlier();
    for (i32 item = thread; item < nodes * (WIDTH / 8); item += THREADS) {
        const i32 t = item / (WIDTH / 8), c = item % (WIDTH / 8) * 8;
        cp_async_16(shared_address(raw + t * WIDTH + c), x + i64(t) * channels + begin(c / HEAD_DIM) + c % HEAD_DIM);
    }
    for (i32 item = thread; item < 3 * WIDTH / 4; item += THREADS) {
        const i32 t = item / (WIDTH / 4), c = item % (WIDTH / 4) * 4;
        cp_async_16(shared_address(past + t * WIDTH + c),
                    history + i64(t) * channels + begin(c / HEAD_DIM) + c % HEAD_DIM);
    }
    cp_async_commit();
    u64 all_lines = 0;  // of the warp's nodes, a lane each
    float2 S[STEPS][4];  // keys 16 step + 2 pair + {0, 1, 8, 9}, 2 columns
    if (warp < WARPS) {
        if (warp + WARPS * lane < nodes) all_lines = seen[warp + WARPS * lane];
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const i32 key = 16 * step + 2 * pair + i % 2 + 8 * (i / 2);
                S[step][i] =
                    *reinterpret_cast<const float2*>(state + (i64(p) * HEAD_DIM + key) * HEAD_DIM + 16 * warp + 2 * group);
            }
    } else {
        for (i32 t = lane; t < NODES; t += 32) {
            const bool real = t < nodes;
            const i64 at = i64(t) * value_heads + p;
            const f32 g = real ? rate * softplus(alpha[at] + bias) : 0.0f;
            lines[t] = real ? seen[t] : 0, logs[t] = g, strengths[t] = real ? sigmoid(beta[at]) : 0.0f;
            if (real) decays[at] = g;
        }
    }
    cp_async_wait<0>();
    __syncthreads();
    if (warp == WARPS) {
        for (i32 t = lane; t < NODES; t += 32) {
            const u64 line = lines[t];
            f64 sum = 0;
#pragma unroll 8
            for (i32 j = 0; j < NODES; ++j) sum += line >> j & 1 ? f64(logs[j]) : 0.0;
            sums[t] = sum, grown[t] = expf(f32(sum));
        }
        for (i32 item = first ? lane : 2 * HEAD_DIM / 8 * nodes + lane; item < nodes * (WIDTH / 8); item += 32) {
            const i32 c = item / (HEAD_DIM / 8) / nodes * HEAD_DIM + item % (HEAD_DIM / 8) * 8;
            const i32 t = item / (HEAD_DIM / 8) % nodes;
            *reinterpret_cast<uint4*>(inputs + i64(t) * channels + begin(c / HEAD_DIM) + c % HEAD_DIM) =
                *reinterpret_cast<const uint4*>(raw + t * WIDTH + c);
        }
    }
    if (warp < WARPS)
#pragma unroll 1
        for (i32 t = warp; t < NODES; t += WARPS) {
            f32 mixed[3][E] = {};
            if (t < nodes) {
                // The node, then its nearest ancestors, then the history, newest first.
                u64 above = __shfl_sync(~0u, all_lines, (t - warp) / WARPS) & ((u64(1) << t) - 1);
                i32 slot = t, old = 3;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    if (j > 0) {
                        slot = above ? 63 - __clzll(i64(above)) : -1;
                        above &= above ? (u64(1) << slot) - 1 : 0;
                    }
                    f32 in[3][E];
                    if (slot >= 0) {
#pragma unroll
                        for (int part = 0; part < 3; ++part) {
                            u32 words[E / 2];
                            load_words<E / 2>(words, raw + slot * WIDTH + part * HEAD_DIM + own);
#pragma unroll
                            for (int i = 0; i < E; i += 2)
                                in[part][i] = low_bf16(words[i / 2]), in[part][i + 1] = high_bf16(words[i / 2]);
                        }
                    } else {
                        --old;
#pragma unroll
                        for (int part = 0; part < 3; ++part)
                            load_words<E>(reinterpret_cast<u32*>(in[part]), past + old * WIDTH + part * HEAD_DIM + own);
                    }
#pragma unroll
                    for (int part = 0; part < 3; ++part)
#pragma unroll
                        for (int i = 0; i < E; ++i) {
                            const float4 w = tap[part][i];
                            mixed[part][i] += (j == 0 ? w.w : j == 1 ? w.z : j == 2 ? w.y : w.x) * in[part][i];
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
            qq = rsqrtf(warp_sum(qq) + eps) * rsqrtf(f32(HEAD_DIM)), kk = rsqrtf(warp_sum(kk) + eps);
#pragma unroll
            for (int i = 0; i < E; ++i) mixed[0][i] *= qq, mixed[1][i] *= kk;
            store_parts(parts + t * PART + own, mixed[1]);
            store_parts(parts + (NODES + t) * PART + own, mixed[0]);
            store_words<E>(rows + t * HEAD_DIM + own, reinterpret_cast<const u32*>(mixed[2]));
            if (first && t < nodes)
                store_words<E>(keys + (i64(t) * key_heads + head) * HEAD_DIM + own,
                               reinterpret_cast<const u32*>(mixed[1]));
        }
    __syncthreads();
    let_next_start();  // not before the state is here: the next kernel's reads would delay it

    if (warp < WARPS) {
        u32 B[STEPS][2][3][2];
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float2 low = S[step][2 * half], high = S[step][2 * half + 1];
#pragma unroll
                for (int part = 0; part < 3; ++part) {
                    take_part(B[step][0][part][half], low.x, high.x);
                    take_part(B[step][1][part][half], low.y, high.y);
                }
            }
        const u32 part_rows = shared_address(parts + lane % 16 * PART + lane / 16 * 8);
        const u32 part_keys = shared_address(parts + (warp * 8 + lane % 8) * PART + lane / 8 % 2 * 8);
        const i32 tiles = (NODES / 8 - warp + WARPS - 1) / WARPS;  // of K^T, every WARPS-th one
#pragma unroll 1
        for (i32 top = 0; top < ROWS; top += 16) {
            f32 acc[2][2 + GRAM_TILES][4] = {};
            if (top < NODES)
                multiply<3>(acc, part_rows + 2 * top * PART, B, part_keys, tiles);
            else
                multiply<2>(acc, part_rows + 2 * top * PART, B, part_keys, tiles);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const i32 row = top + group + 8 * half;
                const bool of_key = row < NODES;
                const i32 node = of_key ? row : row - NODES;
                f32 sum[2 + GRAM_TILES][2];
#pragma unroll
                for (int tile = 0; tile < 2 + GRAM_TILES; ++tile)
#pragma unroll
                    for (int i = 0; i < 2; ++i) sum[tile][i] = acc[0][tile][2 * half + i] + acc[1][tile][2 * half + i];
                const f32 scale = grown[node], strength = strengths[node];
                float4* const at = reinterpret_cast<float4*>(rows + row * HEAD_DIM + 16 * warp + 4 * pair);
                float4 four = make_float4(scale * sum[0][0], scale * sum[1][0], scale * sum[0][1], scale * sum[1][1]);
                if (of_key) {
                    const float4 v = *at;
                    four = make_float4(strength * (v.x - four.x), strength * (v.y - four.y), strength * (v.z - four.z),
                                       strength * (v.w - four.w));
                }
                *at = four;
                const u64 line = lines[node];
                const f64 end = sums[node];
#pragma unroll
                for (int tile = 0; tile < GRAM_TILES; ++tile)
                    if (tile < tiles)
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const i32 j = 8 * (warp + tile * WARPS) + 2 * pair + i;
                            const f32 ratio = line >> j & 1 ? expf(f32(end - sums[j])) : 0.0f;
                            gram[j * GRAM + row] = ratio * (of_key ? strength : 1.0f) * sum[2 + tile][i];
                        }
            }
        }
    }
    constexpr int TURNS = (NODES + WARPS - 1) / WARPS;  // rows of y that a warp writes
    u32 gates[TURNS][E / 2];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
        if (warp < WARPS && warp + turn * WARPS < nodes)
            load_words<E / 2>(gates[turn], z + (i64(warp + turn * WARPS) * value_heads + p) * HEAD_DIM + own);
    __syncthreads();

    const i32 column = thread % HEAD_DIM;
    if (thread < HEAD_DIM)
        for (i32 start = 0; start < nodes; start += 8) {
            f32 u[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) u[i] = rows[(start + i) * HEAD_DIM + column];
#pragma unroll 8
            for (i32 j = 0; j < start; ++j) {
                const f32 above = rows[j * HEAD_DIM + column];
                const float4 low = *reinterpret_cast<const float4*>(gram + j * GRAM + start);
                const float4 high = *reinterpret_cast<const float4*>(gram + j * GRAM + start + 4);
                u[0] -= low.x * above, u[1] -= low.y * above, u[2] -= low.z * above, u[3] -= low.w * above;
                u[4] -= high.x * above, u[5] -= high.y * above, u[6] -= high.z * above, u[7] -= high.w * above;
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                f32 share[8];
                load_words<4>(reinterpret_cast<u32*>(share), gram + (start + j) * GRAM + start);
                load_words<4>(reinterpret_cast<u32*>(share) + 4, gram + (start + j) * GRAM + start + 4);
#pragma unroll
                for (int i = j + 1; i < 8; ++i) u[i] -= share[i] * u[j];
                rows[(start + j) * HEAD_DIM + column] = u[j];
                if (start + j < nodes) added[(i64(start + j) * value_heads + p) * HEAD_DIM + column] = u[j];
            }
        }
    __syncthreads();

    for (i32 start = thread < 2 * HEAD_DIM ? 8 * (thread / HEAD_DIM) : nodes; start < nodes; start += 16) {
        f32 o[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) o[i] = rows[(NODES + start + i) * HEAD_DIM + column];
#pragma unroll 8
        for (i32 j = 0; j < start + 8; ++j) {
            const f32 u = rows[j * HEAD_DIM + column];
            const float4 low = *reinterpret_cast<const float4*>(gram + j * GRAM + NODES + start);
            const float4 high = *reinterpret_cast<const float4*>(gram + j * GRAM + NODES + start + 4);
            o[0] += low.x * u, o[1] += low.y * u, o[2] += low.z * u, o[3] += low.w * u;
            o[4] += high.x * u, o[5] += high.y * u, o[6] += high.z * u, o[7] += high.w * u;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) rows[(NODES + start + i) * HEAD_DIM + column] = o[i];
    }
    __syncthreads();

#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const i32 t = warp + turn * WARPS;
        if (warp == WARPS || t >= nodes) break;
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
