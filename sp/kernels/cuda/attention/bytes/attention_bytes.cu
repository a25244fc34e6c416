// Causal attention of many queries in eight bits on tensor cores of sm_90a, dense or over lists of key blocks.
//
//   out[i, h] = sum_j softmax_j( scale * q[i, h] . k[j, h / group] ) v[j, h / group],  j <= tokens - n + i, j in a list
//   queries and keys as signed bytes, weights and values as e4m3; sums of bytes are exact, those of e4m3 are added up in
//   float32 after at most 128 FLUSH keys, since tensor cores keep about 14 bits of a sum of such products.
//
// Layouts  q f16 (n, heads, 128), divided by peak / 127 row by row here. Keys i8 (kv_heads, blocks, 128 tokens, 128), times
//   key_scales f32 (kv_heads, blocks); less a vector that all keys of a head share, which softmax does not see. Values
//   e4m3 (kv_heads, blocks, 128, 128 tokens in the order of key_place), times value_peaks f32 (kv_heads) / 448; all see
//   kv_bytes.cu. out bf16 (n, heads, 128). Lists as in attention_sm90.cu. A row that sees no key gets zeros.
// Maps     q as in attention_sm90.cu; keys and values as rows of 128 bytes, boxes of 128, 128-byte swizzle.
// Launch   one block of 384 threads an SM, 1-D grid of at most the number of tiles (query block, head); *next_tile = 0.
//   `early` and `section` as in attention_sm90.cu.
// Needs    scale > 0; 1 <= n <= tokens; blocks = ceil(tokens / 128); heads % section == 0.
// Arch     sm_90a.
//
// Warpgroup 0 loads. Warpgroups 1 and 2 compute 64 query rows each, from the diagonal down: while the softmax of one tile
// runs, the tensor cores multiply the keys of the next tile, and the weights of the tile before by V. Sums of two tiles
// leave no registers for outputs that are added up: those wait in shared memory. After Shah et al., "FlashAttention-3", 2024, and Zhang et al., "SageAttention2", 2024.
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

// The group's 64 queries to bytes: two threads a row, each one panel of 64 values.
SP_DEVICE void round_queries(const u8* queries, u8* codes, f32* scales, u32 group) {
    const u32 thread = threadIdx.x % 128, row = 64 * group + thread / 2, panel = thread % 2;
    u32 words[32];
    f32 peak = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint4 eight =
            *reinterpret_cast<const uint4*>(queries + panel * (QUERIES * 128) + swizzle_128(row * 128 + 16 * i));
        words[4 * i] = eight.x, words[4 * i + 1] = eight.y, words[4 * i + 2] = eight.z, words[4 * i + 3] = eight.w;
#pragma unroll
        for (int j = 4 * i; j < 4 * i + 4; ++j)
            peak = fmaxf(peak, fmaxf(fabsf(low_f16(words[j])), fabsf(high_f16(words[j]))));
    }
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    const f32 inverse = peak > 0 ? __fdiv_rn(127.0f, peak) : 0.0f;
    named_barrier(1 + group, 128);  // who still multiplies the bytes before these
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32* from = words + 8 * i;
        const uint4 sixteen = {pack_codes(from, inverse), pack_codes(from + 2, inverse), pack_codes(from + 4, inverse),
                               pack_codes(from + 6, inverse)};
        *reinterpret_cast<uint4*>(codes + swizzle_128(row * 128 + 64 * panel + 16 * i)) = sixteen;
    }
    if (panel == 0) scales[row] = peak * (1.0f / 127.0f);
    fence_async_proxy();
    named_barrier(1 + group, 128);
}

SP_DEVICE void scores_of(i32 (&s)[64], u64 queries, u64 keys) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_bytes(s, moved_by(queries, 32 * k), moved_by(keys, 32 * k), k > 0);
    wgmma_commit();
}

// Adds; the last four are sums of weights, from eight columns of ones.
SP_DEVICE void values_of(f32 (&t)[68], const u32 (&p)[16], u64 values) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_e4m3(t, p + 4 * k, moved_by(values, 32 * k));
    wgmma_commit();
}

// Four outputs, two of each of a thread's rows.
SP_DEVICE void add_scaled(f32* t, float4 old, const f32 (&owed)[2]) {
    t[0] = fmaf(old.x, owed[0], t[0]), t[1] = fmaf(old.y, owed[0], t[1]);
    t[2] = fmaf(old.z, owed[1], t[2]), t[3] = fmaf(old.w, owed[1], t[3]);
}

// Outputs so far join those in shared memory, 16 bytes a thread and chunk, which are to be scaled by `owed` first.
SP_DEVICE void add_up(float4* outputs, f32 (&sum)[2], f32 (&t)[68], f32 (&owed)[2], bool first) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        if (!first) add_scaled(t + 4 * i, outputs[128 * i], owed);
        outputs[128 * i] = float4{t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]};
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += t[64 + 2 * r], owed[r] = 1;
#pragma unroll
    for (int i = 0; i < 68; ++i) t[i] = 0;
}

SP_DEVICE void compute(u16* out, const f32* value_peaks, f32 factor, const Shape& shape, Shared& shared, u8* queries,
                       u8* codes, u8* outputs, u8* stages) {
    const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0), lane = threadIdx.x % 32;
    const i32 row = 64 * group + 16 * (threadIdx.x / 32 % 4) + lane / 4;  // and row + 8
    const u64 query_tile = wgmma_descriptor(shared_address(codes) + group * 8192);
    const u64 tiles = wgmma_descriptor(shared_address(stages));
    float4* own = reinterpret_cast<float4*>(outputs) + group * (64 * D / 4) + threadIdx.x % 128;
    const auto release = [&](u32 stage) { barrier_arrive_warp(&shared.empty[stage], lane); };
    Ring ring;
    for (u32 query_phase = 0;; query_phase ^= 1) {
        barrier_wait(&shared.query_full, query_phase);
        const i32 tile = __shfl_sync(0xffffffffu, shared.tile, 0), steps = __shfl_sync(0xffffffffu, shared.steps, 0);
        if (tile < 0) break;
        i32 head, block;
        shape.place(tile, head, block);
        const i32 first_row = QUERIES * block, start = shape.tokens - shape.n + first_row;  // position of row 0
        const i32 group_start = start + 64 * group;
        round_queries(queries, codes, shared.query_scale, group);
        const f32 scales[2] = {shared.query_scale[row] * factor, shared.query_scale[row + 8] * factor};
        barrier_arrive_warp(&shared.query_empty, lane);

        f32 sum[2] = {}, t[68] = {};
        if (steps > 0) {
            struct Read {
                i32 key;
                f32 scale;
            } even_of, odd_of;             // first keys of the tiles below, and their scales
            i32 even[64] = {}, odd[64] = {};  // sums, in their place weights, of tiles 0, 2, ... and 1, 3, ...
            u32 p[16], k_stage = 0, v_stage = 0;
            f32 reference[2] = {-INFINITY_F, -INFINITY_F}, owed[2] = {1, 1};
            // Past the last tile of keys some stage is multiplied, and nobody looks at it: wgmma under a condition is serialised.
            const auto begin = [&](i32 (&s)[64], Read& of, bool real) {
                if (real) {
                    barrier_wait(&shared.full[ring.stage], ring.phase);
                    k_stage = ring.stage;
                    of = {shared.first_key[k_stage], shared.key_scale[k_stage]};
                    ring.advance();
                }
                scores_of(s, query_tile, moved_by(tiles, k_stage * STAGE_BYTES));
            };
            // While the sums of the next tile and the outputs of the one before are on their way.
            const auto weigh = [&](i32 (&s)[64], Read& of, i32 (&next)[64], i32 step) {
                const f32 c[2] = {scales[0] * of.scale, scales[1] * of.scale};
                f32 keep[2];
                bool moved;
                if (of.key + KEYS - 1 > group_start) {
                    hide(s, of.key, start + row);
                    moved = soften<true>(s, reference, keep, c);
                } else {
                    moved = soften<false>(s, reference, keep, c);
                }
                wgmma_wait<0>();
                sums_ready(next), sums_ready(t), sums_ready(s);
                if (step + 1 < steps) release(k_stage);
                if (step > 0) release(v_stage);
                if (moved) {
#pragma unroll
                    for (int i = 0; i < 68; ++i) t[i] *= keep[i / 2 % 2];
#pragma unroll
                    for (int r = 0; r < 2; ++r) sum[r] *= keep[r], owed[r] *= keep[r];
                }
                if (step > 0 && step % FLUSH == 0) add_up(own, sum, t, owed, step == FLUSH);
                pack_weights(p, s);
                begin(s, of, step + 2 < steps);
                barrier_wait(&shared.full[ring.stage], ring.phase);
                v_stage = ring.stage;
                values_of(t, p, moved_by(tiles, v_stage * STAGE_BYTES));
                ring.advance();
            };
            begin(even, even_of, true);
            wgmma_wait<0>();
            sums_ready(even);
            release(k_stage);
            begin(odd, odd_of, steps > 1);
            for (i32 step = 0;;) {
                weigh(even, even_of, odd, step);
                if (++step == steps) break;
                weigh(odd, odd_of, even, step);
                if (++step == steps) break;
            }
            wgmma_wait<0>();
            sums_ready(t);
            release(v_stage);
            sum[0] += t[64], sum[1] += t[66];
            if (steps > FLUSH) {
#pragma unroll
                for (int i = 0; i < 16; ++i) add_scaled(t + 4 * i, own[128 * i], owed);
            }
        }

        const f32 value_scale = value_peaks[head / shape.group] * (1.0f / 448.0f);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i32 i = first_row + row + 8 * r;
            const f32 inverse = sum[r] > 0 ? value_scale / sum[r] : 0.0f;
            store_row(out + (i64(i) * shape.heads + head) * D, t, r, inverse, i < shape.n);
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_bytes(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                    const __grid_constant__ TensorMap v_map, const f32* key_scales, const f32* value_peaks,
                    const i32* counts, const i32* indices, u16* out, i32* next_tile, i32 tokens, i32 n, i32 heads,
                    i32 group, i32 section, i32 early, i32 width, f32 scale) {
    extern __shared__ __align__(1024) u8 memory[];
    u8 *queries = memory, *codes = queries + QUERY_BYTES, *outputs = codes + CODE_BYTES;
    u8* stages = outputs + OUTPUT_BYTES;
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
    const Shape shape = {n, tokens, heads, group, section, early, (n + QUERIES - 1) / QUERIES};
    if (threadIdx.x < 128) {
        registers_lower<24>();
        if (threadIdx.x < 32)
            load(&q_map, &k_map, &v_map, key_scales, counts, indices, width, next_tile, shape, shared, queries, stages);
    } else {
        registers_raise<240>();
        compute(out, value_peaks, scale * 1.4426950408889634f, shape, shared, queries, codes, outputs,
                stages);
    }
}
