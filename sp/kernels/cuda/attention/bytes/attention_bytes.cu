// Causal attention of many queries in eight bits on tensor cores of sm_90a, dense or over lists of key blocks.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group],  j <= tokens - n + i, j in a list
//   with WINDOW j >= reach[i] as well; queries and keys as signed bytes, weights and values as e4m3; sums of bytes are exact, those of e4m3 are added up in
//   float32 after at most 128 FLUSH keys, since tensor cores keep about 14 bits of a sum of such products.
//
// Layouts  q f16 (n, heads, D), divided by peak / 127 row by row here. Keys i8 (kv_heads, blocks, 128 tokens, D), times
//   key_scales f32 (kv_heads, blocks); less a vector that all keys of a head share, which softmax does not see. Values
//   e4m3 (kv_heads, blocks, D, 128 tokens in the order of key_place), times value_peaks f32 (kv_heads) / 448; all see
//   kv_bytes.cu. out bf16 (n, heads, D). Lists as in attention_sm90.cu. A row that sees no key gets zeros.
// Maps     q as in attention_sm90.cu; keys as rows of D bytes, boxes of 128 rows, D-byte swizzle; values as rows of 128
//   bytes, boxes of D rows, 128-byte swizzle.
// Launch   one block of 384 threads an SM, 1-D grid of at most the number of tiles (query block, head); *next_tile = 0.
//   `early` and `section` as in attention_sm90.cu.
// Needs    scale > 0; 1 <= n <= tokens; blocks = ceil(tokens / 128); heads % section == 0.
//   WINDOW: no lists, reach i32 (n,) ascending, reach[i] <= tokens - n + i.
// Defines  HEAD_DIM (D): 64 or 128; STAGES; WINDOW: 0 or 1.
// Arch     sm_90a.
//
// Warpgroup 0 loads. Warpgroups 1 and 2 compute 64 query rows each, from the diagonal down: while the softmax of one tile
// runs, the tensor cores multiply the weights of the tile before by V, and while outputs are added up they multiply the
// next keys. After Shah et al., "FlashAttention-3", 2024, and Zhang et al., "SageAttention2", 2024.
#include "byte_loads.cuh"
#include "softmax_bytes.cuh"

#define FLUSH 8  // tiles

// A descriptor moves by adding bytes / 16 to its low word: shared addresses fit in the field.
SP_DEVICE u64 moved_by(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

SP_DEVICE u32 pack_codes(const u32* pairs, f32 inverse) {
    const i32 a = __float2int_rn(low_f16(pairs[0]) * inverse), b = __float2int_rn(high_f16(pairs[0]) * inverse);
    const i32 c = __float2int_rn(low_f16(pairs[1]) * inverse), d = __float2int_rn(high_f16(pairs[1]) * inverse);
    return u32(a & 255) | u32(b & 255) << 8 | u32(c & 255) << 16 | u32(d) << 24;
}

// Where the byte at `offset` of a tile of codes, rows of D bytes, is in shared memory, and the tile's descriptor.
SP_DEVICE u32 code_place(u32 offset) { return D == 128 ? swizzle_128(offset) : offset ^ ((offset >> 3) & 0x30u); }
SP_DEVICE u64 code_descriptor(u32 address) {
    return (wgmma_descriptor(address, 8 * D) & ~(u64(3) << 62)) | u64(D == 128 ? 1 : 2) << 62;
}

// The group's 64 queries to bytes: two threads a row, each half of its values.
SP_DEVICE void round_queries(const u8* queries, u8* codes, f32* scales, u32 group) {
    const u32 thread = threadIdx.x % 128, row = 64 * group + thread / 2, half = thread % 2;
    const u32 panel = D == 128 ? half : 0, inside = D == 128 ? 0 : 64 * half;  // of 64 values, and bytes into its row
    u32 words[D / 4];
    f32 peak = 0;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        const uint4 eight = *reinterpret_cast<const uint4*>(queries + panel * (QUERIES * 128) +
                                                            swizzle_128(row * 128 + inside + 16 * i));
        words[4 * i] = eight.x, words[4 * i + 1] = eight.y, words[4 * i + 2] = eight.z, words[4 * i + 3] = eight.w;
#pragma unroll
        for (int j = 4 * i; j < 4 * i + 4; ++j)
            peak = fmaxf(peak, fmaxf(fabsf(low_f16(words[j])), fabsf(high_f16(words[j]))));
    }
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    const f32 inverse = peak > 0 ? __fdiv_rn(127.0f, peak) : 0.0f;
    named_barrier(1 + group, 128);  // the previous bytes may still be an operand
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        const u32* from = words + 8 * i;
        const uint4 sixteen = {pack_codes(from, inverse), pack_codes(from + 2, inverse), pack_codes(from + 4, inverse),
                               pack_codes(from + 6, inverse)};
        *reinterpret_cast<uint4*>(codes + code_place(row * D + D / 2 * half + 16 * i)) = sixteen;
    }
    if (half == 0) scales[row] = peak * (1.0f / 127.0f);
    fence_async_proxy();
    named_barrier(1 + group, 128);
}

SP_DEVICE void scores_of(i32 (&s)[64], u64 queries, u64 keys) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 32; ++k) wgmma_bytes(s, moved_by(queries, 32 * k), moved_by(keys, 32 * k), k > 0);
    wgmma_commit();
}

// Adds; the last four are sums of weights, from eight columns of ones.
SP_DEVICE void values_of(f32 (&t)[D / 2 + 4], const u32 (&p)[16], u64 values) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_e4m3(t, p + 4 * k, moved_by(values, 32 * k));
    wgmma_commit();
}

SP_DEVICE void flush(f32 (&o)[D / 2], f32 (&sum)[2], f32 (&t)[D / 2 + 4], const f32 (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) o[i] = (o[i] + t[i]) * keep[i / 2 % 2];
    sum[0] = (sum[0] + t[D / 2]) * keep[0], sum[1] = (sum[1] + t[D / 2 + 2]) * keep[1];
#pragma unroll
    for (int i = 0; i < D / 2 + 4; ++i) t[i] = 0;
}

SP_DEVICE void compute(u16* out, const f32* value_peaks, f32 factor, const Shape& shape, Shared& shared, u8* queries,
                       u8* codes, u8* stages) {
    const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0), lane = threadIdx.x % 32;
    const i32 row = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;  // and row + 8
    const u64 query_tile = code_descriptor(shared_address(codes) + group * (64 * D));
    const u64 key_tiles = code_descriptor(shared_address(stages)), value_tiles = wgmma_descriptor(shared_address(stages));
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
        round_queries(queries, codes, shared.query_scale, group);
        const f32 scales[2] = {shared.query_scale[row] * factor, shared.query_scale[row + 8] * factor};
        release(&shared.query_empty);

        f32 o[D / 2] = {}, sum[2] = {}, t[D / 2 + 4] = {};
        if (steps > 0) {
            i32 s[64];
            u32 w[32];
            u32 p[16];
            f32 reference[2] = {-INFINITY_F, -INFINITY_F}, keep[2];
            bool moved;
            u32 v_stage = 0;
            const auto weigh = [&](u32 stage) {
                const i32 key = shared.first_key[stage];
                const f32 scale = shared.key_scale[stage], c[2] = {scales[0] * scale, scales[1] * scale};
                release(&shared.empty[stage]);
                const bool far = WINDOW && key < far_end;
                if (far || key + KEYS - 1 > group_start) {
                    hide(s, key, start + row);
                    if (far) hide_far(s, key, reached);
                    moved = soften<true>(w, s, reference, keep, c);
                } else {
                    moved = soften<false>(w, s, reference, keep, c);
                }
            };
            const auto take = [&](bool full) {
                if (moved || full) flush(o, sum, t, keep);
                sums_ready(w);
                pack_weights(p, w);
            };
            barrier_wait(&shared.full[ring.stage], ring.phase);
            scores_of(s, query_tile, moved_by(key_tiles, ring.stage * STAGE_BYTES));
            wgmma_wait<0>();
            sums_ready(s);
            weigh(ring.stage);
            ring.advance();
            for (i32 step = 1; step < steps; ++step) {
                const Ring k_at = ring;
                ring.advance();
                const Ring v_at = ring;
                ring.advance();
                barrier_wait(&shared.full[k_at.stage], k_at.phase);
                wgmma_wait<0>();
                sums_ready(t);
                if (step > 1) release(&shared.empty[v_stage]);
                take(step % FLUSH == 0);
                v_stage = v_at.stage;
                scores_of(s, query_tile, moved_by(key_tiles, k_at.stage * STAGE_BYTES));
                barrier_wait(&shared.full[v_stage], v_at.phase);
                values_of(t, p, moved_by(value_tiles, v_stage * STAGE_BYTES));
                wgmma_wait<1>();
                sums_ready(s);
                weigh(k_at.stage);
            }
            wgmma_wait<0>();
            sums_ready(t);
            if (steps > 1) release(&shared.empty[v_stage]);
            take(false);
            barrier_wait(&shared.full[ring.stage], ring.phase);
            values_of(t, p, moved_by(value_tiles, ring.stage * STAGE_BYTES));
            wgmma_wait<0>();
            sums_ready(t);
            release(&shared.empty[ring.stage]);
            keep[0] = keep[1] = 1;
            flush(o, sum, t, keep);
            ring.advance();
        }

        const f32 value_scale = value_peaks[head / shape.group] * (1.0f / 448.0f);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i32 i = first_row + row + 8 * r;
            const f32 inverse = sum[r] > 0 ? value_scale / sum[r] : 0.0f;
            store_row(out + (i64(i) * shape.heads + head) * D, o, r, inverse, i < shape.n);
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_bytes(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                    const __grid_constant__ TensorMap v_map, const f32* key_scales, const f32* value_peaks,
                    const i32* counts, const i32* indices, u16* out, i32* next_tile, i32 tokens, i32 n, i32 heads,
                    i32 group, i32 section, i32 early, i32 width, f32 scale, const i32* reach) {
    extern __shared__ __align__(1024) u8 memory[];
    u8 *queries = memory, *codes = queries + QUERY_BYTES, *stages = codes + CODE_BYTES;
    Shared& shared = *reinterpret_cast<Shared*>(stages + STAGES * STAGE_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i)
            barrier_init(&shared.full[i], 1), barrier_init(&shared.empty[i], 8 * WARP_ARRIVALS);
        barrier_init(&shared.query_full, 1), barrier_init(&shared.query_empty, 8 * WARP_ARRIVALS);
        barrier_init_fence();
    }
    for (u32 i = threadIdx.x; i < STAGES * 256; i += 384)  // 256 words a stage: 1 in e4m3
        reinterpret_cast<u32*>(stages + i / 256 * STAGE_BYTES + TILE_BYTES)[i % 256] = 0x38383838;
    fence_async_proxy();
    __syncthreads();
    const Shape shape = {n, tokens, heads, group, section, early, (n + QUERIES - 1) / QUERIES, reach};
    if (threadIdx.x < 128) {
        registers_lower<24>();
        if (threadIdx.x < 32)
            load(&q_map, &k_map, &v_map, key_scales, counts, indices, width, next_tile, shape, shared, queries, stages);
    } else {
        registers_raise<240>();
        compute(out, value_peaks, scale * 1.4426950408889634f, shape, shared, queries, codes, stages);
    }
}
