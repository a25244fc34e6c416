// Causal attention of many queries over f16 pages that leaves out tiles of little weight as it meets them, on tensor
// cores of sm_90a ("skip softmax").
//
//   out[i, h] = sum_j w_ij v[j, h / group] / sum_j w_ij,  w_ij = exp(scale * q[i, h] . k[j, h / group]),  j <= tokens - n + i
//   over tiles of KEYS keys that are read. For 64 rows together a tile is left out if for each row its weights sum to at
//   most `share`, and those of all tiles left out and it to at most `budget`, of all that the row has met, them included.
//
// Layouts  as in attention_sm90.cu; no lists. read i32 (heads, query_blocks, 2): of the tiles that 64 rows see, those
//   whose values were read.
// Maps     as in attention_sm90.cu.
// Launch   one block of 384 threads an SM, 1-D grid of at most the number of tiles (query block, head); *next_tile = 0.
//   `section` heads after `section`.
// Needs    D 64, 128 or 256; q, pages, out 16-byte aligned; scale > 0; 1 <= n <= tokens; heads % section == 0;
//   0 <= share, budget < 1. Slots past `tokens` may hold NaN.
// Defines  D, STAGES.
// Arch     sm_90a.
//
// Loading and products are those of attention_sm90.cu, and values are loaded even where they are not read, since the
// loading warp runs ahead. The first tile, which often holds most weight, comes first, so that others can be judged by
// it; then from the diagonal down. After Yuan et al., "BLASST: Dynamic BLocked Attention Sparsity via Softmax
// Thresholding", 2025, whose rule bounds the largest weight of a tile by the largest that a row has met.
#include "attention_products.cuh"

// True in all 128 threads of a group if `mine` is in each.
SP_DEVICE bool group_all(u32 group, bool mine) {
    i32 all;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.and.pred q, %2, 128, p;\nselp.s32 %0, 1, 0, q;\n}"
        : "=r"(all)
        : "r"(i32(mine)), "r"(1 + group)
        : "memory");
    return all != 0;
}

// Weights against the references as they are, and the thread's sums of them; false as in soften_below.
SP_DEVICE bool weights_below(f32 (&s)[SCORES], f32 (&sum)[2], const Rows& rows, f32 c) {
    const f32 shift[2] = {-rows.reference[0] * c, -rows.reference[1] * c};
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
        s[i] = exp2_fast(fmaf(s[i], c, shift[i / 2 % 2]));
        sum[i / 2 % 2] += s[i];
    }
    return __all_sync(0xffffffffu, sum[0] <= MOST && sum[1] <= MOST);
}

// Run by one whole warp, as `load` of attention_loads.cuh, in the order 0, last, last - 1, ..., 1 of tiles.
SP_DEVICE void load_whole(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map, const i32* table,
                          i32* next_tile, const Shape& shape, Shared& shared, u8* queries, u8* stages) {
    const u32 lane = threadIdx.x % 32;
    const i32 tiles = shape.heads * shape.query_blocks;
    Ring ring;
    ring.phase = 1;  // the first wait on an empty stage passes
    u32 query_phase = 1;
    for (i32 tile = blockIdx.x; tile < tiles; query_phase ^= 1) {
        i32 head, block;
        shape.place(tile, head, block);
        const i32 steps = (min(shape.tokens - shape.n + QUERIES * block + QUERIES, shape.tokens) - 1) / KEYS + 1;
        if (lane == 0) {
            barrier_wait(&shared.query_empty, query_phase);
            shared.tile = tile, shared.steps = steps;
            barrier_expect(&shared.query_full, QUERY_BYTES);
            tensor_load(queries, q_map, &shared.query_full, 0, QUERIES * block, 0, head);
        }
        const auto copy = [&](const TensorMap* map, i32 key, i32 row) {
            if (lane == 0) {
                barrier_wait(&shared.empty[ring.stage], ring.phase);
                shared.first_key[ring.stage] = key;
                barrier_expect(&shared.full[ring.stage], STAGE_BYTES);
                u8* stage = stages + ring.stage * STAGE_BYTES;
                tensor_load(stage, map, &shared.full[ring.stage], 0, row, 0, head / shape.group);
            }
            ring.advance();
        };
        i32 my_key = 0, my_row = 0, key = 0, row = 0;
        for (i32 step = 0; step < steps; ++step) {
            if (step % 32 == 0) {  // each lane looks up the page of one of the next 32 tiles
                const i32 mine = min(step + i32(lane), steps - 1);
                my_key = mine == 0 ? 0 : (steps - mine) * KEYS;
                my_row = table[my_key / PAGE] * PAGE + my_key % PAGE;
            }
            const i32 next_key = __shfl_sync(0xffffffffu, my_key, step % 32);
            const i32 next_row = __shfl_sync(0xffffffffu, my_row, step % 32);
            copy(k_map, next_key, next_row);
            if (step > 0) copy(v_map, key, row);
            key = next_key, row = next_row;
        }
        copy(v_map, key, row);
        if (lane == 0) tile = gridDim.x + atomicAdd(next_tile, 1);
        tile = __shfl_sync(0xffffffffu, tile, 0);
    }
    if (lane == 0) {
        barrier_wait(&shared.query_empty, query_phase);
        shared.tile = -1;
        barrier_arrive(&shared.query_full);
    }
}

SP_DEVICE void compute(u16* out, i32* read, f32 c, f32 share, f32 budget, const Shape& shape, Shared& shared, u8* queries,
                       u8* stages) {
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

        f32 o[OUTS], s[SCORES];
        u32 p[SCORES / 2];
        Rows rows;
        f32 met[2] = {0, 0};  // the thread's part of all weights of its rows, as rows.sum is of those that are read
#pragma unroll
        for (int i = 0; i < OUTS; ++i) o[i] = 0;

        // Weights of the scores in s, whatever they are, from references that move if they must.
        const auto soften_all = [&]() {
            const f32 before[2] = {rows.sum[0], rows.sum[1]};
            const bool moved = soften(s, rows, c);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const f32 keep = moved ? rows.keep[r] : 1.0f;
                met[r] = met[r] * keep + (rows.sum[r] - before[r] * keep);
            }
            return moved;
        };
        barrier_wait(&shared.full[ring.stage], ring.phase);
        i32 key = shared.first_key[ring.stage];
        i32 taken = (min(group_start + 64, shape.tokens) - 1) / KEYS + 1;  // of the tiles that the group sees
        wgmma_fence();
        scores_of(s, query_tile, moved_by(key_tiles, ring.stage * STAGE_BYTES));
        wgmma_commit();
        wgmma_wait<0>();
        accumulators_ready(s);
        release(&shared.empty[ring.stage]);
        ring.advance();
        if (steps == 1) release(&shared.query_empty);
        if (key + KEYS - 1 > group_start) mask(s, key, start + row);
        bool moved = soften_all(), in_flight = false;
        // Rows that do not exist have no say in what is left out. They may meet NaN behind the last token, too.
        if (first_row + row >= shape.n) met[0] = __int_as_float(0x7fffffff);
        if (first_row + row + 8 >= shape.n) met[1] = __int_as_float(0x7fffffff);
        f32 sum[2] = {INFINITY_F, INFINITY_F};  // the thread's, of the last tile's weights; infinite if it must be read
        u32 v_stage = 0;
        // The weights of the last scores become the A operand once the products that read the older ones are done.
        const auto take_weights = [&]() {
            wgmma_wait<0>();
            accumulators_ready(o);
            if (in_flight) release(&shared.empty[v_stage]);
            pack_weights(p, s);
            if (moved) {
#pragma unroll
                for (int i = 0; i < OUTS; ++i) o[i] *= rows.keep[i / 2 % 2];
            }
        };
        // Whether they are multiplied is decided while the next scores are computed.
        const auto multiply_values = [&](const Ring& v_at) {
            bool may = sum[0] < INFINITY_F;
#pragma unroll
            for (int r = 0; r < 2; ++r) {  // all lanes add up both rows, whatever the first one says
                const f32 small = quad_sum(share * met[r] - sum[r]);
                const f32 spare = quad_sum(rows.sum[r] - (1.0f - budget) * met[r]);
                may &= !(small < 0) & !(spare < 0);  // NaN has no say
            }
            const bool left = group_all(group, may);
            v_stage = v_at.stage, in_flight = !left;
            barrier_wait(&shared.full[v_stage], v_at.phase);
            if (left) {
                wgmma_wait<0>();
                release(&shared.empty[v_stage]);
                taken--;
                return;
            }
            if (sum[0] < INFINITY_F) rows.sum[0] += sum[0], rows.sum[1] += sum[1];
            wgmma_fence();
            add_values(o, p, moved_by(value_tiles, v_stage * STAGE_BYTES));
            wgmma_commit();
            wgmma_wait<1>();
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
            take_weights();
            key = shared.first_key[k_at.stage];
            wgmma_fence();
            scores_of(s, query_tile, moved_by(key_tiles, k_at.stage * STAGE_BYTES));
            wgmma_commit();
            multiply_values(v_at);
            accumulators_ready(s);
            const bool masked = key + KEYS - 1 > group_start;
            if (masked) mask(s, key, start + row);
            const bool below = !masked && weights_below(s, sum, rows, c);
            moved = false;
            if (below) {
                met[0] += sum[0], met[1] += sum[1];
            } else {
                sum[0] = sum[1] = INFINITY_F;
                if (!masked)
                    scores_again(s, shared_address(queries) + (row - lane / 4) * 128,
                                 shared_address(stages) + k_at.stage * STAGE_BYTES);
                moved = soften_all();
            }
            accumulators_ready(s);
            release(&shared.empty[k_at.stage]);
            if (step == steps - 1) release(&shared.query_empty);
        }
        const Ring v_at = ring;
        ring.advance();
        barrier_wait(&shared.full[v_at.stage], v_at.phase);
        take_weights();
        if (key + KEYS > shape.tokens) clear_tail(stages + v_at.stage * STAGE_BYTES, key, shape.tokens, group);
        multiply_values(v_at);
        wgmma_wait<0>();
        accumulators_ready(o);
        if (in_flight) release(&shared.empty[v_stage]);

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i32 i = first_row + row + 8 * r;
            const f32 sum = quad_sum(rows.sum[r]);
            store_row(out + (i64(i) * shape.heads + head) * D, o, r, sum > 0 ? 1.0f / sum : sum, i < shape.n);
        }
        if (threadIdx.x % 128 == 0)
            read[(i64(head) * shape.query_blocks + block) * 2 + group] = first_row + row < shape.n ? taken : 0;
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_skip(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                   const __grid_constant__ TensorMap v_map, const i32* table, u16* out, i32* read, i32* next_tile,
                   i32 tokens, i32 n, i32 heads, i32 group, i32 section, f32 scale, f32 share,
                   f32 budget) {
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
        if (threadIdx.x < 32)
            load_whole(&q_map, &k_map, &v_map, table, next_tile, shape, shared, queries, stages);
    } else {
        registers_raise<232>();
        compute(out, read, scale * 1.4426950408889634f, share, budget, shape, shared, queries, stages);
    }
}
