// Attention of few query rows over a long paged cache, split over the cache: decoding and verification of drafts.
//
//   out[i, h] = sum_j softmax_j(q[i, h] . k[j, h / group] / sqrt(d)) v[j, h / group],  j <= total - n + i
//   q first rotated over D values where ROTATE and Q4; then, where FINISH: hadamard_64(out) if ROTATE, * sigmoid(gate) if there is one; bf16.
//
// The n * group query rows that share a kv head are the columns of transposed products: S^T = K Q^T and O^T = V^T P^T, with
// tokens (then dims) as the 16 rows of mma.m16n8k16 and 8 TILES query rows as its columns. One token of decoding with 6 heads a
// group then fills 6 of 8 columns, and a key byte is read and unpacked once. Dims and tokens inside a fragment may stand in
// any order as long as both operands agree: threads take them in the order that makes their loads of packed blocks whole words.
//
// Work: split x of a kv head takes a run of tokens, its warps every WARPS-th tile of 16 tokens, each through a ring of SLOTS
// units (16 tokens of K or of V) of its own, filled by cp.async. Scores are kept relative to a row reference 2^10 below the
// largest score at the time it was set, which moves only when a score passes it by 2^14: probabilities stay normal f16 numbers down
// to 2^-24 of the largest. States of warps, then of splits (by the last to finish), are summed in fixed order.
//
// Layouts: q (n, heads, d) f16; pages (pool_pages, 128, kv_heads, row bytes) f16 or Q4_0; table i32; tokens i32 or null, `more`
//   is added to it; wide (n, heads, 2 d) bf16 or null; out (n, heads, d); partial: 4 TILES QUADS floats a (row group, kv head, split);
//   counters u32 a (row group, kv head), zero before and after.
// Launch: (splits, kv_heads, row groups) blocks of 32 WARPS threads; the grid may stay while the cache grows. sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256; Q4; TILES; WARPS; SLOTS; SPLIT_TOKENS (fewest a split); ROTATE; FINISH.
// Dao et al., "Flash-Decoding for long-context inference", 2023; lazy rescaling as in FlashAttention-4.
#include "head_row.cuh"

constexpr int D = HEAD_DIM, GROUPS = D / 64, STEPS = D / 16;
constexpr int ROW = Q4 ? D / 32 * 18 : 2 * D;
constexpr int PITCH = Q4 ? (D == 256 ? 144 : D == 128 ? 80 : 48) : 2 * D;  // Q4: 4 banks on from row to row
constexpr int CHUNK = !Q4 || D == 256 ? 16 : D == 128 ? 8 : 4;             // a row of a page is that aligned
constexpr int UNIT = 16 * PITCH, ROWS = 8 * TILES;
constexpr int THREADS = 32 * WARPS, OUTPUTS = 4 * GROUPS;  // fragments of 16 dims
constexpr int QUADS = 32 * (OUTPUTS + 1);                 // float4 of a split's state of one tile: references and totals, outputs
constexpr int TABLE_PITCH = D + 8;  // floats from row to row of finished outputs
constexpr f32 HEADROOM = 14.0f, OFFSET = 10.0f, NEVER = -1e30f;

extern __shared__ __align__(16) u8 shared[];

struct State {
    f32 o[OUTPUTS][TILES][4];
    f32 reference[TILES][2], total[TILES][2];
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

// (w & mask) | magic in one instruction; the compiler needs to be told that one of the constants stays in a register.
SP_DEVICE u32 masked(u32 w, u32 mask, u32 magic) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "r"(mask), "r"(magic));
    return d;
}

// Low nibbles of bits 0..3 and 16..19, or high ones of bits 4..7 and 20..23, as f16x2 (code - 8), exactly.
SP_DEVICE u32 low_codes(u32 w, u32 magic) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(masked(w, 0x000f000fu, magic)), "r"(0x64086408u));
    return d;
}
SP_DEVICE u32 high_codes(u32 w, u32 magic) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;"
        : "=r"(d)
        : "r"(masked(w, 0x00f000f0u, magic)), "r"(0x2c002c00u), "r"(0xd480d480u));
    return d;
}

// Two Q4_0 blocks are nine words: [d0 q0 q1] q2..q13 [q14 q15 d1] q0'..q15'. Logical word w of the first block holds bytes
// 4w-2..4w+1, counted round: word 0 is bytes 14, 15, 0, 1. Those of the second block, words 4 to 7, lie as they are.
SP_DEVICE int byte_of(int word, int b) { return word >= 4 ? 4 * (word - 4) + b : (4 * word - 2 + b) & 15; }

// Dim that row `half * 8 + g` of output fragment m stands for.
SP_DEVICE int output_dim(int m, int g, int half) {
    return Q4 ? m / 4 * 64 + g / 4 * 32 + byte_of(g, m % 4) + 16 * half : m / 4 * 64 + 8 * g + m % 4 * 2 + half;
}

// Whole lines are asked for: what a row leaves of them belongs to other heads and tokens, which are read at the same time.
SP_DEVICE void copy_chunk(u32 target, const u8* source, bool valid) {
    if (CHUNK == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(target), "l"(source),
                     "n"(CHUNK == 16 ? 8 : CHUNK), "r"(valid ? CHUNK : 0)
                     : "memory");
}

// Where 16-byte chunk `chunk` of a token's f16 row lies, so that the eight lanes of a load meet eight different bank groups.
template <bool VALUES>
SP_DEVICE int swizzled(int token, int chunk) {
    return VALUES ? chunk ^ (token / 2 % 4 * 2) : chunk ^ (token % 2 * 4);
}

// 16 tokens from `rows` (of which `valid` exist, zeros follow) to a unit of the ring. Packed rows are nine chunks, and 27 lanes
// copy three of them at a time, so that addresses step by constants.
SP_DEVICE void load_unit(u32 unit, const u8* rows, u32 token_bytes, int valid, bool values, u32 lane) {
    constexpr int CHUNKS = ROW / CHUNK, APART = 32 / CHUNKS;
    const int row = int(lane) / CHUNKS, chunk = int(lane) % CHUNKS;
    if (row >= APART) return;
    const u8* source = rows + u32(row) * token_bytes + chunk * CHUNK;
#pragma unroll
    for (int token = row; token - row < 16; token += APART) {
        if (16 % APART == 0 || token < 16) {
            const int place = Q4 ? chunk : values ? swizzled<true>(token, chunk) : swizzled<false>(token, chunk);
            copy_chunk(unit + token * PITCH + place * CHUNK, source, token < valid);
        }
        source += APART * token_bytes;
    }
}

// Where a lane reads in a unit, in bytes from its start, and how; the same for every unit.
struct Places {
    u32 magic, scale, own[2], value_scale, value_own, select, value_select, pair_select;

    SP_DEVICE Places(int g, int c) {
        asm volatile("mov.b32 %0, 0x64006400;" : "=r"(magic));
        scale = g * PITCH;
        own[0] = g * PITCH + 4 * (c ? c : 4), own[1] = g * PITCH + 4 * (5 + c);
        select = c == 0 ? 0x3254 : 0x7654;
        value_scale = 2 * c * PITCH + (g < 4 ? 0 : 16);
        value_own = 2 * c * PITCH + 4 * (g == 0 ? 4 : g < 4 ? g : g + 1);
        value_select = g == 0 ? 0x3254 : 0x7654;
        pair_select = g < 4 ? 0x5410 : 0x7632;
    }
};

SP_DEVICE u32 load_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}

SP_DEVICE void load_words(u32 (&w)[4], u32 address) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(address));
}

// Scores of 16 tokens: s[t][0..1] token g and rows 2c, 2c + 1 of tile t; s[t][2..3] token g + 8.
SP_DEVICE void scores(f32 (&s)[TILES][4], u32 unit, const u32 (&q)[STEPS][TILES][2], const Places& at, int g, int c) {
#pragma unroll
    for (int t = 0; t < TILES; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
    if (Q4) {
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            u32 scales[2][2], w[2][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32 row = unit + 8 * i * PITCH + 36 * p;
                scales[0][i] = load_word(row + at.scale), scales[1][i] = load_word(row + at.scale + 16);
                w[0][i] = __byte_perm(scales[0][i], load_word(row + at.own[0]), at.select);
                w[1][i] = load_word(row + at.own[1]);
            }
#pragma unroll
            for (int b = 0; b < 2; b++) {
                u32 low[4], high[4];
                f32 d[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 later = w[b][i] >> 8;
                    low[i] = low_codes(w[b][i], at.magic), high[i] = high_codes(w[b][i], at.magic);
                    low[2 + i] = low_codes(later, at.magic), high[2 + i] = high_codes(later, at.magic);
                    d[i] = b ? high_f16(scales[1][i]) : low_f16(scales[0][i]);
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
            u32 a[4], b[4];
            load_words(a, unit + g * PITCH + swizzled<false>(g, 4 * j + c) * 16);
            load_words(b, unit + (g + 8) * PITCH + swizzled<false>(g, 4 * j + c) * 16);
            const u32 first[4] = {a[0], b[0], a[1], b[1]}, second[4] = {a[2], b[2], a[3], b[3]};
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
SP_DEVICE void accumulate(State& state, u32 unit, const u32 (&p)[TILES][2], const Places& at, int g, int c) {
    // Tokens 2c, 2c + 1, 2c + 8, 2c + 9 are `i` rows past the first.
    constexpr int OFFSETS[4] = {0, PITCH, 8 * PITCH, 9 * PITCH};
    if (Q4) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            u32 x[4], w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = load_word(unit + at.value_scale + OFFSETS[i] + 36 * j);
                w[i] = __byte_perm(x[i], load_word(unit + at.value_own + OFFSETS[i] + 36 * j), at.value_select);
            }
            const u32 scale[2] = {__byte_perm(x[0], x[1], at.pair_select), __byte_perm(x[2], x[3], at.pair_select)};
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {  // bytes 0 and 1, then 2 and 3, of the words of two tokens
                const u32 order = pair ? 0x7632 : 0x5410;
                u32 a[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 r = __byte_perm(w[2 * i], w[2 * i + 1], order), later = r >> 8;
                    a[0][2 * i] = hmul2(low_codes(r, at.magic), scale[i]);
                    a[0][2 * i + 1] = hmul2(high_codes(r, at.magic), scale[i]);
                    a[1][2 * i] = hmul2(low_codes(later, at.magic), scale[i]);
                    a[1][2 * i + 1] = hmul2(high_codes(later, at.magic), scale[i]);
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
            for (int i = 0; i < 4; i++)  // the swizzle depends on token / 2 % 4 = c alone
                load_words(w[i], unit + 2 * c * PITCH + OFFSETS[i] + swizzled<true>(2 * c, 8 * j + g) * 16);
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
                for (int m = 0; m < OUTPUTS; m++) state.o[m][t][e] *= keep, state.o[m][t][e + 2] *= keep;
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

struct Queries {
    int n, group, heads, kv_head, first;  // first row of this block's ROWS among the n * group of the kv head

    SP_DEVICE bool exists(int row) const { return first + row < n * group; }
    SP_DEVICE int token(int row) const { return (first + row) / group; }
    SP_DEVICE i64 head_row(int row) const {
        return i64(token(row)) * heads + kv_head * group + (first + row) % group;
    }
};

constexpr int STAGE_STEP = 8 * 32 + 8;  // bytes of a k16-step of 8 queries; eight more keep the writers' banks apart

// Where dim `dim` of query row g stands among the staged B fragments: [step][row g][word c][register][half].
SP_DEVICE u32 staged(int dim, int g) {
    const int at = (dim % 16 + (dim / 32 % 2 ? 0 : 2)) % 16;
    return dim / 16 * STAGE_STEP + (g * 4 + at / 4) * 8 + at % 2 * 4 + at / 2 % 2 * 2;
}

SP_DEVICE void load_queries(u32 (&fragments)[STEPS][TILES][2], const u16* q, const Queries& rows, u8* stage, u32 warp,
                            u32 lane) {
    const int g = int(lane) / 4, c = int(lane) % 4;
    if (Q4) {
#pragma unroll 1
        for (int row = int(warp); row < ROWS; row += WARPS) {
            HeadRow r = {};
            if (rows.exists(row)) r = load_f16(q + rows.head_row(row) * D, lane);
            if (ROTATE) hadamard<D>(r, lane);
            u8* tile = stage + row / 8 * STEPS * STAGE_STEP;
#pragma unroll
            for (int i = 0; i < E; i++)
                *reinterpret_cast<u16*>(tile + staged(int(lane) * E + i, row % 8)) = f16_from(r.x[i]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (Q4) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const u8* at = stage + (t * STEPS + step) * STAGE_STEP + lane * 8;
                const uint2 pair = *reinterpret_cast<const uint2*>(at);
                fragments[step][t][0] = pair.x, fragments[step][t][1] = pair.y;
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

// Normalised outputs of fragment quad i of tile t -> their places in the table of rows, dims in order.
SP_DEVICE void put(f32* rows, int t, int i, const float4& sum, f32 a, f32 b) {
    const int m = i / 32, g = i % 32 / 4, c = i % 4;
    f32* row = rows + (8 * t + 2 * c) * TABLE_PITCH;
    row[output_dim(m, g, 0)] = sum.x * a, row[output_dim(m, g, 1)] = sum.z * a;
    row[TABLE_PITCH + output_dim(m, g, 0)] = sum.y * b, row[TABLE_PITCH + output_dim(m, g, 1)] = sum.w * b;
}

SP_DEVICE void add(float4& sum, const float4& o, f32 a, f32 b) {
    sum.x += o.x * a, sum.y += o.y * b, sum.z += o.z * a, sum.w += o.w * b;
}

// Sum of what splits stored, on their common references; `heads` is room for 4 float4 a split in shared memory.
SP_DEVICE void merge_splits(f32* table, const float4* parts, i32 splits, i32 stride, float4* heads) {
    const int c = int(threadIdx.x) % 4;
    constexpr int MINE = (32 * OUTPUTS + THREADS - 1) / THREADS;  // quads of a thread
    const auto mine = [](int j) { return j * THREADS + int(threadIdx.x); };
#pragma unroll 1
    for (int t = 0; t < TILES; t++, parts += i64(stride) * QUADS) {
        __syncthreads();
        for (int i = int(threadIdx.x); i < 4 * splits; i += THREADS) heads[i] = __ldcg(parts + i64(i / 4) * QUADS + i % 4);
        __syncthreads();
        f32 high[2] = {NEVER, NEVER}, total[2] = {0, 0};
        for (int part = 0; part < splits; part++)
            high[0] = fmaxf(high[0], heads[4 * part + c].x), high[1] = fmaxf(high[1], heads[4 * part + c].y);
        float4 sum[MINE] = {};
#pragma unroll 8
        for (int part = 0; part < splits; part++) {
            const float4 head = heads[4 * part + c];
            const f32 a = exp2_fast(head.x - high[0]), b = exp2_fast(head.y - high[1]);
            total[0] += head.z * a, total[1] += head.w * b;
#pragma unroll
            for (int j = 0; j < MINE; j++)
                if (32 * OUTPUTS % THREADS == 0 || mine(j) < 32 * OUTPUTS)
                    add(sum[j], __ldcg(parts + i64(part) * QUADS + 32 + mine(j)), a, b);
        }
#pragma unroll
        for (int j = 0; j < MINE; j++)
            if (32 * OUTPUTS % THREADS == 0 || mine(j) < 32 * OUTPUTS)
                put(table, t, mine(j), sum[j], 1.0f / total[0], 1.0f / total[1]);
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
            load_unit(shared_address(ring) + slot * UNIT, (values ? v_pages : k_pages) + place * ROW, token_bytes,
                      total - token, values, lane);
        }
        cp_async_commit();
        issued++;
    };
#pragma unroll 1
    for (int slot = 0; slot < SLOTS; slot++) issue(slot);

    u32 fragments[STEPS][TILES][2];
    load_queries(fragments, q, rows, shared + WARPS * SLOTS * UNIT, warp, lane);
    i32 limit[TILES][2];  // first token a row does not see
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) limit[t][e] = min(total, total - n + rows.token(8 * t + 2 * c + e) + 1);

    const Places places(g, c);
    const u32 ring_address = shared_address(ring);
    State state;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        state.reference[t][0] = state.reference[t][1] = NEVER, state.total[t][0] = state.total[t][1] = 0;
#pragma unroll
        for (int m = 0; m < OUTPUTS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.o[m][t][i] = 0;
    }
    int slot = 0;
    for (i32 tile = 0; tile < tiles; tile++) {
        const i32 token = first + tile * 16 * WARPS;
        f32 s[TILES][4];
        cp_async_wait<SLOTS - 1>();
        __syncwarp();
        scores(s, ring_address + slot * UNIT, fragments, places, g, c);
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
        accumulate(state, ring_address + slot * UNIT, p, places, g, c);
        __syncwarp();
        issue(slot);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
    }
    cp_async_wait<0>();
    const i64 warp_row = rows.exists(int(warp)) ? rows.head_row(int(warp)) : 0;
    HeadWords open = {};  // the gate of the first row this warp finishes, on its way meanwhile
    if (FINISH && wide) open = reinterpret_cast<const HeadWords*>(wide + (2 * warp_row + 1) * D)[lane];

    // Warps put their outputs on common references and sum them through shared memory, tile by tile.
    const int splits = (total + span - 1) / span;
    float4* states = reinterpret_cast<float4*>(shared);
    f32* rows_table = reinterpret_cast<f32*>(states + WARPS * 32 * OUTPUTS);
    const u32 family = blockIdx.z * gridDim.y + blockIdx.y;
    float4* parts = reinterpret_cast<float4*>(partial) + i64(family) * gridDim.x * TILES * QUADS;
    __shared__ float4 heads_of_warps[TILES][WARPS][4];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                state.total[t][e] += __shfl_xor_sync(0xffffffffu, state.total[t][e], step);
        if (g == 0)
            heads_of_warps[t][warp][c] =
                make_float4(state.reference[t][0], state.reference[t][1], state.total[t][0], state.total[t][1]);
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        f32 high[2] = {NEVER, NEVER}, sums[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float4 head = heads_of_warps[t][i][c];
            high[0] = fmaxf(high[0], head.x), high[1] = fmaxf(high[1], head.y);
        }
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float4 head = heads_of_warps[t][i][c];
            sums[0] += head.z * exp2_fast(head.x - high[0]), sums[1] += head.w * exp2_fast(head.y - high[1]);
        }
        const f32 a = exp2_fast(state.reference[t][0] - high[0]), b = exp2_fast(state.reference[t][1] - high[1]);
        if (t > 0) __syncthreads();
#pragma unroll
        for (int m = 0; m < OUTPUTS; m++)
            states[(warp * OUTPUTS + m) * 32 + lane] = make_float4(state.o[m][t][0] * a, state.o[m][t][1] * b,
                                                                   state.o[m][t][2] * a, state.o[m][t][3] * b);
        __syncthreads();
        float4* to = parts + (i64(t) * gridDim.x + blockIdx.x) * QUADS;
#pragma unroll
        for (int i = int(threadIdx.x); i < 32 * OUTPUTS; i += THREADS) {
            float4 sum = {};
#pragma unroll
            for (int part = 0; part < WARPS; part++) add(sum, states[part * 32 * OUTPUTS + i], 1, 1);
            if (splits == 1) put(rows_table, t, i, sum, 1.0f / sums[0], 1.0f / sums[1]);
            else to[32 + i] = sum;
        }
        if (splits > 1 && threadIdx.x < 4) to[threadIdx.x] = make_float4(high[0], high[1], sums[0], sums[1]);
    }
    if (splits > 1) {  // the last split to come here sums all
        __shared__ bool last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = atomicInc(counters + family, splits - 1) == u32(splits) - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        merge_splits(rows_table, parts, splits, i32(gridDim.x), states);
    }
    __syncthreads();
#pragma unroll 1
    for (int row = int(warp); row < ROWS && rows.exists(row); row += WARPS) {
        HeadRow r;
#pragma unroll
        for (int i = 0; i < E; i++) r.x[i] = rows_table[row * TABLE_PITCH + lane * E + i];
        const i64 at = row == int(warp) ? warp_row : rows.head_row(row);
        if (FINISH && ROTATE) hadamard<64>(r, lane);
        if (FINISH && wide) {
            if (row != int(warp)) open = reinterpret_cast<const HeadWords*>(wide + (2 * at + 1) * D)[lane];
            gate(r, open);
        }
        store_bf16(out + at * D, r, lane);
    }
}
