// A Gated DeltaNet layer between its matrices over a tree of nodes, each going on from its parent: convolution along the
// ancestors, SiLU, unit q and k, gates, the delta rule, gated norm. The state S before the tree is read once and kept.
//
//   u_i = b_i (v_i - exp(G_i) S^T k_i - sum_{j < i} r_ij (k_j . k_i) u_j),      r_ij = exp(G_i - G_j), j an ancestor of i
//   o_i = (exp(G_i) S^T q_i + sum_{j <= i} r_ij (k_j . q_i) u_j) / sqrt(HEAD_DIM),  y = rms_norm(o, norm) * silu(z)
//
// x            bf16 (nodes, channels), channels = (2 key_heads + value_heads) * HEAD_DIM: q | k | v
// z, y         bf16 (nodes, value_heads * HEAD_DIM); or y null, and tiles of it with room for `held` nodes, as in
//              input_tiles.cuh
// alpha, beta  f32 (nodes, value_heads);  a, dt_bias f32 (value_heads);  norm f32 (HEAD_DIM)
// taps         f32 (channels, 4);  history f32 (3, channels);  state f32 (value_heads, HEAD_DIM keys, HEAD_DIM values)
// seen         u64 (nodes): bit j of word i says that j is i or an ancestor; ancestors stand before. No kernel of a
//              graph that has this one may write it: it is read early
// keys         f32 (nodes, key_heads, HEAD_DIM) unit k;  added f32 (nodes, value_heads, HEAD_DIM) u
// decays       f32 (nodes, value_heads) g;  inputs bf16 (nodes, channels), a copy of x
//
// Grid (value_heads), THREADS threads; nodes in 1 .. NODES, a multiple of 8. Block p takes value head p and key head
// p % key_heads. STATE_WARPS warps bring 16 columns of S each to registers, the first of them finds the gates as well, while
// the others make k, q and v; then those multiply S^T by all k and q, the others all k by all k and q, in float32's
// precision as two f16 (tree_products.cuh); rows q of S^T q take only the leading ones, 2^-12, far below the rounding of y.
// With A and P the products between nodes, (I + A) u = R and o += P u: a thread a column, in registers. G is
// summed in float64 and kept as two float32: after a deep decay differences of G must still be exact. history holds bf16
// values. Capturable. 16-byte aligned rows. sm_80+. The limit is the latency of the phases between barriers, and
// instructions that run once; only value_heads multiprocessors work.
#define STATE_WARPS (HEAD_DIM / 16)
#define WARPS (STATE_WARPS + 12)  // four for each of q, k and v
#define THREADS (32 * WARPS)
#define E (HEAD_DIM / 32)  // channels of a lane

#include "early.cuh"
#include "input_tiles.cuh"
#include "tree_inputs.cuh"

// Rows k of all nodes give R, in place of v, rows q the first summand of o.
SP_DEVICE void multiply_state(const u32 (&B)[STEPS][2][2][2], f32 unscale, u32 part_rows, f32* rows, const Numbers& numbers) {
    const i32 lane = threadIdx.x % 32, group = lane / 4;
#pragma unroll 1
    for (i32 top = 0; top < ROWS; top += 16) {
        f32 acc[2][2][4] = {};
        top < NODES ? multiply<2>(acc, part_rows + 2 * top * PART, B) : multiply<1>(acc, part_rows + 2 * top * PART, B);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const i32 row = top + group + 8 * i, node = row < NODES ? row : row - NODES;
            float4* const at = reinterpret_cast<float4*>(rows + row * HEAD_DIM);
            float4 four = row < NODES ? *at : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            const f32 last = row < NODES ? numbers.strengths[node] : rsqrtf(f32(HEAD_DIM));
            const f32 scale = row < NODES ? -numbers.grown[node] * unscale : numbers.grown[node] * unscale;
            four.x = last * (four.x + scale * (acc[0][0][2 * i] + acc[1][0][2 * i]));
            four.y = last * (four.y + scale * (acc[0][1][2 * i] + acc[1][1][2 * i]));
            four.z = last * (four.z + scale * (acc[0][0][2 * i + 1] + acc[1][0][2 * i + 1]));
            four.w = last * (four.w + scale * (acc[0][1][2 * i + 1] + acc[1][1][2 * i + 1]));
            *at = four;
        }
    }
}

// Tiles of 16 rows and 8 keys, every twelfth from `tile` on, of A and P; those above the diagonal are not needed.
SP_DEVICE void multiply_nodes(i32 tile, const u16* parts, u32 part_rows, f32* gram, const Numbers& numbers) {
    const i32 lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
#pragma unroll 1
    for (; tile < ROWS / 16 * (NODES / 8); tile += WARPS - STATE_WARPS) {
        const i32 top = tile / (NODES / 8) * 16, left = tile % (NODES / 8) * 8;
        const i32 last_row = top + 15;
        if (last_row < NODES ? last_row < left : top >= NODES && last_row - NODES < left) continue;
        f32 acc[4][4] = {};
        multiply_keys(acc, part_rows + 2 * top * PART, shared_address(parts + (left + lane % 8) * PART + lane / 8 % 2 * 8));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i32 row = top + group + i / 2 * 8, node = row < NODES ? row : row - NODES;
            const i32 j = left + 2 * pair + i % 2;
            const float2 low = numbers.sums[j], high = numbers.sums[node];
            const f32 decay = expf((high.x - low.x) + (high.y - low.y));
            const f32 ratio = numbers.lines[node] >> j & 1 ? decay / (UNIT * UNIT) : 0.0f;
            const f32 sum = (acc[0][i] + acc[1][i]) + (acc[2][i] + acc[3][i]);
            gram[j * GRAM + row] = ratio * (row < NODES ? numbers.strengths[node] : rsqrtf(f32(HEAD_DIM))) * sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    delta_tree(const u16* x, const u16* z, const f32* alpha, const f32* beta, const f32* __restrict__ taps,
               const f32* __restrict__ a, const f32* __restrict__ dt_bias, const f32* __restrict__ norm,
               const f32* history, const f32* state, const u64* seen, u16* y, u8* tiles, i32 held, f32* keys,
               f32* added, f32* decays, u16* inputs, i32 nodes, i32 key_heads, i32 value_heads, f32 eps) {
    extern __shared__ __align__(16) u8 shared[];
    u16* const parts = reinterpret_cast<u16*>(shared);                     // (2, ROWS, PART): k and q
    f32* const rows = reinterpret_cast<f32*>(parts + 2 * ROWS * PART);     // (ROWS, HEAD_DIM): v, R, u; S^T q, o
    f32* const gram = rows + ROWS * HEAD_DIM;                              // (NODES, GRAM): A and P
    Numbers& numbers = *reinterpret_cast<Numbers*>(gram + NODES * GRAM);
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, group = lane / 4, pair = lane % 4;
    const i32 p = blockIdx.x, head = p % key_heads;
    const i32 own = E * lane;  // first channel of the lane

    for (i32 line = thread; line < HEAD_DIM * HEAD_DIM / 32; line += THREADS)
        prefetch_l2(state + i64(p) * HEAD_DIM * HEAD_DIM + line * 32);
    const u32 part_rows = shared_address(parts + lane % 16 * PART + lane / 16 * 8);
    if (warp < STATE_WARPS) {
        constexpr int SETS = (NODES + 31) / 32;  // nodes of a lane, where a warp takes them all
        f32 alphas[SETS] = {}, betas[SETS] = {};
        u64 lines[SETS] = {};
        const f32 rate = a[p], bias = dt_bias[p];
#pragma unroll
        for (int set = 0; set < SETS; ++set)
            if (warp == 0 && lane + 32 * set < nodes) lines[set] = seen[lane + 32 * set];
        wait_for_earlier();
#pragma unroll
        for (int set = 0; set < SETS; ++set) {
            const i64 at = i64(lane + 32 * set) * value_heads + p;
            if (warp == 0 && lane + 32 * set < nodes) alphas[set] = alpha[at], betas[set] = beta[at];
        }
        float2 S[STEPS][4];
        const f32* const from = state + (i64(p) * HEAD_DIM + 2 * pair) * HEAD_DIM + 16 * warp + 2 * group;
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                S[step][i] = *reinterpret_cast<const float2*>(from + (16 * step + i % 2 + 8 * (i / 2)) * HEAD_DIM);
        if (warp == 0) find_gates(numbers, alphas, betas, lines, rate, bias, decays + p, value_heads, nodes);
        u32 B[STEPS][2][2][2];
        const f32 unscale = take_state(B, S);
        meet();
        let_next_start();  // not before the state is here: the next kernel's reads would delay it
        multiply_state(B, unscale, part_rows, rows + 16 * warp + 4 * pair, numbers);
    } else {
        const i32 worker = warp - STATE_WARPS, part = worker % 3;
        const bool first = p < key_heads;  // of the blocks of this key head
        const i32 at = (part == 0 ? head : part == 1 ? key_heads + head : 2 * key_heads + p) * HEAD_DIM + own;
        Channels c;
        c.x = x + at, c.taps = taps + 4 * at, c.history = history + at;
        c.inputs = first || part == 2 ? inputs + at : nullptr;
        c.all = (2 * key_heads + value_heads) * HEAD_DIM;
        c.keys = first && part == 1 ? keys + head * HEAD_DIM + own : nullptr;
        c.all_keys = key_heads * HEAD_DIM;
        c.parts = part == 2 ? nullptr : parts + (part == 0 ? NODES * PART : 0) + own;
        c.values = rows + own;
        mix(c, seen, worker / 3, nodes, eps);
        meet();
        let_next_start();
        multiply_nodes(worker, parts, part_rows, gram, numbers);
    }
    constexpr int TURNS = (NODES + WARPS - 1) / WARPS;  // rows of y that a warp writes
    u32 gates[TURNS][E / 2];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
        if (warp + turn * WARPS < nodes)
            load_words<E / 2>(gates[turn], z + (i64(warp + turn * WARPS) * value_heads + p) * HEAD_DIM + own);
    f32 weight[E];
    load_words<E>(reinterpret_cast<u32*>(weight), norm + own);
    __syncthreads();
    if (thread < HEAD_DIM) solve(rows + thread, gram, nodes);
    __syncthreads();

#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const i32 t = warp + turn * WARPS;
        if (t >= nodes) break;
        f32 u[E], o[E], sum = 0.0f;
        load_words<E>(reinterpret_cast<u32*>(u), rows + t * HEAD_DIM + own);
        store_words<E>(added + (i64(t) * value_heads + p) * HEAD_DIM + own, reinterpret_cast<const u32*>(u));
        load_words<E>(reinterpret_cast<u32*>(o), rows + (NODES + t) * HEAD_DIM + own);
#pragma unroll
        for (int i = 0; i < E; ++i) sum += o[i] * o[i];
        const f32 scale = rsqrtf(warp_sum(sum) * (1.0f / HEAD_DIM) + eps);
#pragma unroll
        for (int i = 0; i < E; ++i) {
            const u32 gate = gates[turn][i / 2];
            o[i] *= scale * weight[i] * silu(i % 2 ? high_bf16(gate) : low_bf16(gate));
        }
        u32 words[E / 2];
        if (y) {
#pragma unroll
            for (int i = 0; i < E; i += 2) words[i / 2] = pack_bf16(o[i], o[i + 1]);
            store_words<E / 2>(y + (i64(t) * value_heads + p) * HEAD_DIM + own, words);
            continue;
        }
        f32 total = 0.0f;
#pragma unroll
        for (int i = 0; i < E; i += 2) {
            const u32 word = words[i / 2] = pack_f16(tile_value(o[i]), tile_value(o[i + 1]));
            total += low_f16(word) + high_f16(word);
        }
#pragma unroll
        for (int offset = 1; offset < 16 / E; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
        const i32 k = p * HEAD_DIM + own;
        store_words<E / 2>(tiles + tile_place(held, t, k), words);
        if (k % 16 == 0) store_tile_sum(tiles, i64(value_heads) * HEAD_DIM, held, t, k, total);
    }
}
