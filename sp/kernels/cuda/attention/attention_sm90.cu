// Causal attention of many queries over f16 pages, on tensor cores of sm_90a, dense or over lists of key blocks.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group],  j <= tokens - n + i, j in a list
//   with WINDOW j >= reach[i] as well; SOFTCAP and SINKS: see score_rule.cuh.
//   tokens = *stored (0 where null) + more: read on the device, so that it may change between runs of a CUDA graph.
//
// Layouts  q f16 (n, heads, D). Pages of K and V f16 (pool_pages, 128, kv_heads, D): token j is slot j % 128 of page
//   table[j / 128]. out bf16 (n, heads, D). lse f32 (heads, n): natural log of the sum of exp(scale * score), or null.
//   Lists (null: all blocks): block b is tokens 128 b .. 128 b + 127. Query head h and query block i (rows 128 i ..)
//   read blocks indices[(h * query_blocks + i) * width + 0 .. counts[h * query_blocks + i] - 1], ascending. A row
//   that sees no key gets zeros and -inf.
// Maps     4-D boxes (64 columns, rows, D / 64 panels, 1 head), 128-byte swizzle; rows are 128 queries, or KEYS
//   tokens of the pool. In shared memory a tile is D / 64 panels of rows of 128 bytes.
// Launch   one block of 384 threads an SM, 1-D grid of at most the number of tiles (query block, head); *next_tile = 0.
//   `early` query blocks at the end of each head, known to be long, go first; then `section` heads after `section`.
// Needs    D 64, 128 or 256; q, pages, out 16-byte aligned; scale > 0; 1 <= n <= tokens; heads % section == 0. Slots past
//   `tokens` may hold NaN.
//   WINDOW: no lists, reach i32 (n,) ascending, reach[i] <= tokens - n + i. sinks f32 (heads,). cap in base 2, > 0.
// Defines  D, STAGES; WINDOW, SINKS, SOFTCAP: 0 or 1.
// Arch     sm_90a.
//
// Warpgroup 0 loads: one warp feeds a ring of stages (32 KiB, at D 64 16) K0 K1 V0 K2 V1 ... by TMA. Warpgroups 1 and 2 compute 64
// query rows each, from the diagonal down: while the softmax of one tile runs, the tensor cores multiply the weights
// of the tile before by V, and whatever the other group has for them. After Shah et al., "FlashAttention-3", 2024.
#include "attention_products.cuh"

SP_DEVICE void compute(u16* out, f32* lse, f32 c, f32 cap, const f32* sinks, const Shape& shape, Shared& shared, u8* queries, u8* stages) {
    const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0), lane = threadIdx.x % 32;
    const i32 row = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;  // and row + 8
    const u64 query_tile = wgmma_descriptor(shared_address(queries) + group * 8192);
    const u64 key_tiles = wgmma_descriptor(shared_address(stages));
    const u64 value_tiles = wgmma_descriptor(shared_address(stages), 1024, KEYS * 128);
    const SoftCap capped(cap, c);
    const auto cap_all = [&](f32 (&s)[SCORES]) {
        if (SOFTCAP) {
#pragma unroll
            for (int i = 0; i < SCORES; ++i) s[i] = capped(s[i]);
        }
    };
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
        const auto reach_of = [&](i32 i) { return shape.reach[min(first_row + i, shape.n - 1)]; };
        const i32 reached[2] = {WINDOW ? reach_of(row) : 0, WINDOW ? reach_of(row + 8) : 0};
        const i32 far_end = WINDOW ? reach_of(64 * group + 63) : 0;  // before it some row of the group sees nothing

        f32 o[OUTS];
        Rows rows;
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
            cap_all(s);
            if (key + KEYS - 1 > group_start) mask(s, key, start + row);
            if (WINDOW && key < far_end) mask_far(s, key, reached);
            bool moved = soften(s, rows, c);
            u32 v_stage = 0;
            // The weights of the last scores become the A operand once the products that read the older ones are done.
            const auto take_weights = [&](bool in_flight) {
                wgmma_wait<0>();
                accumulators_ready(o);
                if (in_flight) release(&shared.empty[v_stage]);
                pack_weights(p, s);
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
                wgmma_fence();
                scores_of(s, query_tile, moved_by(key_tiles, k_at.stage * STAGE_BYTES));
                wgmma_commit();
                barrier_wait(&shared.full[v_stage], v_at.phase);
                wgmma_fence();
                add_values(o, p, moved_by(value_tiles, v_stage * STAGE_BYTES));
                wgmma_commit();
                wgmma_wait<1>();
                accumulators_ready(s);
                const bool far = WINDOW && key < far_end;
                const bool masked = key + KEYS - 1 > group_start || far;
                cap_all(s);
                moved = masked || !soften_below(s, rows, c);
                if (moved) {
                    if (masked) {
                        mask(s, key, start + row);
                        if (far) mask_far(s, key, reached);
                    } else {
                        scores_again(s, shared_address(queries) + (row - lane / 4) * 128,
                                     shared_address(stages) + k_at.stage * STAGE_BYTES);
                        cap_all(s);
                    }
                    moved = soften(s, rows, c);
                }
                accumulators_ready(s);
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
        }

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i32 i = first_row + row + 8 * r;
            f32 sum = quad_sum(rows.sum[r]);
            if (SINKS && sum > 0) sum += sink_weight(sinks, head, rows.reference[r] * c);
            const f32 inverse = sum > 0 ? 1.0f / sum : sum;
            store_row(out + (i64(i) * shape.heads + head) * D, o, r, inverse, i < shape.n);
            const f32 log2_sum = sum > 0 ? rows.reference[r] * c + log2f(sum) : -INFINITY_F;
            if (lse && i < shape.n && lane % 4 == 0) lse[i64(head) * shape.n + i] = log2_sum * 0.6931471805599453f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                   const __grid_constant__ TensorMap v_map, const i32* table, const i32* counts, const i32* indices,
                   u16* out, f32* lse, i32* next_tile, const i32* stored, i32 more, i32 n, i32 heads, i32 group,
                   i32 section, i32 early, i32 width, f32 scale, const i32* reach, f32 cap, const f32* sinks) {
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
    const i32 tokens = (stored ? *stored : 0) + more;
    const Shape shape = {n, tokens, heads, group, section, early, (n + QUERIES - 1) / QUERIES, reach};
    if (threadIdx.x < 128) {
        registers_lower<40>();
        if (threadIdx.x < 32)
            load(&q_map, &k_map, &v_map, table, counts, indices, width, next_tile, shape, shared, queries, stages);
    } else {
        registers_raise<232>();
        compute(out, lse, scale * 1.4426950408889634f, cap, sinks, shape, shared, queries, stages);
    }
}
