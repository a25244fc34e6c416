// Attention of few query rows over a long paged cache, split over the cache: decoding and verification of drafts.
//
//   out[i, h] = sum_j softmax_j(q[i, h] . k[j, h / group] / sqrt(d)) v[j, h / group],  j <= total - n + i
//   then, where FINISH: hadamard_64(out) if ROTATE, * sigmoid(gate) if there is one; bf16.
//
// The n * group query rows that share a kv head are the columns of transposed products: S^T = K Q^T and O^T = V^T P^T, with
// tokens (then dims) as the 16 rows of mma.m16n8k16 and 8 TILES query rows as its columns. One token of decoding with 6 heads a
// group then fills 6 of 8 columns, and a key byte is read and unpacked once. Dims and tokens inside a fragment may stand in
// any order as long as both operands agree: threads take them in the order that makes their loads of packed blocks whole words.
//
// Work: split x of a kv head takes a run of tokens, its warps every WARPS-th tile of 16 tokens, each through a ring of SLOTS
// units (16 tokens of K or of V) of its own, filled by cp.async. Scores are kept relative to a row reference 2^10 below the
// largest score at the time it was set, which moves only when a score passes it by 2^14: probabilities stay normal f16 numbers down
// to 2^-24 of the largest. Warps are merged in a fixed tree; of several splits the last to finish merges all, in fixed order.
//
// Layouts: q (n, heads, d) f16; pages (pool_pages, 128, kv_heads, row bytes) f16 or Q4_0; table i32; tokens i32 or null, `more`
//   is added to it; wide (n, heads, 2 d) bf16 or null; out (n, heads, d); partial: PARTIAL_FLOATS a (row group, kv head, split);
//   counters u32 a (row group, kv head), zero before and after.
// Launch: (splits, kv_heads, row groups) blocks of 32 WARPS threads; the grid may stay while the cache grows. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; Q4; TILES; WARPS; SLOTS; SPLIT_TOKENS (fewest a split); ROTATE (needs Q4); FINISH.
// Dao et al., "Flash-Decoding for long-context inference", 2023; lazy rescaling as in FlashAttention-4.
#include "head_row.cuh"

constexpr int D = HEAD_DIM, GROUPS = D / 64, STEPS = D / 16;
constexpr int ROW = Q4 ? D / 32 * 18 : 2 * D;
constexpr int PITCH = Q4 ? (D == 256 ? 144 : D == 128 ? 80 : 48) : 2 * D;  // Q4: 4 banks on from row to row
constexpr int CHUNK = !Q4 || D == 256 ? 16 : D == 128 ? 8 : 4;             // a row of a page is that aligned
constexpr int UNIT = 16 * PITCH, ROWS = 8 * TILES;
constexpr int QUADS = (4 * GROUPS + 1) * TILES;  // float4 a lane of a warp's state
constexpr f32 HEADROOM = 14.0f, OFFSET = 10.0f, NEVER = -1e30f;

extern __shared__ __align__(16) u8 shared[];

struct State {
    f32 o[4 * GROUPS][TILES][4];
    f32 reference[TILES][2], total[TILES][2];

    SP_DEVICE void clear() {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            reference[t][0] = reference[t][1] = NEVER, total[t][0] = total[t][1] = 0;
#pragma unroll
            for (int m = 0; m < 4 * GROUPS; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) o[m][t][i] = 0;
        }
    }

    SP_DEVICE void store(float4* to, u32 lane) const {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            to[t * 32 + lane] = make_float4(reference[t][0], reference[t][1], total[t][0], total[t][1]);
#pragma unroll
            for (int m = 0; m < 4 * GROUPS; m++)
                to[((m + 1) * TILES + t) * 32 + lane] = make_float4(o[m][t][0], o[m][t][1], o[m][t][2], o[m][t][3]);
        }
    }

    template <bool GLOBAL>
    SP_DEVICE void merge(const float4* from, u32 lane) {
        const auto load = [&](int i) { return GLOBAL ? __ldcg(from + i * 32 + lane) : from[i * 32 + lane]; };
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const float4 head = load(t);
            const f32 theirs[2] = {head.x, head.y}, sums[2] = {head.z, head.w};
            f32 keep[2], take[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const f32 high = fmaxf(reference[t][e], theirs[e]);
                keep[e] = exp2f(reference[t][e] - high), take[e] = exp2f(theirs[e] - high);
                reference[t][e] = high;
                total[t][e] = total[t][e] * keep[e] + sums[e] * take[e];
            }
#pragma unroll
            for (int m = 0; m < 4 * GROUPS; m++) {
                const float4 add = load((m + 1) * TILES + t);
                o[m][t][0] = o[m][t][0] * keep[0] + add.x * take[0];
                o[m][t][1] = o[m][t][1] * keep[1] + add.y * take[1];
                o[m][t][2] = o[m][t][2] * keep[0] + add.z * take[0];
                o[m][t][3] = o[m][t][3] * keep[1] + add.w * take[1];
            }
        }
    }
};

SP_DEVICE u32 hmul2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

SP_DEVICE f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SP_DEVICE u32 transpose(u32 matrix) {
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(matrix));
    return d;
}

// Low nibbles of bits 0..3 and 16..19, or high ones of bits 4..7 and 20..23, as f16x2 (code - 8), exactly.
SP_DEVICE u32 low_codes(u32 w) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"((w & 0x000f000fu) | 0x64006400u), "r"(0x64086408u));
    return d;
}
SP_DEVICE u32 high_codes(u32 w) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(d)
        : "r"((w & 0x00f000f0u) | 0x64006400u), "r"(0x2c002c00u), "r"(0xd480d480u));
    return d;
}

// Two Q4_0 blocks are nine words: [d0 q0 q1] q2..q13 [q14 q15 d1] q0'..q15'. Logical word 0 of the first block is made of
// bytes 0, 1, 14, 15; words 1..3 are bytes 4w-2..4w+1; those of the second block lie whole. First byte of part b of word w:
SP_DEVICE int byte_of(int word, int b) { return word >= 4 ? 4 * (word - 4) + b : word > 0 ? 4 * word - 2 + b : b < 2 ? b : 12 + b; }

// Dim that row `half * 8 + g` of output fragment m stands for.
SP_DEVICE int output_dim(int m, int g, int half) {
    return Q4 ? m / 4 * 64 + g / 4 * 32 + byte_of(g, m % 4) + 16 * half : m / 4 * 64 + 8 * g + m % 4 * 2 + half;
}

SP_DEVICE void copy_chunk(u32 target, const u8* source, bool valid) {
    if (CHUNK == 16) cp_async_16(target, source, valid);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(CHUNK == 16 ? 8 : CHUNK),
                     "r"(valid ? CHUNK : 0)
                     : "memory");
}

// Where 16-byte chunk `chunk` of a token's f16 row lies, so that the eight lanes of a load meet eight different bank groups.
template <bool VALUES>
SP_DEVICE int swizzled(int token, int chunk) {
    return VALUES ? chunk ^ (token / 2 % 4 * 2) : chunk ^ (token % 2 * 4);
}

// 16 tokens from `rows` (of which `valid` exist, zeros follow) to a unit of the ring.
template <bool VALUES>
SP_DEVICE void load_unit(u32 unit, const u8* rows, u32 token_bytes, int valid, u32 lane) {
    constexpr int CHUNKS = ROW / CHUNK;
#pragma unroll
    for (int first = 0; first < 16 * CHUNKS; first += 32) {
        const int i = first + int(lane), token = i / CHUNKS, chunk = i % CHUNKS;
        if (first + 32 <= 16 * CHUNKS || token < 16) {
            const u32 place = Q4 ? chunk * CHUNK : swizzled<VALUES>(token, chunk) * 16;
            copy_chunk(unit + token * PITCH + place, rows + token * token_bytes + chunk * CHUNK, token < valid);
        }
    }
}

SP_DEVICE u32 word_at(const u8* unit, int token, int word) {
    return *reinterpret_cast<const u32*>(unit + token * PITCH + word * 4);
}

// Scores of 16 tokens: s[t][0..1] token g and rows 2c, 2c + 1 of tile t; s[t][2..3] token g + 8.
SP_DEVICE void scores(f32 (&s)[TILES][4], const u8* unit, const u32 (&q)[STEPS][TILES][2], int g, int c) {
#pragma unroll
    for (int t = 0; t < TILES; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
    if (Q4) {
        const u32 select = c == 0 ? 0x5432 : 0x7654;
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            const u32 first[2] = {word_at(unit, g, 9 * p), word_at(unit, g + 8, 9 * p)};
            const u32 middle[2] = {word_at(unit, g, 9 * p + 4), word_at(unit, g + 8, 9 * p + 4)};
#pragma unroll
            for (int b = 0; b < 2; b++) {
                u32 low[4], high[4];
                f32 d[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 own = word_at(unit, g + 8 * i, 9 * p + (b ? 5 + c : c ? c : 4));
                    const u32 w = b ? own : __byte_perm(first[i], own, select);
                    low[i] = low_codes(w), high[i] = high_codes(w);
                    low[2 + i] = low_codes(w >> 8), high[2 + i] = high_codes(w >> 8);
                    d[i] = b ? high_f16(middle[i]) : low_f16(first[i]);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    f32 sum[4] = {};
                    mma_f16(sum, low, q[4 * p + 2 * b][t][0], q[4 * p + 2 * b][t][1]);
                    mma_f16(sum, high, q[4 * p + 2 * b + 1][t][0], q[4 * p + 2 * b + 1][t][1]);
#pragma unroll
                    for (int i = 0; i < 4; i++) s[t][i] += d[i / 2] * sum[i];
                }
            }
        }
    } else {
        f32 odd[TILES][4] = {};  // a second chain, for the latency of the matrix unit
#pragma unroll
        for (int j = 0; j < STEPS / 2; j++) {
            const uint4 a = *reinterpret_cast<const uint4*>(unit + g * PITCH + swizzled<false>(g, 4 * j + c) * 16);
            const uint4 b = *reinterpret_cast<const uint4*>(unit + (g + 8) * PITCH + swizzled<false>(g + 8, 4 * j + c) * 16);
            const u32 first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                mma_f16(s[t], first, q[2 * j][t][0], q[2 * j][t][1]);
                mma_f16(odd[t], second, q[2 * j + 1][t][0], q[2 * j + 1][t][1]);
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[t][i] += odd[t][i];
    }
}

// o += V^T P^T of 16 tokens; p[t] holds P^T of tile t as operand B.
SP_DEVICE void accumulate(State& state, const u8* unit, const u32 (&p)[TILES][2], int g, int c) {
    const int tokens[4] = {2 * c, 2 * c + 1, 2 * c + 8, 2 * c + 9};
    if (Q4) {
        const u32 select = g == 0 ? 0x5432 : 0x7654, scale_select = g < 4 ? 0x5410 : 0x7632;
        const int scale_word = g < 4 ? 0 : 4, own_word = g == 0 ? 4 : g < 4 ? g : g + 1;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 x[4], w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = word_at(unit, tokens[i], 9 * j + scale_word);
                w[i] = __byte_perm(x[i], word_at(unit, tokens[i], 9 * j + own_word), select);
            }
            const u32 scale[2] = {__byte_perm(x[0], x[1], scale_select), __byte_perm(x[2], x[3], scale_select)};
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {  // bytes 0 and 1, then 2 and 3, of the words of two tokens
                const u32 order = pair ? 0x7632 : 0x5410;
                u32 a[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 r = __byte_perm(w[2 * i], w[2 * i + 1], order);
                    a[0][2 * i] = hmul2(low_codes(r), scale[i]), a[0][2 * i + 1] = hmul2(high_codes(r), scale[i]);
                    a[1][2 * i] = hmul2(low_codes(r >> 8), scale[i]), a[1][2 * i + 1] = hmul2(high_codes(r >> 8), scale[i]);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    mma_f16(state.o[4 * j + 2 * pair][t], a[0], p[t][0], p[t][1]);
                    mma_f16(state.o[4 * j + 2 * pair + 1][t], a[1], p[t][0], p[t][1]);
                }
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 w[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int place = swizzled<true>(tokens[i], 8 * j + g);
                const uint4 v = *reinterpret_cast<const uint4*>(unit + tokens[i] * PITCH + place * 16);
                w[i][0] = v.x, w[i][1] = v.y, w[i][2] = v.z, w[i][3] = v.w;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const u32 a[4] = {__byte_perm(w[0][k], w[1][k], 0x5410), __byte_perm(w[0][k], w[1][k], 0x7632),
                                  __byte_perm(w[2][k], w[3][k], 0x5410), __byte_perm(w[2][k], w[3][k], 0x7632)};
#pragma unroll
                for (int t = 0; t < TILES; t++) mma_f16(state.o[4 * j + k][t], a, p[t][0], p[t][1]);
            }
        }
    }
}

// Scores to probabilities as operand B; moves references and rescales when a score outgrew its reference.
SP_DEVICE void probabilities(u32 (&p)[TILES][2], f32 (&s)[TILES][4], State& state) {
    bool outgrown = false;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) outgrown |= s[t][i] > state.reference[t][i % 2] + HEADROOM;
    if (__any_sync(0xffffffffu, outgrown)) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                f32 high = fmaxf(s[t][e], s[t][e + 2]);
#pragma unroll
                for (int step = 4; step < 32; step *= 2) high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, step));
                const f32 now = fmaxf(state.reference[t][e], high - OFFSET);
                const f32 keep = exp2_fast(state.reference[t][e] - now);
                state.reference[t][e] = now;
                state.total[t][e] *= keep;
#pragma unroll
                for (int m = 0; m < 4 * GROUPS; m++) state.o[m][t][e] *= keep, state.o[m][t][e + 2] *= keep;
            }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[t][i] = exp2_fast(s[t][i] - state.reference[t][i % 2]);
        state.total[t][0] += s[t][0] + s[t][2];
        state.total[t][1] += s[t][1] + s[t][3];
        p[t][0] = transpose(pack_f16(s[t][0], s[t][1]));
        p[t][1] = transpose(pack_f16(s[t][2], s[t][3]));
    }
}

// Merge the states of all warps into warp 0's, pair by pair.
SP_DEVICE void merge_warps(State& state, u32 warp, u32 lane) {
    float4* slots = reinterpret_cast<float4*>(shared);
#pragma unroll
    for (u32 left = WARPS; left > 1; left = (left + 1) / 2) {
        const u32 half = (left + 1) / 2;
        __syncthreads();
        if (warp >= half && warp < left) state.store(slots + (warp - half) * QUADS * 32, lane);
        __syncthreads();
        if (warp + half < left) state.merge<false>(slots + warp * QUADS * 32, lane);
    }
    __syncthreads();
}

struct Queries {
    int n, group, heads, kv_head, first;  // first row of this block's ROWS among the n * group of the kv head

    SP_DEVICE bool exists(int row) const { return first + row < n * group; }
    SP_DEVICE int token(int row) const { return (first + row) / group; }
    SP_DEVICE i64 head_row(int row) const {
        return i64(token(row)) * heads + kv_head * group + (first + row) % group;
    }
};

SP_DEVICE void load_queries(u32 (&fragments)[STEPS][TILES][2], const u16* q, const Queries& rows, u8* stage, u32 warp,
                            u32 lane) {
    const int g = int(lane) / 4, c = int(lane) % 4;
    if (Q4) {
        for (int row = int(warp); row < ROWS; row += WARPS) {
            HeadRow r = {};
            if (rows.exists(row)) r = load_f16(q + rows.head_row(row) * D, lane);
            if (ROTATE) hadamard<D>(r, lane);
            store_f16(reinterpret_cast<u16*>(stage) + row * (D + 8), r, lane);
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (Q4) {
            const u16* row = reinterpret_cast<const u16*>(stage) + (8 * t + g) * (D + 8);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const u16* at = row + step / 4 * 64 + step / 2 % 2 * 32 + step % 2 * 16;
                const int word = step / 2 % 2 * 4 + c;
                fragments[step][t][0] = at[byte_of(word, 0)] | u32(at[byte_of(word, 2)]) << 16;
                fragments[step][t][1] = at[byte_of(word, 1)] | u32(at[byte_of(word, 3)]) << 16;
            }
        } else {
            const bool exists = rows.exists(8 * t + g);
            const uint4* row = reinterpret_cast<const uint4*>(q + (exists ? rows.head_row(8 * t + g) : 0) * D);
#pragma unroll
            for (int j = 0; j < STEPS / 2; j++) {
                const uint4 w = exists ? row[4 * j + c] : make_uint4(0, 0, 0, 0);
                fragments[2 * j][t][0] = w.x, fragments[2 * j][t][1] = w.y;
                fragments[2 * j + 1][t][0] = w.z, fragments[2 * j + 1][t][1] = w.w;
            }
        }
    }
}

// Warp 0's state -> out: dims back in order through shared memory, then a warp a row.
SP_DEVICE void finish(const State& state, const Queries& rows, const u16* wide, u16* out, u32 warp, u32 lane) {
    const int g = int(lane) / 4, c = int(lane) % 4;
    f32* table = reinterpret_cast<f32*>(shared);
    if (warp == 0) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const f32 inverse = 1.0f / state.total[t][e];
                f32* row = table + (8 * t + 2 * c + e) * D;
#pragma unroll
                for (int m = 0; m < 4 * GROUPS; m++) {
                    row[output_dim(m, g, 0)] = state.o[m][t][e] * inverse;
                    row[output_dim(m, g, 1)] = state.o[m][t][e + 2] * inverse;
                }
            }
    }
    __syncthreads();
    for (int row = int(warp); row < ROWS && rows.exists(row); row += WARPS) {
        HeadRow r;
#pragma unroll
        for (int i = 0; i < E; i++) r.x[i] = table[row * D + lane * E + i];
        const i64 at = rows.head_row(row);
        if (FINISH && ROTATE) hadamard<64>(r, lane);
        if (FINISH && wide) {
            const HeadRow gate = load_bf16(wide + (2 * at + 1) * D, lane);
#pragma unroll
            for (int i = 0; i < E; i++) r.x[i] *= 1.0f / (1.0f + __expf(-gate.x[i]));
        }
        store_bf16(out + at * D, r, lane);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attention_decode(const u16* q, const u8* k_pages, const u8* v_pages, const i32* table, const i32* tokens, i32 more,
                 const u16* wide, u16* out, f32* partial, u32* counters, i32 n, i32 heads, i32 kv_heads, f32 scale) {
    const i32 total = (tokens ? *tokens : 0) + more;
    const i32 even = (total + i32(gridDim.x) - 1) / i32(gridDim.x);
    const i32 span = (max(even, SPLIT_TOKENS) + 16 * WARPS - 1) / (16 * WARPS) * (16 * WARPS);
    const i32 begin = i32(blockIdx.x) * span, end = min(begin + span, total);
    if (begin >= total) return;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = int(lane) / 4, c = int(lane) % 4, kv_head = int(blockIdx.y);
    const Queries rows = {n, heads / kv_heads, heads, kv_head, int(blockIdx.z) * ROWS};

    u8* ring = shared + warp * SLOTS * UNIT;
    const u32 token_bytes = u32(kv_heads) * ROW;
    const i32 first = begin + 16 * i32(warp);
    const i32 tiles = first < end ? (end - first + 16 * WARPS - 1) / (16 * WARPS) : 0;
    i32 page = 0, next_page = tiles ? table[first / PAGE_TOKENS] : 0;
    i32 issued = 0;  // units
    const auto issue = [&](int slot) {
        const i32 tile = issued / 2, token = first + tile * 16 * WARPS;
        if (tile < tiles) {
            const bool values = issued % 2;
            if (!values) {
                page = next_page;
                if (tile + 1 < tiles) next_page = table[(token + 16 * WARPS) / PAGE_TOKENS];
            }
            const i64 place = (i64(page) * PAGE_TOKENS + token % PAGE_TOKENS) * kv_heads + kv_head;
            const u32 unit = shared_address(ring) + slot * UNIT;
            if (values) load_unit<true>(unit, v_pages + place * ROW, token_bytes, total - token, lane);
            else load_unit<false>(unit, k_pages + place * ROW, token_bytes, total - token, lane);
        }
        cp_async_commit();
        issued++;
    };
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) issue(slot);

    u32 fragments[STEPS][TILES][2];
    load_queries(fragments, q, rows, shared + WARPS * SLOTS * UNIT, warp, lane);
    i32 limit[TILES][2];  // first token a row does not see
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) limit[t][e] = min(total, total - n + rows.token(8 * t + 2 * c + e) + 1);

    State state;
    state.clear();
    int slot = 0;
    for (i32 tile = 0; tile < tiles; tile++) {
        const i32 token = first + tile * 16 * WARPS;
        f32 s[TILES][4];
        cp_async_wait<SLOTS - 1>();
        __syncwarp();
        scores(s, ring + slot * UNIT, fragments, g, c);
        __syncwarp();
        issue(slot);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        const bool masked = token + 16 > total - n;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[t][i] *= scale;
                if (masked && token + g + i / 2 * 8 >= limit[t][i % 2]) s[t][i] = __int_as_float(0xff800000);
            }
        u32 p[TILES][2];
        probabilities(p, s, state);
        cp_async_wait<SLOTS - 1>();
        __syncwarp();
        accumulate(state, ring + slot * UNIT, p, g, c);
        __syncwarp();
        issue(slot);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
    }
    cp_async_wait<0>();
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                state.total[t][e] += __shfl_xor_sync(0xffffffffu, state.total[t][e], step);
    merge_warps(state, warp, lane);

    const u32 splits = u32((total + span - 1) / span);
    if (splits > 1) {
        __shared__ bool last;
        const u32 family = blockIdx.z * gridDim.y + blockIdx.y;
        float4* parts = reinterpret_cast<float4*>(partial) + i64(family) * gridDim.x * QUADS * 32;
        if (warp == 0) {
            state.store(parts + i64(blockIdx.x) * QUADS * 32, lane);
            __threadfence();
            __syncwarp();
            if (lane == 0) last = atomicInc(counters + family, splits - 1) == splits - 1;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
        state.clear();
        for (u32 split = warp; split < splits; split += WARPS) state.merge<true>(parts + i64(split) * QUADS * 32, lane);
        merge_warps(state, warp, lane);
    }
    finish(state, rows, wide, out, warp, lane);
}
