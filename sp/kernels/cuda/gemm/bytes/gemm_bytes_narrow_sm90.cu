// Gate and up of a feed-forward in bytes with few inputs: Y = silu(X Gᵀ) * (X Uᵀ) as in gemm_bytes_sm90.cu, to the bit, for up to
// 1,024 inputs k. A block keeps all inputs of its tokens in shared memory, and the weight runs past them once.
//
//   X        int8 (tokens, 256 GROUPS) by x_map: box 128 k x 128; x_scales f32 [GROUPS][x_stride], room for whole 256 tokens
//   W        int8 (rows of whole 64, k): gate's rows, then from row tile `second` on those of up. By w_map of four axes, (k, 8 rows,
//            gate or up, groups of 8 rows), box 128 x 8 x 2 x 2. w_scales f32 [GROUPS][w_stride]
//   loud     bf16 (tokens, 64) and (rows, 64) by xl_map and wl_map, boxes of as many rows; not read where *loud_count is 0
//   Y        bf16 (tokens, out) row-major by y_map: box 32 outputs x 128 tokens, 64-byte swizzle
// All other maps have the 128-byte swizzle.
//
// A tile is 32 rows of gate and of up, eight and eight in turn, so that a thread holds both of an output, x 128 tokens. Launch: 384
// threads, one block an SM, clusters of two that share W (each loads half of a piece for both) and have 128 tokens each. A thread
// of warpgroup 0 loads; 1 and 2 take tiles in turn, each by itself, so that while one scales and stores the other multiplies;
// within a tile, sums of a group of 256 inputs are scaled while the next is multiplied.
// The turn is passed on when all pieces of a tile have arrived: a warpgroup that waits for a piece is then less than a
// round of the ring ahead.
// A job is 256 tokens and `each` tiles, of out_tiles in all. Any tokens >= 1; out a multiple of 8.
// The ring has STAGES pieces of W; with outlier channels, the tokens' values in them take the place of the last two.
// Defines: GROUPS (1 to 4), STAGES. Arch 90a.
// Sources: ping-pong of warpgroups as in CUTLASS (Thakkar et al.); scales and outlier channels as gemm_bytes_sm90.cu
// says.
#include "gemm_bytes_narrow_sm90_finish.cuh"
#include "pdl.cuh"
#include "wgmma_bytes.cuh"

// A place in a ring of so many stages and the parity of its current round.
struct Ring {
    u32 stages, stage = 0, phase = 0;
    SP_DEVICE void advance() {  // no branch: the compiler makes products wait for each other around one
        if (++stage == stages) stage = 0, phase ^= 1;
    }
    SP_DEVICE void skip(u32 pieces) {
        for (stage += pieces; stage >= stages; stage -= stages) phase ^= 1;
    }
};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    gemm_bytes_narrow_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
                           const __grid_constant__ TensorMap xl_map, const __grid_constant__ TensorMap wl_map,
                           const __grid_constant__ TensorMap y_map, const f32* x_scales, const f32* w_scales,
                           const u32* loud_count, u32 token_blocks, u32 jobs, u32 each, u32 out_tiles, u32 second, u32 x_stride,
                           u32 w_stride) {
    extern __shared__ __align__(1024) u8 shared[];
    u64* full = reinterpret_cast<u64*>(shared + BARRIER_OFFSET);
    u64 *empty = full + STAGES, *x_full = empty + STAGES, *x_empty = x_full + 1;
    f32* scales = reinterpret_cast<f32*>(shared + SCALES_OFFSET);
    const u32 rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 2 * 4 * WARP_ARRIVALS);  // the warps of one warpgroup of both blocks
        }
        barrier_init(x_full, 1);
        barrier_init(x_empty, 2 * 4 * WARP_ARRIVALS);  // those of both warpgroups of this block
        barrier_init_fence();
    }
    __syncthreads();
    cluster_sync();
    pdl_launch_dependents();
    pdl_wait();

    const u32 cluster = blockIdx.x / 2, clusters = gridDim.x / 2, loud = *loud_count > 0, pieces = PIECES + loud;
    const u32 stages = loud ? STAGES - 2 : STAGES;
    if (threadIdx.x < 128) {
        registers_lower<40>();
        Ring ring{stages, 0, 1};  // so that the first round does not wait
        u32 x_phase = 1;
        if (threadIdx.x == 0) {
            for (u32 job = cluster; job < jobs; job += clusters, x_phase ^= 1) {
                const u32 token = job % token_blocks * 256 + rank * TOKENS, first = job / token_blocks * each;
                barrier_wait(x_empty, x_phase);
                barrier_expect(x_full, pieces * X_BYTES + 4 * GROUPS * TOKENS);
                for (u32 p = 0; p < PIECES; ++p) tensor_load(shared + p * X_BYTES, &x_map, x_full, 128 * p, token);
                if (loud) tensor_load(shared + LOUD_OFFSET, &xl_map, x_full, 0, token);
                for (u32 g = 0; g < GROUPS; ++g)
                    bulk_load(scales + g * TOKENS, x_scales + i64(g) * x_stride + token, 4 * TOKENS, x_full);
                for (u32 tile = first; tile < min(first + each, out_tiles); ++tile)
                    for (u32 p = 0; p < pieces; ++p, ring.advance()) {
                        u64* barrier = full + ring.stage;
                        u8* w = shared + W_OFFSET + ring.stage * W_BYTES + rank * W_BYTES / 2;
                        const TensorMap* map = p == PIECES ? &wl_map : &w_map;
                        const i32 at = p == PIECES ? 0 : 128 * i32(p);
                        barrier_wait(empty + ring.stage, ring.phase);
                        barrier_expect(barrier, W_BYTES);
                        tensor_load_multicast(w, map, barrier, 3, at, 0, 0, 4 * tile + 2 * rank);
                    }
            }
        }
    } else {
        registers_raise<232>();
        // By a shuffle, so that the compiler knows what is the same in a warp: else it lets each product wait for the one before.
        const u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0);
        const u32 thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        u8* staging = shared + STAGING_OFFSET + group * STAGING_BYTES;
        f32 d[TOKENS / 2];
        i32 part[2][TOKENS / 2];
        Ring ring{stages};
        u32 x_phase = 0, turn = 0;
        if (group == 1) named_arrive(TURN, 256);  // the first turn is the other's

        auto multiply = [&](auto& sums, u32 stage, u32 inputs, auto product) {
            const u64 a = wgmma_descriptor(shared_address(shared + W_OFFSET + stage * W_BYTES));
            const u64 b = wgmma_descriptor(shared_address(shared + inputs));
#pragma unroll
            for (int s = 0; s < 4; ++s) product(sums, a + 2 * s, b + 2 * s, s);
        };
        auto begin = [&](i32(&sums)[TOKENS / 2], u32 g) {  // the products of a group
#pragma unroll
            for (u32 half = 0; half < 2; ++half, ring.advance()) {
                barrier_wait(full + ring.stage, ring.phase);
                wgmma_fence();
                multiply(sums, ring.stage, (2 * g + half) * X_BYTES,
                         [&](auto& of, u64 a, u64 b, int s) { wgmma_bytes(of, a, b, half > 0 || s > 0); });
            }
            wgmma_commit();
        };
        auto release = [&](u32 back) {  // the piece of so many before the next
            __syncwarp();
            const u32 stage = ring.stage >= back ? ring.stage - back : ring.stage + stages - back;
            if (lane < WARP_ARRIVALS) barrier_arrive_at(empty + stage, 0), barrier_arrive_at(empty + stage, 1);
        };

        for (u32 job = cluster; job < jobs; job += clusters, x_phase ^= 1) {
            const u32 token = job % token_blocks * 256 + rank * TOKENS, first = job / token_blocks * each;
            barrier_wait(x_full, x_phase);
            for (u32 tile = first; tile < min(first + each, out_tiles); ++tile, turn ^= 1) {
                if (turn != group) {
                    ring.skip(pieces);
                    continue;
                }
                named_barrier(TURN + group, 256);
                const u32 row = 32 * tile + 8 * warp + lane / 4;
                begin(part[0], 0);
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g) {
                    const u32 at = g * w_stride + row;  // scales of this thread's two rows
                    const f32 row_scales[2] = {__ldg(w_scales + at), __ldg(w_scales + at + 64 * second)};
                    if (g + 1 < GROUPS) begin(part[(g + 1) % 2], g + 1);
                    if (g + 2 == max(GROUPS, 2)) {
                        if (loud) barrier_wait(full + ring.stage, ring.phase);
                        named_arrive(TURN + 1 - group, 256);
                    }
                    if (g + 1 < GROUPS)
                        wgmma_wait<1>();
                    else
                        wgmma_wait<0>();
                    release(g + 1 < GROUPS ? 4 : 2);
                    release(g + 1 < GROUPS ? 3 : 1);
#pragma unroll
                    for (int i = 0; i < TOKENS / 8; ++i) {
                        const float2 x = reinterpret_cast<const float2*>(scales + g * TOKENS)[4 * i + lane % 4];
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const f32 value = f32(part[g % 2][4 * i + e]), scale = row_scales[e / 2] * (e % 2 ? x.y : x.x);
                            d[4 * i + e] = g == 0 ? value * scale : d[4 * i + e] + value * scale;
                        }
                    }
                }
                if (loud) {
                    wgmma_fence();
                    multiply(d, ring.stage, LOUD_OFFSET, [](auto& sums, u64 a, u64 b, int) { wgmma_halves(sums, a, b, 1); });
                    wgmma_commit();
                    wgmma_wait<0>();
                    ring.advance();
                    release(1);
                }
                finish(d, staging, &y_map, 32 * tile, token, group, thread);
            }
            __syncwarp();
            barrier_arrive_warp(x_empty, lane);
        }
        if (turn == group) named_barrier(TURN + group, 256);  // a turn that was not used
        if (thread == 0) bulk_wait<0>();
    }
    cluster_sync();  // a block must not leave while its neighbour still loads into it
}
