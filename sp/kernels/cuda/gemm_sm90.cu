// Prefill matmul: Y[n, o] = sum_k X[n, k] W[o, k] for bf16 X and a packed W, multiplied as D = W Xᵀ (64 outputs x TOKENS to a warpgroup).
//
//   X       bf16 (tokens, k) row-major, by tensor map x_map: box 64 k x TOKENS / CLUSTER tokens, 128-byte swizzle
//   W       fragment order (fragment.cuh): planes `low`, `high`; `scales` u32 [row_tile][k_tile][2][64] as expand_scales writes them
//   Y       (tokens, out) row-major, by tensor map y_map: box of 128-byte rows x 64 tokens, 128-byte swizzle;
//           MODE 0 bf16, 1 float32, 2 float32 that the product is added to, 3 bf16 silu(X Wᵀ) * (X Uᵀ) with a second weight U
//
// A = W comes from registers: each consumer warpgroup reads its own 64 x 64 tile of codes, scales it to bf16 and multiplies it with wgmma,
// so weights never pass through shared memory as bf16. The codes of k-step i + 1 are scaled while the products of step i run.
// Launch: 384 threads, one block an SM, persistent: warpgroup 0 loads (one thread), 1 and 2 multiply 128 x TOKENS outputs together
// (MODE 3: the same 64 outputs, 1 of W and 2 of U; then they trade halves, as bf16).
// CLUSTER = 2 pairs blocks of neighbouring outputs: each loads half of the X tile for both. Blocks walk tiles with GROUP token blocks
// side by side, so that what runs at one time shares X and W tiles in L2. STAGES k-steps are held in shared memory.
// STREAM = 1: the first `streamed` tiles are dealt out in equal numbers of k-steps instead, so that no block waits for the last ones: who has the
// first k of a tile adds what the others left in `partials` (128 x TOKENS float32 a block), in their order, so that a run repeats to the
// bit. `flags` (two a block) are 0 before and after a launch. Launches that stream must not overlap, and all blocks must run at once.
// Any tokens >= 1; out a multiple of 8; k = 64 k_tiles; planes 256-byte aligned. Arch 90a.
// Sources: the warp-specialised persistent kernels of CUTLASS (Thakkar et al.), dequantisation in registers as in Marlin (Frantar et al., 2024),
// cutting along k as in Stream-K (Osama et al., 2023).
#include "fragment.cuh"
#include "hopper.cuh"
#include "wgmma_bf16.cuh"

using F = Fragment<FORMAT>;

enum Shape {
    WARPGROUPS = 2,
    X_BYTES = TOKENS * 128,
    SCALE_BYTES = F::plain ? 0 : 4 * TILE_SCALE_WORDS,
    W_BYTES = F::low_bytes + F::high_bytes + SCALE_BYTES,  // of one warpgroup and k-step
    STAGE_BYTES = X_BYTES + WARPGROUPS * W_BYTES,
    BOX_BYTES = 64 * 128,                  // 64 tokens of 128 bytes
    CHUNKS = TOKENS / 64,                  // of a warpgroup's result
    GATED = MODE == 3,
    CHUNK_BOXES = MODE % 3 == 0 ? 1 : 2,   // 64 outputs in bf16 or float32
    OUT_TILES = GATED ? 1 : WARPGROUPS,    // row tiles of a block
    STAGING_BYTES = SLOTS * CHUNK_BOXES * BOX_BYTES,  // SLOTS chunks of a warpgroup can be on their way out
    W_OFFSET = STAGES * X_BYTES,
    STAGING_OFFSET = (W_OFFSET + STAGES * WARPGROUPS * W_BYTES + 1023) / 1024 * 1024,
    BARRIER_OFFSET = STAGING_OFFSET + WARPGROUPS * STAGING_BYTES
};

// A place in the ring of stages and the parity of its current round.
struct Ring {
    u32 stage = 0, phase = 0;
    SP_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// First k-step of a cluster's share, counted through all streamed tiles: equal parts, the first ones one longer where it does not divide.
SP_DEVICE u32 share_start(u32 cluster, u32 clusters, u32 steps) {
    return steps / clusters * cluster + min(cluster, steps % clusters);
}

// The pieces of work of a cluster: its share of the streamed tiles, then every `clusters`th of the others.
struct Work {
    u32 at, end, whole;      // the rest of the share, and the next whole tile
    u32 tile, first, last;   // the piece: k-steps [first, last) of a tile

    SP_DEVICE bool next(u32 tiles, u32 clusters, u32 k_tiles) {
        if constexpr (STREAM) {  // not decided at run time: without it the compiler knows that all lanes count alike
            if (at < end) {
                tile = at / k_tiles;
                first = at - tile * k_tiles;
                last = min(k_tiles, first + end - at);
                at += last - first;
                return true;
            }
        }
        tile = whole, first = 0, last = k_tiles;
        whole += clusters;
        return tile < tiles;
    }
};

struct Tile {
    i32 token, row_tile;
};

SP_DEVICE Tile tile_of(u32 index, u32 token_blocks, u32 out_blocks, u32 rank) {
    u32 group = index / (GROUP * out_blocks), first = group * GROUP, size = min(u32(GROUP), token_blocks - first);
    u32 rest = index - first * out_blocks;
    return {i32((first + rest % size) * TOKENS), i32((rest / size * CLUSTER + rank) * OUT_TILES)};
}

// Leaves a warpgroup's sums of a piece that does not begin its tile. `thread` of 256, `flag` of the block and warpgroup.
SP_DEVICE void leave_partial(const f32 (&d)[TOKENS / 2], float4* place, u32* flag, u32 group, u32 thread) {
#pragma unroll
    for (int i = 0; i < TOKENS / 8; ++i)
        __stcg(place + i * 256 + thread, make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
    named_barrier(1 + group, 128);
    if (thread % 128 == 0) asm volatile("fence.acq_rel.gpu;\n\tst.relaxed.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

// Adds what leave_partial left, and clears the flag for the next launch.
SP_DEVICE void add_partial(f32 (&d)[TOKENS / 2], const float4* place, u32* flag, u32 group, u32 thread) {
    if (thread % 128 == 0) {
        u32 left = 0;
        while (!left) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(left) : "l"(flag) : "memory");
        *flag = 0;
    }
    named_barrier(1 + group, 128);
#pragma unroll
    for (int i = 0; i < TOKENS / 8; ++i) {
        float4 v = __ldcg(place + i * 256 + thread);
        d[4 * i] += v.x, d[4 * i + 1] += v.y, d[4 * i + 2] += v.z, d[4 * i + 3] += v.w;
    }
}

// Where matrix 0 of a thread's first stmatrix goes. Matrix i of one: outputs 8 (i % 2).. of the warp's 16, tokens 8 (i / 2)..
SP_DEVICE u32 bf16_place(const u8* slot, u32 warp, u32 lane) {
    u32 i = lane / 8;
    return shared_address(slot) + (8 * (i / 2) + lane % 8) * 128 + (((2 * warp + i % 2) ^ (lane % 8)) << 4);
}

// A chunk: 64 outputs x 64 tokens of a warpgroup, 32 values a thread.
SP_DEVICE void store_chunk(u8* slot, const f32* d, u32 warp, u32 lane) {
    if constexpr (CHUNK_BOXES == 1) {
        u32 place = bf16_place(slot, warp, lane);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            u32 r[4];
#pragma unroll
            for (int m = 0; m < 4; ++m) r[m] = pack_bf16(d[8 * j + 2 * m], d[8 * j + 2 * m + 1]);
            stmatrix_x4_trans(place + j * 2048, r);
        }
    } else {
        u32 g = lane / 4, c = lane % 4;
        u8* box = slot + warp / 2 * BOX_BYTES;
#pragma unroll
        for (int e = 0; e < 4; ++e) {  // element e: output + 8 (e / 2), token + e % 2
            u32 out = 16 * (warp % 2) + g + 8 * (e / 2), token = 2 * c + e % 2;
            u8* place = box + token * 128 + (((out / 4) ^ token) << 4) + out % 4 * 4;
#pragma unroll
            for (int j = 0; j < 8; ++j) *reinterpret_cast<f32*>(place + j * 1024) = d[4 * j + e];
        }
    }
}

// MODE 0 to 2: a warpgroup's result, through its staging area.
SP_DEVICE void finish(const f32* d, u8* staging, const TensorMap* y_map, i32 row, i32 token, u32 group, u32 thread) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        u8* slot = staging + chunk % SLOTS * CHUNK_BOXES * BOX_BYTES;
        if (thread == 0) bulk_wait_read<SLOTS - 1>();
        named_barrier(1 + group, 128);
        store_chunk(slot, d + 32 * chunk, thread / 32, thread % 32);
        fence_async_proxy();
        named_barrier(1 + group, 128);
        if (thread == 0) {
            for (int box = 0; box < CHUNK_BOXES; ++box) {
                if constexpr (MODE == 2) tensor_add(y_map, slot + box * BOX_BYTES, row + 32 * box, token + 64 * chunk);
                if constexpr (MODE != 2) tensor_store(y_map, slot + box * BOX_BYTES, row + 32 * box, token + 64 * chunk);
            }
            bulk_commit();
        }
    }
}

SP_DEVICE f32 gated(f32 gate, f32 up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

// MODE 3: GROUP finishes chunks HALF * Group.. of the tile. `mine` receives the other weight's values of these chunks and then
// holds the results on their way out; `other` is the same of the other warpgroup.
template <u32 Group>
SP_DEVICE void finish_gated(const f32* d, u8* mine, u8* other, const TensorMap* y_map, i32 row, i32 token, u32 thread) {
    constexpr int half = CHUNKS / 2;
    if (thread == 0) bulk_wait_read<0>();
    named_barrier(3, 256);
    u32* away = reinterpret_cast<u32*>(other) + thread;
    const f32* given = d + 32 * half * (1 - Group);
    const f32* kept = d + 32 * half * Group;
#pragma unroll
    for (int i = 0; i < 16 * half; ++i) away[i * 128] = pack_bf16(given[2 * i], given[2 * i + 1]);
    named_barrier(3, 256);
    const u32* here = reinterpret_cast<const u32*>(mine) + thread;
    u32 r[half][4][4];
#pragma unroll
    for (int i = 0; i < 16 * half; ++i) {
        u32 own = pack_bf16(kept[2 * i], kept[2 * i + 1]), their = here[i * 128];
        u32 gate = Group == 0 ? own : their, up = Group == 0 ? their : own;
        r[i / 16][i / 4 % 4][i % 4] =
            pack_bf16(gated(low_bf16(gate), low_bf16(up)), gated(high_bf16(gate), high_bf16(up)));
    }
    named_barrier(1 + Group, 128);
#pragma unroll
    for (int c = 0; c < half; ++c) {
        u32 place = bf16_place(mine + c * BOX_BYTES, thread / 32, thread % 32);
#pragma unroll
        for (int j = 0; j < 4; ++j) stmatrix_x4_trans(place + j * 2048, r[c][j]);
    }
    fence_async_proxy();
    named_barrier(1 + Group, 128);
    if (thread == 0) {
        for (int c = 0; c < half; ++c)
            tensor_store(y_map, mine + c * BOX_BYTES, row, token + 64 * (half * i32(Group) + c));
        bulk_commit();
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    gemm_sm90(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map, const u8* low, const u8* high,
              const u32* scales, const u8* low_up, const u8* high_up, const u32* scales_up, u32 token_blocks, u32 out_blocks, u32 row_tiles, u32 k_tiles, u32 streamed, float4* partials, u32* flags) {
    extern __shared__ __align__(1024) u8 shared[];
    u64* full = reinterpret_cast<u64*>(shared + BARRIER_OFFSET);
    u64* empty = full + STAGES;
    u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 4 * WARPGROUPS * CLUSTER);  // every consumer warp
        }
        barrier_init_fence();
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) cluster_sync();

    u32 tiles = token_blocks * out_blocks, cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    if (threadIdx.x < 128) {
        registers_lower<40>();
        if (threadIdx.x == 0) {
            Ring ring;
            Work work = {share_start(cluster, clusters, streamed * k_tiles),
                         share_start(cluster + 1, clusters, streamed * k_tiles), streamed + cluster};
            while (work.next(tiles, clusters, k_tiles)) {
                Tile tile = tile_of(work.tile, token_blocks, out_blocks, rank);
                for (u32 k = work.first; k < work.last; ++k, ring.advance()) {
                    u64* barrier = full + ring.stage;
                    u8* x = shared + ring.stage * X_BYTES;
                    u8* w = shared + W_OFFSET + ring.stage * WARPGROUPS * W_BYTES;
                    barrier_wait(empty + ring.stage, ring.phase ^ 1);
                    barrier_expect(barrier, STAGE_BYTES);
                    if constexpr (CLUSTER > 1) {
                        constexpr u32 part = TOKENS / CLUSTER;
                        tensor_load_multicast(x + rank * part * 128, &x_map, barrier, (1 << CLUSTER) - 1, 64 * k,
                                              tile.token + rank * part);
                    } else {
                        tensor_load(x, &x_map, barrier, 64 * k, tile.token);
                    }
#pragma unroll
                    for (u32 g = 0; g < WARPGROUPS; ++g, w += W_BYTES) {
                        // Past the last row tile any weights do: nothing of that result is stored.
                        u64 at = u64(min(tile.row_tile + (GATED ? 0 : g), row_tiles - 1)) * k_tiles + k;
                        bool up = GATED && g == 1;
                        bulk_load(w, (up ? low_up : low) + at * F::low_bytes, F::low_bytes, barrier);
                        if constexpr (F::high_bytes > 0)
                            bulk_load(w + F::low_bytes, (up ? high_up : high) + at * F::high_bytes, F::high_bytes, barrier);
                        if constexpr (SCALE_BYTES > 0)
                            bulk_load(w + F::low_bytes + F::high_bytes, (up ? scales_up : scales) + at * TILE_SCALE_WORDS,
                                      SCALE_BYTES, barrier);
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
        auto multiply = [&](const u32(&a)[4][4], u32 stage, u32 accumulate) {
            u64 b = wgmma_descriptor(shared_address(shared + stage * X_BYTES));
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s) wgmma_bf16(d, a[s], b + 2 * s, s > 0 ? 1 : accumulate);
            wgmma_commit();
        };
        auto release = [&](u32 stage) {
            if (lane == 0) {
                if constexpr (CLUSTER == 1) barrier_arrive(empty + stage);
                if constexpr (CLUSTER > 1)
                    for (u32 r = 0; r < CLUSTER; ++r) barrier_arrive_at(empty + stage, r);
            }
        };

        Work work = {share_start(cluster, clusters, streamed * k_tiles),
                     share_start(cluster + 1, clusters, streamed * k_tiles), streamed + cluster};
        while (work.next(tiles, clusters, k_tiles)) {
            Tile tile = tile_of(work.tile, token_blocks, out_blocks, rank);
            u32 steps = work.last - work.first;
            u32 last = ring.stage;
            fill(even, ring);
            for (u32 k = 0;; k += 2) {
                multiply(even, ring.stage, k);
                if (k > 0) {
                    wgmma_wait<1>();
                    release(last);
                }
                last = ring.stage;
                ring.advance();
                if (k + 1 == steps) break;
                fill(odd, ring);
                multiply(odd, ring.stage, 1);
                wgmma_wait<1>();
                release(last);
                last = ring.stage;
                ring.advance();
                if (k + 2 == steps) break;
                fill(even, ring);
            }
            wgmma_wait<0>();
            release(last);
            if constexpr (STREAM) {
                if (work.first > 0) {
                    leave_partial(d, partials + blockIdx.x * (32 * TOKENS), flags + 2 * blockIdx.x + group, group, threadIdx.x - 128);
                    continue;
                }
                for (u32 other = cluster + 1, end = work.last; end < k_tiles; ++other) {
                    u32 block = other * CLUSTER + rank;
                    add_partial(d, partials + block * (32 * TOKENS), flags + 2 * block + group, group, threadIdx.x - 128);
                    end = share_start(other + 1, clusters, streamed * k_tiles) - work.tile * k_tiles;
                }
            }
            if constexpr (GATED) {
                u8* areas = shared + STAGING_OFFSET;
                if (group == 0)
                    finish_gated<0>(d, areas, areas + STAGING_BYTES, &y_map, 64 * tile.row_tile, tile.token, thread);
                else
                    finish_gated<1>(d, areas + STAGING_BYTES, areas, &y_map, 64 * tile.row_tile, tile.token, thread);
            } else {
                finish(d, shared + STAGING_OFFSET + group * STAGING_BYTES, &y_map, 64 * (tile.row_tile + i32(group)),
                       tile.token, group, thread);
            }
        }
        if (thread == 0) bulk_wait<0>();
    }
    // A block must not leave while its neighbour still loads into it.
    if constexpr (CLUSTER > 1) cluster_sync();
}
