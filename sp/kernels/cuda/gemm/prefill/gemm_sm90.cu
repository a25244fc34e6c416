// Prefill matmul: Y[n, o] = sum_k X[n, k] W[o, k] for bf16 X and a packed W, multiplied as D = W Xᵀ,
// 64 outputs x TOKENS to a warpgroup.
//
//   X       bf16 (tokens, k) row-major, by tensor map x_map: box 64 k x TOKENS / CLUSTER tokens, 128-byte swizzle
//   W       `weight`, fragment order: its planes as sp/ops/matmul/fragment_order.py lays them out
//   Y       (tokens, out) row-major, by tensor map y_map: box of 128-byte rows x 64 tokens, 128-byte swizzle;
//           EPILOGUE STORE bf16, STORE_F32 float32, ADD float32 that the product is added to, SWIGLU bf16
//           silu(X Wᵀ) * (X Uᵀ) with U in `second`
//
// A = W comes from registers: each consumer warpgroup reads its own 64 x 64 tile of codes, scales it to bf16 and
// multiplies it with wgmma, so weights never pass through shared memory as bf16. The codes of k-step i + 1 are scaled
// while the products of step i run. Writes to A registers come right after a wait that leaves the newest products
// running: in other orders ptxas serialises wgmma.
// Launch: 384 threads, one block an SM, persistent: warpgroup 0 loads (one thread) and makes the words that scales are read
// as (a warp for each row tile), 1 and 2 multiply 128 x TOKENS outputs together (SWIGLU: the same 64 outputs, 1 of W and 2
// of U; then they trade halves, as bf16).
// CLUSTER = 2 pairs blocks of neighbouring outputs: each loads half of the X tile for both. Blocks walk tiles with
// GROUP token blocks side by side, so that what runs at one time shares X and W tiles in L2. STAGES k-steps are held
// in shared memory.
// STREAM = 1 (stream-K): the first `streamed` tiles are dealt out in equal numbers of k-steps instead, so that no block waits for
// the last ones: the block that has the first k of a tile adds what the others stored in `partials` (128 x TOKENS
// float32 a block), in their order, so that a run repeats to the bit. `flags` (two a block) are 0 before and after a
// launch. Launches that stream must not overlap, and all their blocks must run at once.
// EXPERTS = 1 (gemm_sm90_experts): tiles of tokens belong to experts, see expert_blocks.cuh; row_tiles are those of one
// expert's matrix, token_blocks is read from the device, and the tokens of x and y are sorted and padded to blocks of 128. A
// tile of few tokens is multiplied as one of 64 or 128, by the same code: it is the last of its expert. The box of x_map
// has 128 tokens. TOKENS = 256, CLUSTER = 1, STREAM = 0.
// BESIDE = 1 (gemm_sm90_beside): two weights of one row tile each, `weight` of warpgroup 1 and `second` of warpgroup 2, whose
// results go to y_map and beside_map: alone either would leave the other warpgroup nothing to do. EPILOGUE STORE, STORE_F32.
// Any tokens >= 1; out a multiple of 8; k = 64 k_tiles; planes 256-byte aligned. Arch 90a.
// Sources: the warp-specialised persistent kernels of CUTLASS (Thakkar et al.), dequantisation in registers as in
// Marlin (Frantar et al., 2024), cutting along k as in Stream-K (Osama et al., 2023).
#include "gemm_sm90_finish.cuh"
#include "gemm_sm90_scales.cuh"
#include "wgmma_bf16.cuh"

// A number of tokens known to the compiler.
template <int N>
struct Width {
    static constexpr int value = N;
};

#ifndef BESIDE
#define BESIDE 0
#endif
#if EXPERTS
#define ENTRY gemm_sm90_experts
#elif BESIDE
#define ENTRY gemm_sm90_beside
#else
#define ENTRY gemm_sm90
#endif
#if BESIDE
#define BESIDE_PARAMETERS , const __grid_constant__ TensorMap beside_map
#else
#define BESIDE_PARAMETERS
#endif
enum { TWO_WEIGHTS = GATED || BESIDE };

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    ENTRY(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map, const u8* weight,
              const u8* second, u32 token_blocks, u32 out_blocks, u32 row_tiles, u32 k_tiles, u32 streamed,
              float4* partials, u32* flags EXPERT_PARAMETERS BESIDE_PARAMETERS) {
    const ExpertBlocks blocks = EXPERT_BLOCKS;
    const u32 held_tiles = EXPERTS ? blocks.held : row_tiles;
    if constexpr (EXPERTS) token_blocks = *blocks.count;
    extern __shared__ __align__(1024) u8 shared[];
    u64* full = reinterpret_cast<u64*>(shared + BARRIER_OFFSET);
    u64* empty = full + STAGES;
    u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s, 1 + (F::plain ? 0 : WARPGROUPS * WARP_ARRIVALS));  // loader, makers of words
            barrier_init(empty + s, 4 * WARPGROUPS * CLUSTER * WARP_ARRIVALS);  // every consumer warp
        }
        barrier_init_fence();
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) cluster_sync();

    u32 tiles = token_blocks * out_blocks, cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    if (threadIdx.x < 128) {
        registers_lower<40>();
        Ring ring{0, 1};  // so that the first round does not wait
        Work work = work_of(cluster, clusters, streamed, k_tiles);
        if (threadIdx.x == 0) {
            const Planes first = planes_of<FORMAT>(weight, held_tiles, k_tiles);
            const Planes other = TWO_WEIGHTS ? planes_of<FORMAT>(second, held_tiles, k_tiles) : first;
            while (work.next(tiles, clusters, k_tiles)) {
                Tile tile = tile_of(work.tile, token_blocks, out_blocks, rank);
                const u32 width = EXPERTS ? blocks.width(tile.token / TOKENS) : 0;
                const i32 tokens_at = EXPERTS ? 128 * i32(blocks.block(tile.token / TOKENS)) : tile.token;
                i64 begin[WARPGROUPS];  // of the row tiles, in tiles
#pragma unroll
                for (u32 g = 0; g < WARPGROUPS; ++g)
                    begin[g] = i64(blocks.base(tile.token / TOKENS, GATED && g == 1) + row_tile_of(tile, g, row_tiles)) * k_tiles;
                for (u32 k = work.first; k < work.last; ++k, ring.advance()) {
                    u64* barrier = full + ring.stage;
                    u8* x = shared + ring.stage * X_BYTES;
                    u8* w = shared + W_OFFSET + ring.stage * WARPGROUPS * W_BYTES;
                    barrier_wait(empty + ring.stage, ring.phase);
                    if constexpr (EXPERTS) {
                        const u32 boxes = width == 2 ? 2 : 1;
                        barrier_expect(barrier, LOADED_BYTES - X_BYTES + boxes * (X_BYTES / 2));
                        for (u32 box = 0; box < boxes; ++box)
                            tensor_load(x + box * (X_BYTES / 2), &x_map, barrier, 64 * k, tokens_at + 128 * i32(box));
                    } else {
                        barrier_expect(barrier, LOADED_BYTES);
                    }
                    if constexpr (EXPERTS) {
                    } else if constexpr (CLUSTER > 1) {
                        constexpr u32 part = TOKENS / CLUSTER;
                        tensor_load_multicast(x + rank * part * 128, &x_map, barrier, (1 << CLUSTER) - 1, 64 * k,
                                              tile.token + rank * part);
                    } else {
                        tensor_load(x, &x_map, barrier, 64 * k, tile.token);
                    }
#pragma unroll
                    for (u32 g = 0; g < WARPGROUPS; ++g, w += W_BYTES) {
                        const i64 at = begin[g] + k;
                        const Planes& from = g == 0 ? first : other;
                        bulk_load(w, from.low + at * F::low_bytes, F::low_bytes, barrier);
                        if constexpr (F::high_bytes > 0)
                            bulk_load(w + F::low_bytes, from.high + at * F::high_bytes, F::high_bytes, barrier);
                    }
                }
            }
        } else if (!F::plain && threadIdx.x / 32 - 1 < WARPGROUPS) {
            const u32 group = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
            const Planes planes = planes_of<FORMAT>(TWO_WEIGHTS && group == 1 ? second : weight, held_tiles, k_tiles);
            u8* words = shared + W_OFFSET + group * W_BYTES + F::low_bytes + F::high_bytes;
            TileScales<FORMAT> scales;
            while (work.next(tiles, clusters, k_tiles)) {
                Tile tile = tile_of(work.tile, token_blocks, out_blocks, rank);
                const u32 spans = k_tiles / scales.steps;
                u32 k = work.first / scales.steps * scales.steps;
                const u32 base = blocks.base(tile.token / TOKENS, GATED && group == 1);
                scales.start((base + row_tile_of(tile, group, row_tiles)) * spans + k / scales.steps, lane);
                for (; k < work.last; k += scales.steps) {
                    scales.load(planes);
#pragma unroll
                    for (u32 step = 0; step < scales.steps; ++step) {
                        if (STREAM && k + step - work.first >= work.last - work.first) continue;  // not of the piece
                        barrier_wait(empty + ring.stage, ring.phase);
                        scales.store(reinterpret_cast<u32*>(words + ring.stage * WARPGROUPS * W_BYTES), step, lane);
                        barrier_arrive_warp(full + ring.stage, lane);
                        ring.advance();
                    }
                }
            }
        }
    } else {
        registers_raise<232>();
        u32 group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
        f32 d[TOKENS / 2];
        u32 even[4][4], odd[4][4];  // A of this k-step and of the next
        Ring ring;

        auto fill = [&](u32(&a)[4][4], const Ring& at) {
            const u8* w = shared + W_OFFSET + (at.stage * WARPGROUPS + group) * W_BYTES;
            barrier_wait(full + at.stage, at.phase);
            Quants<FORMAT> q;
            load_quants<FORMAT>(q, w, w + F::low_bytes, thread);
            const u32* s = reinterpret_cast<const u32*>(w + F::low_bytes + F::high_bytes) + 16 * warp + lane / 4;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                u32 scale0 = F::plain ? 0 : s[64 * h], scale8 = F::plain ? 0 : s[64 * h + 8];
                a_fragment<FORMAT>(a[2 * h], q, 2 * h, scale0, scale8);
                a_fragment<FORMAT>(a[2 * h + 1], q, 2 * h + 1, scale0, scale8);
            }
        };
        auto multiply = [&](auto width, const u32(&a)[4][4], u32 stage, u32 accumulate) {
            u64 b = wgmma_descriptor(shared_address(shared + stage * X_BYTES));
            f32(&sums)[width.value / 2] = reinterpret_cast<f32(&)[width.value / 2]>(d);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s) wgmma_bf16(sums, a[s], b + 2 * s, s > 0 ? 1 : accumulate);
            wgmma_commit();
        };
        auto release = [&](u32 stage) {
            if constexpr (CLUSTER == 1) barrier_arrive_warp(empty + stage, lane);
            if constexpr (CLUSTER > 1) {
                __syncwarp();
                if (lane < WARP_ARRIVALS)
                    for (u32 r = 0; r < CLUSTER; ++r) barrier_arrive_at(empty + stage, r);
            }
        };

        u32 last = 0;  // the stage that the newest products read
        auto products = [&](auto width, u32 steps) {
            last = ring.stage;
            fill(even, ring);
            for (u32 k = 0;; k += 2) {
                multiply(width, even, ring.stage, k);
                if (k > 0) {
                    wgmma_wait<1>();
                    release(last);
                }
                last = ring.stage;
                ring.advance();
                if (k + 1 == steps) break;
                fill(odd, ring);
                multiply(width, odd, ring.stage, 1);
                wgmma_wait<1>();
                release(last);
                last = ring.stage;
                ring.advance();
                if (k + 2 == steps) break;
                fill(even, ring);
            }
            wgmma_wait<0>();
            release(last);
        };
        auto finish_tile = [&](i32 row_tile, i32 token, int chunks) {
            if constexpr (GATED) {
                u8* areas = shared + STAGING_OFFSET;
                if (group == 0)
                    finish_gated<0>(d, areas, areas + STAGING_BYTES, &y_map, 64 * row_tile, token, thread, chunks);
                else
                    finish_gated<1>(d, areas + STAGING_BYTES, areas, &y_map, 64 * row_tile, token, thread, chunks);
            } else {
                const TensorMap* map = &y_map;
#if BESIDE
                if (group == 1) map = &beside_map;
#endif
                finish(d, shared + STAGING_OFFSET + group * STAGING_BYTES, map, 64 * (row_tile + (BESIDE ? 0 : i32(group))), token,
                       group, thread, chunks);
            }
        };

        Work work = work_of(cluster, clusters, streamed, k_tiles);
        while (work.next(tiles, clusters, k_tiles)) {
            Tile tile = tile_of(work.tile, token_blocks, out_blocks, rank);
            const u32 steps = work.last - work.first;
            if constexpr (EXPERTS) {
                const u32 width = blocks.width(tile.token / TOKENS);
                const i32 token = 128 * i32(blocks.block(tile.token / TOKENS));
                if (width == 2)
                    products(Width<256>(), steps);
                else if (width == 1)
                    products(Width<128>(), steps);
                else
                    products(Width<64>(), steps);
                finish_tile(tile.row_tile, token, width == 2 ? 4 : 2);
                continue;
            }
            products(Width<TOKENS>(), steps);
            if constexpr (STREAM) {
                u32 block = blockIdx.x;
                if (work.first > 0) {
                    leave_partial(d, partials + block * (32 * TOKENS), flags + 2 * block + group, group, thread);
                    continue;
                }
                for (u32 other = cluster + 1, end = work.last; end < k_tiles; ++other) {
                    block = other * CLUSTER + rank;
                    add_partial(d, partials + block * (32 * TOKENS), flags + 2 * block + group, group, thread);
                    end = share_start(other + 1, clusters, streamed * k_tiles) - work.tile * k_tiles;
                }
            }
            finish_tile(tile.row_tile, tile.token, CHUNKS);
        }
        if (thread == 0) bulk_wait<0>();
    }
    // A block must not leave while its neighbour still loads into it.
    if constexpr (CLUSTER > 1) cluster_sync();
}
