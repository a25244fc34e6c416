// Causal attention of many queries with keys in eight bits over f16 pages, on tensor cores of sm_90a; heads of 256.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group],  j <= tokens - n + i
//   queries and keys as signed bytes, rotated alike, their sums are exact; weights and values as f16.
//
// Layouts  q f16 (n, heads, 256), rotated as in key_bytes.cu and divided by peak / 127 row by row here. Keys i8 (kv_heads, blocks, 128 tokens, 256), times
//   key_scales f32 (kv_heads, blocks), less a vector that all keys of a head share, which softmax does not see: see
//   key_bytes.cu. Values f16 (pool_pages, 128, kv_heads, 256): token j is slot j % 128 of page table[j / 128]. out bf16 (n,
//   heads, 256).
// Maps     q and values as in attention_sm90.cu; keys 3-D: (128 bytes, kv_heads * blocks * 128 rows, 2), boxes of 64 rows,
//   128-byte swizzle.
// Launch   one block of 384 threads an SM, 1-D grid of at most the number of tiles (query block, head); *next_tile = 0;
//   `section` heads after `section`.
// Needs    q, values, out 16-byte aligned; scale > 0; 1 <= n <= tokens; blocks = ceil(tokens / 128); heads % section == 0. Slots
//   of values past `tokens` may hold NaN.
// Defines  STAGES.
// Arch     sm_90a.
//
// Warpgroup 0 loads. Warpgroups 1 and 2 compute 64 query rows each, from the diagonal down: while the softmax of one tile
// runs, the tensor cores multiply the weights of the tile before by V. After Shah et al., "FlashAttention-3", 2024, and
// Zhang et al., "SageAttention", 2024.
#include "byte_key_loads.cuh"
#include "byte_products.cuh"
#include "rotation_signs.cuh"
#include "softmax_sm90.cuh"
#include "wgmma_f16.cuh"

#define SCORES (KEYS / 2)  // of one thread: 64 rows x KEYS over 128 threads
#define OUTS (D / 2)
#define MAGIC 12582912.0f  // 1.5 * 2^23: its bits and a whole number below 2^22 are the bits of their sum
#define MAGIC_BITS 0x4B400000

// A descriptor moves by adding bytes / 16 to its low word: shared addresses fit in the field.
SP_DEVICE u64 moved_by(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

SP_DEVICE u32 pack_codes(const f32* x, f32 inverse) {
    const i32 a = __float2int_rn(x[0] * inverse), b = __float2int_rn(x[1] * inverse);
    const i32 c = __float2int_rn(x[2] * inverse), d = __float2int_rn(x[3] * inverse);
    return u32(a & 255) | u32(b & 255) << 8 | u32(c & 255) << 16 | u32(d) << 24;
}

// The group's 64 queries, rotated, to bytes, in place: a row's four panels of 64 values become two of 128 bytes, by two threads.
SP_DEVICE void round_queries(u8* queries, f32* scales, u32 group) {
    const u32 thread = threadIdx.x % 128, row = 64 * group + thread / 2, half = thread % 2;
    f32 x[128];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const uint4 eight = *reinterpret_cast<const uint4*>(queries + (2 * half + i / 8) * (QUERIES * 128) +
                                                            swizzle_128(row * 128 + i % 8 * 16));
        const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w}, signs = sign_word(4 * half + i / 4) >> (8 * i % 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const f32 low = low_f16(pairs[j]), high = high_f16(pairs[j]);
            x[8 * i + 2 * j] = signs >> 2 * j & 1 ? -low : low;
            x[8 * i + 2 * j + 1] = signs >> (2 * j + 1) & 1 ? -high : high;
        }
    }
#pragma unroll
    for (int step = 1; step < 128; step *= 2)
#pragma unroll
        for (int i = 0; i < 128; ++i) {
            if (i & step) continue;
            const f32 a = x[i], b = x[i + step];
            x[i] = __fadd_rn(a, b), x[i + step] = __fsub_rn(a, b);
        }
    f32 peak = 0;
#pragma unroll
    for (int i = 0; i < 128; ++i) {
        const f32 other = __shfl_xor_sync(0xffffffffu, x[i], 1);
        x[i] = half ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
        peak = fmaxf(peak, fabsf(x[i]));
    }
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    const f32 inverse = peak > 0 ? __fdiv_rn(127.0f, peak) : 0.0f;
    named_barrier(1 + group, 128);  // all have read
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const f32* from = x + 16 * i;
        const uint4 sixteen = {pack_codes(from, inverse), pack_codes(from + 4, inverse), pack_codes(from + 8, inverse),
                               pack_codes(from + 12, inverse)};
        *reinterpret_cast<uint4*>(queries + half * (QUERIES * 128) + swizzle_128(row * 128 + 16 * i)) = sixteen;
    }
    if (half == 0) scales[row] = peak * (1.0f / 127.0f) * 0.0625f;  // a rotation is sixteen times as long
    fence_async_proxy();
    named_barrier(1 + group, 128);
}

SP_DEVICE void scores_of(i32 (&s)[SCORES], u64 queries, u64 keys) {
#pragma unroll
    for (int k = 0; k < D / 32; ++k)
        wgmma_bytes(s, moved_by(queries, (k / 4) * (QUERIES * 128) + (k % 4) * 32),
                 moved_by(keys, (k / 4) * (KEYS * 128) + (k % 4) * 32), k > 0);
}

SP_DEVICE void add_values(f32 (&o)[OUTS], const u32 (&p)[SCORES / 2], u64 values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) wgmma_rs(o, p + 4 * k, moved_by(values, k * 2048));
}

// The scores of the warp's 16 rows by warp-level products, which give each thread the same ones as scores_of.
SP_DEVICE void scores_again(i32 (&s)[SCORES], u32 queries, u32 keys) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) {
        i32 d[2][4] = {};
#pragma unroll 1
        for (u32 k = 0; k < D / 32; ++k) {
            const u32 query = lane % 16 * 128 + k % 4 * 32 + lane / 16 * 16;
            const u32 key = (16 * j + lane / 16 * 8 + lane % 8) * 128 + k % 4 * 32 + lane / 8 % 2 * 16;
            u32 a[4], b[4];
            ldmatrix_x4(a, queries + k / 4 * (QUERIES * 128) + swizzle_128(query));
            ldmatrix_x4(b, keys + k / 4 * (KEYS * 128) + swizzle_128(key));
            mma_s8(d[0], a, b[0], b[1]);
            mma_s8(d[1], a, b[2], b[3]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) s[8 * j + i] = d[i / 4][i % 4];
    }
}

// Zero the rows of V that hold no token: their weights are 0, but 0 x NaN is not.
SP_DEVICE void clear_tail(u8* values, i32 key, i32 tokens, u32 group) {
    const i32 from = max(tokens - key, 0);
    for (i32 i = i32(threadIdx.x % 128); i < (KEYS - from) * PANELS * 8; i += 128) {
        const i32 panel = i / ((KEYS - from) * 8), rest = i % ((KEYS - from) * 8);
        *reinterpret_cast<uint4*>(values + panel * (KEYS * 128) + from * 128 + rest * 16) = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    named_barrier(1 + group, 128);
}

// Scores -> weights against the references as they are, for tiles that mask nothing; a score is c[row] times its sum. False when a
// weight of the warp is too large: the rows are then untouched.
SP_DEVICE bool soften_below_bytes(f32 (&w)[SCORES], const i32 (&s)[SCORES], Rows& rows, const f32 (&c)[2]) {
    const f32 shift[2] = {fmaf(-MAGIC, c[0], -rows.reference[0]), fmaf(-MAGIC, c[1], -rows.reference[1])};
    f32 sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
        w[i] = exp2_fast(fmaf(__int_as_float(s[i] + MAGIC_BITS), c[i / 2 % 2], shift[i / 2 % 2]));
        sum[i / 2 % 2] += w[i];
    }
    const bool fits = sum[0] <= MOST && sum[1] <= MOST;  // false for NaN
    if (!__all_sync(0xffffffffu, fits)) return false;
    rows.sum[0] += sum[0], rows.sum[1] += sum[1];
    return true;
}

SP_DEVICE void compute(u16* out, f32 factor, const Shape& shape, Shared& shared, u8* queries, u8* stages) {
    const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0), lane = threadIdx.x % 32;
    const i32 row = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;  // and row + 8
    const u64 query_tile = wgmma_descriptor(shared_address(queries) + group * 8192);
    const u64 key_tiles = wgmma_descriptor(shared_address(stages));
    const u64 value_tiles = wgmma_descriptor(shared_address(stages), 1024, KEYS * 128);
    const auto release = [&](u64* barrier) { barrier_arrive_warp(barrier, lane); };
    Ring ring;
    for (u32 query_phase = 0;; query_phase ^= 1) {
        barrier_wait(&shared.query_full, query_phase);
        const i32 tile = __shfl_sync(0xffffffffu, shared.tile, 0), steps = __shfl_sync(0xffffffffu, shared.steps, 0);
        if (tile < 0) break;
        i32 head, block;
        shape.place(tile, head, block);
        const i32 first_row = QUERIES * block, start = shape.tokens - shape.n + first_row;  // position of row 0
        const i32 group_start = start + 64 * group;
        round_queries(queries, shared.query_scale, group);
        const f32 mine[2] = {shared.query_scale[row] * factor, shared.query_scale[row + 8] * factor};
        f32 o[OUTS];
        Rows rows;
#pragma unroll
        for (int i = 0; i < OUTS; ++i) o[i] = 0;
        i32 s[SCORES];
        f32 w[SCORES];
        u32 p[SCORES / 2];
        // With references in units of log2 of a weight, as `c` differs from tile to tile.
        const auto soften_all = [&](i32 key, bool masked, const f32 (&c)[2]) {
#pragma unroll
            for (int i = 0; i < SCORES; ++i) w[i] = f32(s[i]) * c[i / 2 % 2];
            if (masked) mask(w, key, start + row);
            return soften(w, rows, 1.0f);
        };
        const auto factors = [&](u32 stage, f32 (&c)[2]) {
            const f32 scale = shared.key_scale[stage];
            c[0] = mine[0] * scale, c[1] = mine[1] * scale;
        };
        barrier_wait(&shared.full[ring.stage], ring.phase);
        i32 key = shared.first_key[ring.stage];
        f32 c[2];
        factors(ring.stage, c);
        wgmma_fence();
        scores_of(s, query_tile, moved_by(key_tiles, ring.stage * STAGE_BYTES));
        wgmma_commit();
        wgmma_wait<0>();
        sums_ready(s);
        release(&shared.empty[ring.stage]);
        ring.advance();
        if (steps == 1) release(&shared.query_empty);
        bool moved = soften_all(key, key + KEYS - 1 > group_start, c);
        u32 v_stage = 0;
        // The weights of the last scores become the A operand once the products that read the older ones are done.
        const auto take_weights = [&](bool in_flight) {
            wgmma_wait<0>();
            accumulators_ready(o);
            if (in_flight) release(&shared.empty[v_stage]);
            pack_weights(p, w);
            if (moved) {
#pragma unroll
                for (int i = 0; i < OUTS; ++i) o[i] *= rows.keep[i / 2 % 2];
            }
        };
        for (i32 step = 1; step < steps; ++step) {
            const Ring k_at = ring;
            ring.advance();
            const Ring v_at = ring;
            ring.advance();
            if (key + KEYS > shape.tokens) {
                barrier_wait(&shared.full[v_at.stage], v_at.phase);
                clear_tail(stages + v_at.stage * STAGE_BYTES, key, shape.tokens, group);
            }
            // This wait also ends the softmax's basic block: else ptxas moves the exponentials behind the next one.
            barrier_wait(&shared.full[k_at.stage], k_at.phase);
            take_weights(step > 1);
            v_stage = v_at.stage;
            key = shared.first_key[k_at.stage];
            factors(k_at.stage, c);
            wgmma_fence();
            scores_of(s, query_tile, moved_by(key_tiles, k_at.stage * STAGE_BYTES));
            wgmma_commit();
            barrier_wait(&shared.full[v_stage], v_at.phase);
            wgmma_fence();
            add_values(o, p, moved_by(value_tiles, v_stage * STAGE_BYTES));
            wgmma_commit();
            wgmma_wait<1>();
            sums_ready(s);
            const bool masked = key + KEYS - 1 > group_start;
            moved = masked || !soften_below_bytes(w, s, rows, c);
            if (moved) {
                if (!masked)
                    scores_again(s, shared_address(queries) + (row - lane / 4) * 128,
                                 shared_address(stages) + k_at.stage * STAGE_BYTES);
                moved = soften_all(key, masked, c);
            }
            accumulators_ready(w);
            release(&shared.empty[k_at.stage]);
            if (step == steps - 1) release(&shared.query_empty);
        }
        barrier_wait(&shared.full[ring.stage], ring.phase);
        take_weights(steps > 1);
        if (key + KEYS > shape.tokens) clear_tail(stages + ring.stage * STAGE_BYTES, key, shape.tokens, group);
        wgmma_fence();
        add_values(o, p, moved_by(value_tiles, ring.stage * STAGE_BYTES));
        wgmma_commit();
        wgmma_wait<0>();
        accumulators_ready(o);
        release(&shared.empty[ring.stage]);
        ring.advance();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i32 i = first_row + row + 8 * r;
            const f32 sum = quad_sum(rows.sum[r]);
            store_row(out + (i64(i) * shape.heads + head) * D, o, r, sum > 0 ? 1.0f / sum : sum, i < shape.n);
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_byte_keys(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                        const __grid_constant__ TensorMap v_map, const f32* key_scales, const i32* table, u16* out,
                        i32* next_tile, i32 tokens, i32 n, i32 heads, i32 group, i32 section, f32 scale) {
    extern __shared__ __align__(1024) u8 memory[];
    u8 *queries = memory, *stages = memory + QUERY_BYTES;
    Shared& shared = *reinterpret_cast<Shared*>(stages + STAGES * STAGE_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i)
            barrier_init(&shared.full[i], 1), barrier_init(&shared.empty[i], 8 * WARP_ARRIVALS);
        barrier_init(&shared.query_full, 1), barrier_init(&shared.query_empty, 8 * WARP_ARRIVALS);
        barrier_init_fence();
    }
    __syncthreads();
    const Shape shape = {n, tokens, heads, group, section, 0, (n + QUERIES - 1) / QUERIES, nullptr};
    if (threadIdx.x < 128) {
        registers_lower<40>();
        if (threadIdx.x < 32) load(&q_map, &k_map, &v_map, key_scales, table, next_tile, shape, shared, queries, stages);
    } else {
        registers_raise<232>();
        compute(out, scale * 1.4426950408889634f, shape, shared, queries, stages);
    }
}
