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
// seen         u64 (nodes): bit j of word i says that j is i or an ancestor; ancestors stand before
// keys         f32 (nodes, key_heads, HEAD_DIM) unit k;  added f32 (nodes, value_heads, HEAD_DIM) u
// decays       f32 (nodes, value_heads) g;  inputs bf16 (nodes, channels), a copy of x
// state, history and seen are read while the kernels before still run: in a graph none of these may write them.
//
// Grid (PARTS * value_heads), THREADS threads; nodes in 1 .. NODES, a multiple of 8. PARTS blocks, from compute capability 9.0
// a cluster of two, take value head p and key head p % key_heads, half of the columns of S, v, u, o and y each; what k and q
// alone decide they both find. STATE_WARPS warps bring S to registers, the first of them finds the gates as well, while the
// others make k, q and v; then those multiply S^T by all k and q, the others all k by all k and q, as two f16
// (tree_products.cuh): 22 bits; rows q of S^T q take the leading one alone, 2^-12, far below the rounding of y. With A and P
// the products between nodes, (I + A) u = R is solved by a thread a column, then a warp a node adds P u to o. G is summed in
// float64 and kept as two float32: after a deep decay differences of G must still be exact. history holds bf16 values.
// Capturable. 16-byte aligned rows. sm_80+; PARTS 2 sm_90+. The limit is the latency of the phases between barriers.
#define STATE_WARPS (HEAD_DIM / 16)
#define WARPS (STATE_WARPS + 12)  // four for each of q, k and v
#define THREADS (32 * WARPS)
#define E (HEAD_DIM / 32)  // channels of a lane
#define OWN (E / PARTS)    // columns of a lane

#include "pdl.cuh"
#include "input_tiles.cuh"
#include "tree_inputs.cuh"
#include "tree_pair.cuh"

// Rows k of all nodes give R, in place of v, rows q the first summand of o.
SP_DEVICE void multiply_state(const u32 (&B)[STEPS][TILES][2][2], f32 unscale, u32 part_rows, f32* rows,
                              const Numbers& numbers) {
    const i32 lane = threadIdx.x % 32, group = lane / 4;
#pragma unroll 1
    for (i32 top = 0; top < ROWS; top += 16) {
        f32 acc[CHAINS][TILES][4] = {};
        top < NODES ? multiply<2>(acc, part_rows + 2 * top * PART, B) : multiply<1>(acc, part_rows + 2 * top * PART, B);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const i32 row = top + group + 8 * i, node = row < NODES ? row : row - NODES;
            const f32 last = row < NODES ? numbers.strengths[node] : rsqrtf(f32(HEAD_DIM));
            const f32 scale = row < NODES ? -numbers.grown[node] * unscale : numbers.grown[node] * unscale;
            f32 out[2 * TILES] = {};
            if (row < NODES) load_words<2 * TILES>(reinterpret_cast<u32*>(out), rows + row * LINE);
#pragma unroll
            for (int c = 0; c < 2 * TILES; ++c) {
                f32 sum = acc[0][c % TILES][2 * i + c / TILES];
#pragma unroll
                for (int chain = 1; chain < CHAINS; ++chain) sum += acc[chain][c % TILES][2 * i + c / TILES];
                out[c] = last * (out[c] + scale * sum);
            }
            store_words<2 * TILES>(rows + row * LINE, reinterpret_cast<const u32*>(out));
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

extern "C" __global__ void SP_PAIRED __launch_bounds__(THREADS, 1)
    delta_tree(const u16* x, const u16* z, const f32* alpha, const f32* beta, const f32* __restrict__ taps,
               const f32* __restrict__ a, const f32* __restrict__ dt_bias, const f32* __restrict__ norm,
               const f32* history, const f32* state, const u64* seen, u16* y, u8* tiles, i32 held, f32* keys,
               f32* added, f32* decays, u16* inputs, i32 nodes, i32 key_heads, i32 value_heads, f32 eps) {
    constexpr int SETS = (NODES + 31) / 32;  // nodes of a lane, where a warp takes them all
    extern __shared__ __align__(16) u8 shared[];
    u16* const parts = reinterpret_cast<u16*>(shared);  // (2, ROWS, PART): k and q
    Numbers& numbers = *reinterpret_cast<Numbers*>(parts + 2 * ROWS * PART);
    Mail& mail = *reinterpret_cast<Mail*>(&numbers + 1);
    f32* const rows = reinterpret_cast<f32*>(&mail + 1);  // (ROWS, LINE): v, R, u; S^T q
    f32* const gram = rows + ROWS * LINE;                 // (NODES, GRAM): A and P
    u16* const raw = reinterpret_cast<u16*>(rows + NODES * LINE);  // before S^T q and gram: (3, 3 + NODES, HEAD_DIM)
    const i32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, group = lane / 4, pair = lane % 4;
    const i32 p = blockIdx.x / PARTS, head = p % key_heads, rank = blockIdx.x % PARTS;
    const i32 skipped = rank * COLUMNS, own = skipped + OWN * lane;  // first column of the block, of the lane

    open_mail(mail, nodes);
    const u32 part_rows = shared_address(parts + lane % 16 * PART + lane / 16 * 8);
    u32 B[STEPS][TILES][2][2];
    f32 unscale;
    if (warp < STATE_WARPS) {
        f32 S[STEPS][4][TILES];
        const f32* const from = state + (i64(p) * HEAD_DIM + 2 * pair) * HEAD_DIM + skipped + TILES * (8 * warp + group);
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_words<TILES>(reinterpret_cast<u32*>(S[step][i]), from + (16 * step + i % 2 + 8 * (i / 2)) * HEAD_DIM);
        f32 alphas[SETS] = {}, betas[SETS] = {};
        u64 lines[SETS] = {};
        const f32 rate = a[p], bias = dt_bias[p];
#pragma unroll
        for (int set = 0; set < SETS; ++set)
            if (warp == 0 && lane + 32 * set < nodes) lines[set] = seen[lane + 32 * set];
        unscale = take_state(B, S);
#ifdef SP_DEBUG  // where the others share their inputs, see mix
        __syncthreads();
#endif
        pdl_wait();
#pragma unroll
        for (int set = 0; set < SETS; ++set) {
            const i64 at = i64(lane + 32 * set) * value_heads + p;
            if (warp == 0 && lane + 32 * set < nodes) alphas[set] = alpha[at], betas[set] = beta[at];
        }
        if (warp == 0) find_gates(numbers, alphas, betas, lines, rate, bias, decays + p, value_heads, nodes);
    } else {
        const i32 worker = warp - STATE_WARPS, part = worker % 3;
        const bool first = p < key_heads && rank == 0;  // of the blocks of this key head
        const i32 at = (part == 0 ? head : part == 1 ? key_heads + head : 2 * key_heads + p) * HEAD_DIM;
        Channels c;
        c.x = x + at, c.taps = taps + 4 * at, c.history = history + at;
        c.inputs = first || part == 2 && rank == 0 ? inputs + at : nullptr;
        c.all = (2 * key_heads + value_heads) * HEAD_DIM;
        c.keys = first && part == 1 ? keys + head * HEAD_DIM : nullptr;
        c.all_keys = key_heads * HEAD_DIM;
        c.raw = raw + part * (3 + NODES) * HEAD_DIM;
        c.parts = part == 2 ? nullptr : parts + (part == 0 ? NODES * PART : 0);
        c.values = rows, c.skipped = skipped;
        mix(c, seen, worker / 3, 1 + part, nodes, eps);
    }
    __syncthreads();
    pdl_launch_dependents();  // not before the state is here: the next kernel's reads would delay it

    // The last warps solve, the others write rows of y.
    constexpr int WRITERS = WARPS - COLUMNS / 32, TURNS = (NODES + WRITERS - 1) / WRITERS;
    u32 gates[TURNS][OWN / 2];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
        if (warp < WRITERS && warp + turn * WRITERS < nodes)
            load_words<OWN / 2>(gates[turn], z + (i64(warp + turn * WRITERS) * value_heads + p) * HEAD_DIM + own);
    f32 weight[OWN];
    load_words<OWN>(reinterpret_cast<u32*>(weight), norm + own);
    if (warp < STATE_WARPS)
        multiply_state(B, unscale, part_rows, rows + TILES * (8 * warp + 2 * pair), numbers);
    else
        multiply_nodes(warp - STATE_WARPS, parts, part_rows, gram, numbers);
    __syncthreads();
    f32 factors[TURNS][OWN], o[TURNS][OWN], shares[TURNS][SETS];
    u8* places[TURNS][3];  // of y, or of its tile values and the two parts of their mean
    if (warp >= WRITERS)
        solve(rows + thread - 32 * WRITERS, gram, nodes);
    else
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const i32 t = warp + turn * WRITERS, k = p * HEAD_DIM + own;
            if (t >= nodes) break;
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const u32 gate = gates[turn][i / 2];
                factors[turn][i] = weight[i] * silu_rcp(i % 2 ? high_bf16(gate) : low_bf16(gate));
            }
            load_words<OWN>(reinterpret_cast<u32*>(o[turn]), rows + (NODES + t) * LINE + OWN * lane);
#pragma unroll
            for (int set = 0; set < SETS; ++set)
                shares[turn][set] = gram[min(lane + 32 * set, NODES - 1) * GRAM + NODES + t];
            u8* const row = reinterpret_cast<u8*>(y + i64(t) * value_heads * HEAD_DIM + k);
            places[turn][0] = y ? row : tiles + tile_place(held, t, k);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                places[turn][1 + i] = tiles + tile_sum_place(i64(value_heads) * HEAD_DIM, held, t, k, i);
#pragma unroll
            for (int i = 0; i < 3; ++i) asm volatile("" : "+l"(places[turn][i]));  // found while others solve
        }
    __syncthreads();

    f32 squares[TURNS];
    wait_for_open_mail();
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const i32 t = warp + turn * WRITERS;
        if (warp >= WRITERS || t >= nodes) break;
        f32 u[OWN];
#pragma unroll 4
        for (i32 j = 0; j <= t; ++j) {
            load_words<OWN>(reinterpret_cast<u32*>(u), rows + j * LINE + OWN * lane);
            const f32 mine = j < 32 ? shares[turn][0] : shares[turn][SETS - 1];
            const f32 share = __shfl_sync(~0u, mine, j % 32);
#pragma unroll
            for (int i = 0; i < OWN; ++i) o[turn][i] += share * u[i];
        }
        squares[turn] = 0.0f;
#pragma unroll
        for (int i = 0; i < OWN; ++i) squares[turn] += o[turn][i] * o[turn][i];
        squares[turn] = warp_sum(squares[turn]);
        if (lane == 0) send(mail, rank ^ 1, t, squares[turn]);
        store_words<OWN>(added + (i64(t) * value_heads + p) * HEAD_DIM + own, reinterpret_cast<const u32*>(u));
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const i32 t = warp + turn * WRITERS;
        if (warp >= WRITERS || t >= nodes) break;
        const f32 scale = rsqrtf(add_other(mail, t, squares[turn]) * (1.0f / HEAD_DIM) + eps);
#pragma unroll
        for (int i = 0; i < OWN; ++i) o[turn][i] *= scale * factors[turn][i];
        u32 words[OWN / 2];
        if (y) {
#pragma unroll
            for (int i = 0; i < OWN; i += 2) words[i / 2] = pack_bf16(o[turn][i], o[turn][i + 1]);
            store_words<OWN / 2>(places[turn][0], words);
            continue;
        }
        f32 total = 0.0f;
#pragma unroll
        for (int i = 0; i < OWN; i += 2) {
            const f32 first = tile_value(o[turn][i], 1 / UNIT_SCALE), second = tile_value(o[turn][i + 1], 1 / UNIT_SCALE);
            const u32 word = words[i / 2] = pack_f16(first, second);
            total += low_f16(word) + high_f16(word);
        }
        store_words<OWN / 2>(places[turn][0], words);
#pragma unroll
        for (int offset = 1; offset < 16 / OWN; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
        const f32 mean = total * (1.0f / 16);
        const u16 high = f16_from(mean);
        if (own % 16 == 0) {
            *reinterpret_cast<u16*>(places[turn][1]) = high;
            *reinterpret_cast<u16*>(places[turn][2]) = f16_from(mean - f32_from_f16(high));
        }
    }
    if (!y && blockIdx.x == 0 && threadIdx.x < nodes)
        tile_scales(tiles, i64(value_heads) * HEAD_DIM, held)[threadIdx.x] = UNIT_SCALE;
}
