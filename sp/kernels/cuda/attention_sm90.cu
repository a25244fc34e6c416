// Causal attention of many queries over f16 pages, on tensor cores of sm_90a, dense or over lists of key blocks.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group],  j <= tokens - n + i, j in the lists
//
// Layouts  q f16 (n, heads, D). Pages of K and V f16 (pool_pages, 128, kv_heads, D): token j is slot j % 128 of page
//   table[j / 128]. out bf16 (n, heads, D). lse f32 (heads, n): natural log of the sum of exp(scale * score), or null.
//   Lists (null means all blocks): block b holds tokens 128 b .. 128 b + 127; query head h and query block i (rows 128 i ..)
//   read blocks indices[(h * query_blocks + i) * width + 0 .. counts[h * query_blocks + i] - 1], ascending. A row that sees
//   no key gets zeros and -inf.
// Maps     4-D boxes (64 columns, rows, D / 64 panels, 1 head), 128-byte swizzle: q rows are 128 queries, k and v rows KEYS
//   tokens of the pool. In shared memory a tile is D / 64 panels of rows of 128 bytes.
// Launch   one block of 384 threads an SM, 1-D grid of at most the number of tiles (query block, head); *next_tile = 0.
//   Tiles are taken longest rows first, `section` heads side by side (heads % section == 0).
// Needs    D 128 or 256, q, pages, out 16-byte aligned, scale > 0, any n >= 1, tokens >= n. Slots past `tokens` may hold NaN.
// Arch     sm_90a.
//
// Warpgroup 0 loads: one warp feeds a ring of 32 KiB stages K0 K1 V0 K2 V1 ... by TMA. Warpgroups 1 and 2 compute 64 query
// rows each: scores of the next tile are in the tensor cores while the softmax of this one runs, and named barriers let the
// two groups take turns, so that one's softmax hides behind the other's products. Keys are walked from the diagonal down.
// After Shah et al., "FlashAttention-3", 2024 (warp specialisation, overlap, turns), and FlashAttention-4 (the row
// reference moves, and O is rescaled, only when a maximum passes it by 2^8).
#include "wgmma_f16.cuh"

#define QUERIES 128
#define PAGE 128
#define KEYS (16384 / D)  // keys of a tile: 128 at D 128, 64 at D 256
#define PARTS (PAGE / KEYS)
#define PANELS (D / 64)
#define STAGE_BYTES 32768
#define QUERY_BYTES (QUERIES * D * 2)
#define SCORES (KEYS / 2)  // of one thread: 64 rows x KEYS over 128 threads
#define OUTS (D / 2)
#define RISE 8.0f
#define INFINITY_F __int_as_float(0x7f800000)
#ifndef TURNS
#define TURNS 1
#endif

struct Shared {
    u64 full[STAGES], empty[STAGES];
    u64 query_full, query_empty;
    i32 first_key[STAGES];  // token of the first key of the tile in a stage
    i32 tile, steps;        // of the queries now loaded; tile -1 ends the block
};

struct Ring {
    u32 stage = 0, phase = 0;
    SP_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

struct Shape {
    i32 n, tokens, heads, group, section, query_blocks;
    SP_DEVICE void place(i32 tile, i32& head, i32& block) const {
        const i32 sections = tile / (section * query_blocks), rest = tile % (section * query_blocks);
        head = sections * section + rest % section;
        block = query_blocks - 1 - rest / section;
    }
};

SP_DEVICE f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SP_DEVICE f32 quad_max(f32 x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

SP_DEVICE f32 quad_sum(f32 x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// ---- the loading warp

SP_DEVICE void load(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map, const i32* table,
                    const i32* counts, const i32* indices, i32 width, i32* next_tile, const Shape& shape, Shared& shared,
                    u8* queries, u8* stages) {
    const u32 lane = threadIdx.x % 32;
    const i32 tiles = shape.heads * shape.query_blocks;
    Ring ring;
    ring.phase = 1;  // the first wait on an empty stage passes
    u32 query_phase = 1;
    for (i32 tile = blockIdx.x; tile < tiles; query_phase ^= 1) {
        i32 head, block;
        shape.place(tile, head, block);
        const i32 last = min(shape.tokens - shape.n + QUERIES * block + QUERIES, shape.tokens) - 1;
        const i64 list = i64(head) * shape.query_blocks + block;
        const i32 blocks = counts ? counts[list] : last / PAGE + 1;
        const i32* listed = counts ? indices + list * width : nullptr;
        const i32 top = blocks == 0 ? 0 : listed ? listed[blocks - 1] : blocks - 1;
        const i32 skip = blocks > 0 && PARTS == 2 && top * PAGE + KEYS > last;  // upper half of the last page unseen
        const i32 end = blocks * PARTS;
        if (lane == 0) {
            barrier_wait(&shared.query_empty, query_phase);
            shared.tile = tile;
            shared.steps = end - skip;
            barrier_expect(&shared.query_full, QUERY_BYTES);
            tensor_load(queries, q_map, &shared.query_full, 0, QUERIES * block, 0, head);
        }
        const i32 kv_head = head / shape.group;
        auto copy = [&](const TensorMap* map, i32 key, i32 row) {
            if (lane == 0) {
                barrier_wait(&shared.empty[ring.stage], ring.phase);
                shared.first_key[ring.stage] = key;
                barrier_expect(&shared.full[ring.stage], STAGE_BYTES);
                tensor_load(stages + ring.stage * STAGE_BYTES, map, &shared.full[ring.stage], 0, row, 0, kv_head);
            }
            ring.advance();
        };
        i32 my_key = 0, my_row = 0, key = 0, row = 0;
        for (i32 step = skip; step < end; ++step) {
            if ((step - skip) % 32 == 0) {  // each lane looks up the page of one of the next 32 tiles
                const i32 mine = min(step + i32(lane), end - 1), ordinal = blocks - 1 - mine / PARTS;
                const i32 part = (PARTS - 1 - mine % PARTS) * KEYS, index = listed ? listed[ordinal] : ordinal;
                my_key = index * PAGE + part;
                my_row = table[index] * PAGE + part;
            }
            const i32 next_key = __shfl_sync(0xffffffffu, my_key, (step - skip) % 32);
            const i32 next_row = __shfl_sync(0xffffffffu, my_row, (step - skip) % 32);
            copy(k_map, next_key, next_row);
            if (step > skip) copy(v_map, key, row);
            key = next_key, row = next_row;
        }
        if (end > 0) copy(v_map, key, row);
        if (lane == 0) tile = gridDim.x + atomicAdd(next_tile, 1);
        tile = __shfl_sync(0xffffffffu, tile, 0);
    }
    if (lane == 0) {
        barrier_wait(&shared.query_empty, query_phase);
        shared.tile = -1;
        barrier_arrive(&shared.query_full);
    }
}

// ---- the computing warpgroups

// A descriptor moves by adding bytes / 16 to its low word: shared addresses fit in the field.
SP_DEVICE u64 moved_by(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

SP_DEVICE void scores_of(f32 (&s)[SCORES], u64 queries, u64 keys) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        wgmma_ss(s, moved_by(queries, (k / 4) * (QUERIES * 128) + (k % 4) * 32),
                 moved_by(keys, (k / 4) * (KEYS * 128) + (k % 4) * 32), k > 0);
}

SP_DEVICE void add_values(f32 (&o)[OUTS], const u32 (&p)[SCORES / 2], u64 values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) wgmma_rs(o, p + 4 * k, moved_by(values, k * 2048));
}

// Scores of keys past the row's own position become -inf.
SP_DEVICE void mask(f32 (&s)[SCORES], i32 key, i32 position) {
    const i32 limit = position - key - 2 * i32(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < SCORES / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            if (8 * j + e > limit) s[4 * j + e] = -INFINITY_F;
            if (8 * j + e > limit + 8) s[4 * j + 2 + e] = -INFINITY_F;
        }
    }
}

// Row references and sums of the two rows of a thread.
struct Rows {
    f32 top[2], sum[2], keep[2];
};

// Scores -> weights 2^(c (score - reference)) in place. True when the references moved: O must then be scaled by keep.
SP_DEVICE bool soften(f32 (&s)[SCORES], Rows& rows, f32 c) {
    f32 high[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < SCORES; ++i) high[i / 2 % 2] = fmaxf(high[i / 2 % 2], s[i]);
    high[0] = quad_max(high[0]), high[1] = quad_max(high[1]);
    const f32 slack = RISE / c;
    const bool moved = __any_sync(0xffffffffu, high[0] > rows.top[0] + slack || high[1] > rows.top[1] + slack);
    if (moved) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const f32 top = fmaxf(rows.top[r], high[r]);
            rows.keep[r] = top == -INFINITY_F ? 0.0f : exp2_fast((rows.top[r] - top) * c);
            rows.sum[r] *= rows.keep[r];
            rows.top[r] = top;
        }
    }
    const f32 shift[2] = {rows.top[0] == -INFINITY_F ? 0.0f : -rows.top[0] * c,
                          rows.top[1] == -INFINITY_F ? 0.0f : -rows.top[1] * c};
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
        s[i] = exp2_fast(fmaf(s[i], c, shift[i / 2 % 2]));
        rows.sum[i / 2 % 2] += s[i];
    }
    return moved;
}

SP_DEVICE void pack(u32 (&p)[SCORES / 2], const f32 (&s)[SCORES]) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; ++i) p[i] = pack_f16(s[2 * i], s[2 * i + 1]);
}

// Zero the rows of V that hold no token: their weights are 0, but 0 x NaN is not.
SP_DEVICE void clear_tail(u8* values, i32 key, i32 tokens, u32 group) {
    const i32 from = max(tokens - key, 0);
    for (i32 i = i32(threadIdx.x % 128); i < (KEYS - from) * PANELS * 8; i += 128) {
        const i32 panel = i / ((KEYS - from) * 8), rest = i % ((KEYS - from) * 8);
        *reinterpret_cast<uint4*>(values + panel * (KEYS * 128) + from * 128 + rest * 16) = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    named_barrier(3 + group, 128);
}

SP_DEVICE void compute(u16* out, f32* lse, f32 c, const Shape& shape, Shared& shared, u8* queries, u8* stages) {
    const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0), lane = threadIdx.x % 32;
    const i32 row = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;  // and row + 8
    const u64 query_tile = wgmma_descriptor(shared_address(queries) + group * 8192);
    const u64 key_tiles = wgmma_descriptor(shared_address(stages));
    const u64 value_tiles = wgmma_descriptor(shared_address(stages), 1024, KEYS * 128);
    const auto release = [&](u64* barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    const auto my_turn = [&]() {
        if (TURNS) named_barrier(1 + group, 256);
    };
    const auto your_turn = [&]() {
        if (TURNS) named_barrier_arrive(2 - group, 256);
    };
    Ring ring;
    if (group == 1) your_turn();
    for (u32 query_phase = 0;; query_phase ^= 1) {
        barrier_wait(&shared.query_full, query_phase);
        const i32 tile = __shfl_sync(0xffffffffu, shared.tile, 0), steps = __shfl_sync(0xffffffffu, shared.steps, 0);
        if (tile < 0) break;
        i32 head, block;
        shape.place(tile, head, block);
        const i32 first_row = QUERIES * block, start = shape.tokens - shape.n + first_row;  // position of row 0
        const i32 group_start = start + 64 * group;

        f32 o[OUTS];
        Rows rows = {{-INFINITY_F, -INFINITY_F}, {0, 0}, {1, 1}};
#pragma unroll
        for (int i = 0; i < OUTS; ++i) o[i] = 0;

        if (steps == 0) release(&shared.query_empty);
        if (steps > 0) {
            f32 s[SCORES];
            u32 p[SCORES / 2];
            barrier_wait(&shared.full[ring.stage], ring.phase);
            i32 key = shared.first_key[ring.stage];
            wgmma_fence();
            scores_of(s, query_tile, moved_by(key_tiles, ring.stage * STAGE_BYTES));
            wgmma_commit();
            wgmma_wait<0>();
            accumulators_ready(s);
            release(&shared.empty[ring.stage]);
            ring.advance();
            if (steps == 1) release(&shared.query_empty);
            if (key + KEYS - 1 > group_start) mask(s, key, start + row);
            bool moved = soften(s, rows, c);
            u32 v_stage = 0;
            // The weights of the last scores become the A operand once the products that read the older ones are done.
            const auto take_weights = [&](bool in_flight) {
                wgmma_wait<0>();
                accumulators_ready(o);
                if (in_flight) release(&shared.empty[v_stage]);
                pack(p, s);
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
                // This wait also ends the basic block of the softmax: else ptxas moves the exponentials behind the next one.
                barrier_wait(&shared.full[k_at.stage], k_at.phase);
                take_weights(step > 1);
                v_stage = v_at.stage;
                key = shared.first_key[k_at.stage];
                my_turn();
                wgmma_fence();
                scores_of(s, query_tile, moved_by(key_tiles, k_at.stage * STAGE_BYTES));
                wgmma_commit();
                barrier_wait(&shared.full[v_stage], v_at.phase);
                wgmma_fence();
                add_values(o, p, moved_by(value_tiles, v_stage * STAGE_BYTES));
                wgmma_commit();
                your_turn();
                wgmma_wait<1>();
                accumulators_ready(s);
                release(&shared.empty[k_at.stage]);
                if (step == steps - 1) release(&shared.query_empty);
                if (key + KEYS - 1 > group_start) mask(s, key, start + row);
                moved = soften(s, rows, c);
                accumulators_ready(s);
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
        }

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i32 i = first_row + row + 8 * r;
            const f32 sum = quad_sum(rows.sum[r]), inverse = sum > 0 ? 1.0f / sum : sum;
            if (i >= shape.n) continue;
            u32* to = reinterpret_cast<u32*>(out + (i64(i) * shape.heads + head) * D) + lane % 4;
#pragma unroll
            for (int j = 0; j < OUTS / 4; ++j) to[4 * j] = pack_bf16(o[4 * j + 2 * r] * inverse, o[4 * j + 2 * r + 1] * inverse);
            if (lse && lane % 4 == 0)
                lse[i64(head) * shape.n + i] = sum > 0 ? 0.6931471805599453f * (rows.top[r] * c + log2f(sum)) : -INFINITY_F;
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                   const __grid_constant__ TensorMap v_map, const i32* table, const i32* counts, const i32* indices,
                   u16* out, f32* lse, i32* next_tile, i32 n, i32 tokens, i32 heads, i32 group, i32 section, i32 width,
                   f32 scale) {
    extern __shared__ __align__(1024) u8 memory[];
    u8 *queries = memory, *stages = memory + QUERY_BYTES;
    Shared& shared = *reinterpret_cast<Shared*>(stages + STAGES * STAGE_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(&shared.full[i], 1), barrier_init(&shared.empty[i], 8);
        barrier_init(&shared.query_full, 1), barrier_init(&shared.query_empty, 8);
        barrier_init_fence();
    }
    __syncthreads();
    const Shape shape = {n, tokens, heads, group, section, (n + QUERIES - 1) / QUERIES};
    if (threadIdx.x < 128) {
        registers_lower<40>();
        if (threadIdx.x < 32)
            load(&q_map, &k_map, &v_map, table, counts, indices, width, next_tile, shape, shared, queries, stages);
    } else {
        registers_raise<232>();
        compute(out, lse, scale * 1.4426950408889634f, shape, shared, queries, stages);
    }
}
