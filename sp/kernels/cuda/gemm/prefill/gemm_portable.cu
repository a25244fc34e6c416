// y[t, o] = sum_k x[t, k] W[o, k] for many tokens, W packed: prefill's matrix product without Hopper's own instructions.
//
//   x       bf16 (tokens, k), 16-byte aligned; k % 64 == 0; any tokens >= 1
//   W       fragment order (fragment.cuh): quant planes `low`, `high`; `scales` = expanded words, [row_tile][k_tile][2][64]
//   y       EPILOGUE STORE: bf16 (tokens, rows) stored; STORE_F32: f32 stored, or added to y when `add`; rows % 8 == 0
//           SWIGLU: bf16 silu(x Wᵀ) * (x Vᵀ), V in low2, high2, scales2 and of W's shape and format: the gated unit of an MLP
//   launch  grid (ceil(rows / BLOCK_ROWS) * ceil(tokens / BLOCK_TOKENS), parts of k <= k / 64), blocks of 32 * WARPS_M * WARPS_N
//           threads, STAGES * BLOCK_TOKENS * 128 bytes of dynamic shared memory
//   partial, arrived  with more than one part (split-K): f32 [tile][part][BLOCK_ROWS * BLOCK_TOKENS], and u32 [tile], zero before and after
//   EXPERTS = 1  blocks of BLOCK_TOKENS tokens belong to experts, see expert_blocks.cuh; rows are those of one expert's matrix,
//           tokens are sorted and padded, and the grid is for the most blocks there may be; STORE and SWIGLU, one part of k
//   arches  80+ (cp.async, ldmatrix, mma.m16n8k16)
//
// A warp owns 16 * SLICES rows x 8 * COLUMNS tokens. W is the A operand: its quants go from global memory straight into
// registers a tile ahead, since fragment order has each thread's words side by side, and become bf16 between the products.
// With WARPS_N = 1 each weight is so unpacked once a block. x is the B operand, through a ring of STAGES tiles of
// (BLOCK_TOKENS, 64 k) filled by cp.async; 16-byte chunk j of row r lies at j ^ (r % 8), so that neither the copies nor ldmatrix
// meet a bank twice. Warps wait for a stage to be full or empty, never for each other: on an H200 that was worth 6 to 28 % over
// one __syncthreads a tile.
// Ideas: multi-stage cp.async pipelines as in CUTLASS's sm_80 mainloop; weights unpacked in registers as in Frantar, Castro,
// Chen, Hoefler, Alistarh, "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs", 2024.
#include "activations.cuh"
#include "epilogue.cuh"
#include "expert_blocks.cuh"
#include "mbarrier.cuh"
#include "quant_source.cuh"

namespace {

constexpr bool PAIRED = EPILOGUE == EPILOGUE_SWIGLU;
constexpr int WARPS = WARPS_M * WARPS_N;
constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = 16 * SLICES / (PAIRED ? 2 : 1);  // rows of y; a pair of weights shares the slices
constexpr int BLOCK_ROWS = WARP_ROWS * WARPS_M;
constexpr int WARP_TOKENS = 8 * COLUMNS;
constexpr int BLOCK_TOKENS = WARP_TOKENS * WARPS_N;
constexpr int STAGE_BYTES = BLOCK_TOKENS * 128;
constexpr int STEPS = 4;                 // k16-steps a tile
constexpr int PAIRS = COLUMNS / 2;       // ldmatrix.x4 a step: B of 16 tokens each
constexpr int AHEAD = COLUMNS >= 16 ? 2 : 1;  // ldmatrix.x4 issued ahead of the product that reads it
constexpr int BAND = 16;                 // token tiles walked together, so that their x and the weights stay in L2
constexpr int STAGED_ROW = 16 * SLICES + 4;   // floats; rows 4 banks apart make the epilogue's transposition conflict-free

static_assert(64 % WARP_ROWS == 0, "a warp's rows lie in one tile");
static_assert(WARPS * 16 * STAGED_ROW * 4 <= STAGES * STAGE_BYTES, "the epilogue is staged in the ring");

using Format = Packing<FORMAT>;

}  // namespace

#if EXPERTS && EPILOGUE == EPILOGUE_STORE
#define ENTRY gemm_portable_experts
typedef u16 Out;
#elif EXPERTS
#define ENTRY gemm_portable_experts_gated
typedef u16 Out;
#elif EPILOGUE == EPILOGUE_STORE
#define ENTRY gemm_portable_bf16
typedef u16 Out;
#elif EPILOGUE == EPILOGUE_STORE_F32
#define ENTRY gemm_portable_f32
typedef f32 Out;
#else
#define ENTRY gemm_portable_gated
typedef u16 Out;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ENTRY(
    const u16* __restrict__ x, const u8* __restrict__ low, const u8* __restrict__ high, const u32* __restrict__ scales,
#if EPILOGUE == EPILOGUE_SWIGLU
    const u8* __restrict__ low2, const u8* __restrict__ high2, const u32* __restrict__ scales2,
#endif
    Out* __restrict__ y, float4* __restrict__ partial, u32* __restrict__ arrived, int tokens, int rows, int k
#if EPILOGUE == EPILOGUE_STORE_F32
    , int add
#endif
    EXPERT_PARAMETERS
) {
    const ExpertBlocks blocks = EXPERT_BLOCKS;
    extern __shared__ __align__(128) u8 ring[];
    __shared__ __align__(8) u64 barriers[2][STAGES];
    const u32 full = shared_address(barriers[0]), empty = shared_address(barriers[1]);
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + 8 * threadIdx.x, THREADS);
        mbarrier_init(empty + 8 * threadIdx.x, WARPS * WARP_ARRIVALS);
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    const int row_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, all_k_tiles = k / TILE_K;
    const int first_k = i64(all_k_tiles) * blockIdx.y / gridDim.y;
    const int k_tiles = i64(all_k_tiles) * (blockIdx.y + 1) / gridDim.y - first_k;  // of this block

    // Bands of BAND token tiles; within one, all token tiles of a block of rows, then the next rows.
    const int row_blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int token_blocks = EXPERTS ? int(*blocks.count) : (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    if (EXPERTS && blockIdx.x >= row_blocks * token_blocks) return;  // the grid has room for the most there may be
    const int band = blockIdx.x / (BAND * row_blocks), within = blockIdx.x % (BAND * row_blocks);
    const int width = min(BAND, token_blocks - band * BAND);
    const int token0 = (band * BAND + within % width) * BLOCK_TOKENS;
    const int row0 = within / width * BLOCK_ROWS + warp_m * WARP_ROWS;

    // ---- x: this thread copies chunk threadIdx % 8 of every (THREADS / 8)-th row
    const int copy_row = threadIdx.x / 8;
    constexpr int COPIES = BLOCK_TOKENS * 8 / THREADS;
    const u8* copy_from[COPIES];  // rows past the end repeat the last one; what comes of them is not stored
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        const i64 row = min(token0 + copy_row + i * (THREADS / 8), tokens - 1);
        copy_from[i] = reinterpret_cast<const u8*>(x + row * k + first_k * TILE_K + threadIdx.x % 8 * 8);
    }
    const u32 ring_base = shared_address(ring);
    const u32 copy_to = ring_base + copy_row * 128 + ((threadIdx.x % 8) ^ (copy_row % 8)) * 16;
    auto copy_tile = [&](int stage) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            cp_async_16(copy_to + stage * STAGE_BYTES + i * (THREADS / 8) * 128, copy_from[i]);
            copy_from[i] += 128;
        }
        mbarrier_arrive_after_copies(full + 8 * stage);
    };
#pragma unroll
    for (int s = 0; s < STAGES; ++s)
        if (s < k_tiles) copy_tile(s);

    // ---- W: rows past the end are read from the last tile and never stored
    constexpr int SOURCES = PAIRED ? 2 : 1;
    constexpr int SHARE = SLICES / SOURCES;  // slices from each source
    QuantSource<FORMAT> source[SOURCES];
    {
        const int row_tile = min(row0 / TILE_ROWS, row_tiles - 1), slice = row0 % TILE_ROWS / 16;
        const u32 block = token0 / BLOCK_TOKENS;
        const i64 tile = i64(i32(blocks.base(block, false)) + row_tile) * all_k_tiles + first_k;
        source[0].start(low, high, scales, tile, slice, lane);
#if EPILOGUE == EPILOGUE_SWIGLU
        const i64 other = i64(i32(blocks.base(block, true)) + row_tile) * all_k_tiles + first_k;
        source[1].start(low2, high2, scales2, other, slice, lane);
#endif
    }
    Quants<FORMAT> quants[SLICES], later[SLICES];  // `later` only for formats whose tile is one 16-byte word a thread
    u32 scale_words[2][SLICES][2] = {};            // [group of 32 k][slice][row g, row g + 8]
    auto load_part = [&](Quants<FORMAT>(&q)[SLICES], int part) {
#pragma unroll
        for (int m = 0; m < SLICES; ++m) source[m / SHARE].load_part(q[m], m % SHARE, part);
    };
    auto load_high = [&](Quants<FORMAT>(&q)[SLICES]) {
#pragma unroll
        for (int m = 0; m < SLICES; ++m) source[m / SHARE].load_high(q[m], m % SHARE);
    };
    auto load_scales = [&](int group) {
        if constexpr (!Format::plain) {
#pragma unroll
            for (int m = 0; m < SLICES; ++m) source[m / SHARE].load_scales(scale_words[group][m], m % SHARE, group);
        }
    };
#pragma unroll
    for (int p = 0; p < Format::low_parts; ++p) load_part(quants, p);
    load_high(quants);
    load_scales(0);
    load_scales(1);

    // ---- B fragments: lane l gives row l % 8 (+ 8 from lane 16 on) and the k half l / 8 % 2 of an ldmatrix.x4
    const u32 b_from = (warp_n * WARP_TOKENS + lane % 8 + lane / 16 * 8) * 128 + ((lane / 8 % 2) ^ (lane % 8)) * 16;
    u32 b[4][4];
    auto load_b = [&](u32 stage_base, int i) {  // i = PAIRS * step + pair
        ldmatrix_x4(b[i % 4], stage_base + (b_from ^ (i / PAIRS * 32)) + i % PAIRS * 16 * 128);
    };

    u32 a[2][SLICES][4];
    f32 sum[SLICES][COLUMNS][4] = {};
    mbarrier_wait(full, 0);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) load_b(ring_base, i);
#pragma unroll
    for (int m = 0; m < SLICES; ++m) a_fragment<FORMAT>(a[0][m], quants[m], 0, scale_words[0][m][0], scale_words[0][m][1]);

    int stage = 0, last_stage = STAGES - 1;  // of this tile, of the one before
    u32 full_parity = 0, empty_parity = 0;   // of the next tile's stage, of the last tile's
#pragma unroll 1
    for (int tile = 0; tile < k_tiles; ++tile) {
        const int next_stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            if (s == 0) {
#pragma unroll
                for (int i = 0; i < SOURCES; ++i) source[i].advance(tile + 1 < k_tiles);
            }
            // What step s's fragments were made of is free: load the same of the next tile. One-word formats load into `later`.
            if constexpr (Format::low_parts == 1) {
                if (s == 0) load_part(later, 0), load_high(later);
                if (s == 3) {
#pragma unroll
                    for (int m = 0; m < SLICES; ++m) quants[m] = later[m];
                }
            } else {
#pragma unroll
                for (int p = 0; p < Format::low_parts; ++p)
                    if (s == (p + 1) * STEPS / Format::low_parts - 1) load_part(quants, p);
            }
            if (s % 2 == 1) load_scales(s / 2);
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                const int ahead = PAIRS * s + pair + AHEAD;
                if (s == 1 && pair == 0 && tile > 0 && tile - 1 + STAGES < k_tiles) {
                    mbarrier_wait(empty + 8 * last_stage, empty_parity);
                    copy_tile(last_stage);
                }
                if (ahead == PAIRS * STEPS) {  // all of this tile is in registers, the next load is from the next one
                    mbarrier_arrive_warp(empty + 8 * stage, lane);
                    if (next_stage == 0) full_parity ^= 1;
                    if (tile + 1 < k_tiles) mbarrier_wait(full + 8 * next_stage, full_parity);
                }
                load_b(ring_base + (ahead < PAIRS * STEPS ? stage : next_stage) * STAGE_BYTES, ahead % (PAIRS * STEPS));
                if (pair % (PAIRS / SLICES) == 0) {
                    const int m = pair / (PAIRS / SLICES), t = (s + 1) % STEPS;
                    a_fragment<FORMAT>(a[t % 2][m], quants[m], t, scale_words[t / 2][m][0], scale_words[t / 2][m][1]);
                }
                const int now = (PAIRS * s + pair) % 4;
#pragma unroll
                for (int m = 0; m < SLICES; ++m) {
                    mma_bf16(sum[m][2 * pair], a[s % 2][m], b[now][0], b[now][1]);
                    mma_bf16(sum[m][2 * pair + 1], a[s % 2][m], b[now][2], b[now][3]);
                }
            }
        }
        if (tile > 0 && last_stage == STAGES - 1) empty_parity ^= 1;
        last_stage = stage;
        stage = next_stage;
    }

    // ---- parts of k: the block that comes last adds all of them, in their order, so that results repeat to the bit
    if (gridDim.y > 1) {
        float4* part = partial + (i64(blockIdx.x) * gridDim.y * SLICES * COLUMNS) * THREADS + threadIdx.x;
#pragma unroll
        for (int i = 0; i < SLICES * COLUMNS; ++i) {
            const f32(&v)[4] = sum[i / COLUMNS][i % COLUMNS];
            part[i64(blockIdx.y * SLICES * COLUMNS + i) * THREADS] = make_float4(v[0], v[1], v[2], v[3]);
        }
        __shared__ bool last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(arrived + blockIdx.x, 1) == gridDim.y - 1;
            if (last) arrived[blockIdx.x] = 0;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
#pragma unroll
        for (int i = 0; i < SLICES * COLUMNS; ++i)
            for (int e = 0; e < 4; ++e) sum[i / COLUMNS][i % COLUMNS][e] = 0;
#pragma unroll 1
        for (int split = 0; split < gridDim.y; ++split, part += SLICES * COLUMNS * THREADS) {
#pragma unroll
            for (int i = 0; i < SLICES * COLUMNS; ++i) {
                const float4 v = __ldcg(part + i * THREADS);
                f32(&to)[4] = sum[i / COLUMNS][i % COLUMNS];
                to[0] += v.x, to[1] += v.y, to[2] += v.z, to[3] += v.w;
            }
        }
    }

    // ---- 16 tokens at a time through shared memory, so that stores run along the rows of y
    __syncthreads();
    f32* staged = reinterpret_cast<f32*>(ring) + warp * 16 * STAGED_ROW;
    constexpr int LANES = WARP_ROWS / 4;  // that share a token, four rows each
    const int my_row = row0 + lane % LANES * 4;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
#pragma unroll
        for (int m = 0; m < SHARE; ++m) {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                f32 v = sum[m][2 * pair + e / 4][e % 4];
                if constexpr (PAIRED) v = silu_rn(v) * sum[m + SHARE][2 * pair + e / 4][e % 4];
                staged[(e / 4 * 8 + lane % 4 * 2 + e % 2) * STAGED_ROW + 16 * m + e / 2 % 2 * 8 + lane / 4] = v;
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * LANES / 32; ++i) {
            const int at = i * (32 / LANES) + lane / LANES;
            const int token = token0 + warp_n * WARP_TOKENS + pair * 16 + at;
            float4 v = *reinterpret_cast<const float4*>(staged + at * STAGED_ROW + lane % LANES * 4);
            if (token < tokens && my_row < rows) {
                Out* to = y + i64(token) * rows + my_row;
#if EPILOGUE == EPILOGUE_STORE_F32
                if (add) {
                    const float4 old = *reinterpret_cast<const float4*>(to);
                    v.x += old.x, v.y += old.y, v.z += old.z, v.w += old.w;
                }
                *reinterpret_cast<float4*>(to) = v;
#else
                *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
#endif
            }
        }
        __syncwarp();
    }
}
