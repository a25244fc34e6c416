// y[t, o] = sum_k x[t, k] W[o, k] for many tokens, W packed and x in int8: prefill's matrix product in eight bits.
//
// Over each group of 32 inputs, n = sum of codes of x times codes of W is an integer, and
//   y += W.scale * (x.scale * n) + W.shift * (x.scale * sum of x's codes)
// where W.shift is what the weight adds to every value of the group, its minimum. Where a scale covers 16 inputs (Q6_K,
// Q3_K) there are two n. Of the weight nothing is lost; y differs from x W of the rounded x by float32's rounding alone.
//
//   codes   int8 [k / 64][held][64], inside 16 inputs in the order of int8_operands.cuh; held: tokens padded to 128
//   pairs   f32 [k / 32][held][scale, scale * sum of codes]; a scale has 22 significant bits
//   W       fragment order (fragment.cuh): planes `low`, `high`; `scales` f32 [row tile][k tile][64 rows][4] (integer_scales.cu)
//   y       EPILOGUE STORE: bf16 (tokens, rows) stored; STORE_F32: f32 stored, or added to y when `add`; rows % 8 == 0
//           SWIGLU: bf16 silu(x Wᵀ) * (x Vᵀ), V in low2, high2, scales2 and of W's shape and format
//   launch  grid ceil(rows / BLOCK_ROWS) * ceil(tokens / BLOCK_TOKENS), blocks of 32 * WARPS threads, STAGES * STAGE_BYTES of
//           dynamic shared memory; k % 64 == 0
//   arches  80+ (cp.async, ldmatrix, mma.m16n8k32 of s8)
//
// A warp owns 16 * SLICES weight rows x 8 * COLUMNS tokens, so each weight is unpacked once a block. All of a stage comes by
// cp.async; warps wait for a stage to be full or empty, never for each other. Sums start at 1.5 * 2^23 read as an integer, so
// that they are float32 as they come and nothing converts them. Per product of 16 x 8 x 32 a lane has 8 multiply-adds to scale
// its four sums, and 4 for minima: as much as goes beside the 16 cycles that sm_86's and sm_89's tensor cores need for one.
// Idea of integer products with scales a group: llama.cpp's MMQ (ggml-cuda/mmq.cuh). Integers in a float's fraction: Kim, Henry,
// Fahim, Hassan Awadalla, "Who Says Elephants Can't Run", 2022.
#include "activations.cuh"
#include "int8_tile.cuh"
#include "mbarrier.cuh"

constexpr int BAND = 16;                     // token tiles walked together, so that their x and the weights stay in L2
constexpr int STAGED_ROW = WARP_ROWS + 4;    // floats
static_assert(WARPS * 16 * STAGED_ROW * 4 <= STAGES * STAGE_BYTES, "the epilogue is staged in the ring");

#if EPILOGUE == EPILOGUE_STORE
#define ENTRY gemm_int8_bf16
typedef u16 Out;
#elif EPILOGUE == EPILOGUE_STORE_F32
#define ENTRY gemm_int8_f32
typedef f32 Out;
#else
#define ENTRY gemm_int8_gated
typedef u16 Out;
#endif

// A warp's rows from row0 on of tokens from token0 on, 16 tokens at a time through shared memory, so that stores run along
// the rows of y.
SP_DEVICE void store_results(const f32 (&sum)[COLUMNS][SLICES][4], Out* y, int token0, int tokens, int row0, int rows, int add,
                             int warp, int lane) {
    f32* staged = reinterpret_cast<f32*>(shared) + warp * 16 * STAGED_ROW;
    constexpr int LANES = WARP_ROWS / 4;  // that share a token, four rows each
    const int my_row = row0 + lane % LANES * 4;
#pragma unroll
    for (int pair = 0; pair < COLUMNS / 2; ++pair) {
#pragma unroll
        for (int m = 0; m < SHARE; ++m) {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                f32 v = sum[2 * pair + e / 4][m][e % 4];
                if constexpr (PAIRED) v = silu_rn(v) * sum[2 * pair + e / 4][m + SHARE][e % 4];
                staged[(e / 4 * 8 + lane % 4 * 2 + e % 2) * STAGED_ROW + 16 * m + e / 2 % 2 * 8 + lane / 4] = v;
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * LANES / 32; ++i) {
            const int at = i * (32 / LANES) + lane / LANES, token = token0 + pair * 16 + at;
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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ENTRY(
    const i8* __restrict__ codes, const f32* __restrict__ pairs,
    const u8* __restrict__ low, const u8* __restrict__ high, const f32* __restrict__ scales,
#if EPILOGUE == EPILOGUE_SWIGLU
    const u8* __restrict__ low2, const u8* __restrict__ high2, const f32* __restrict__ scales2,
#endif
    Out* __restrict__ y, int tokens, int held, int rows, int k
#if EPILOGUE == EPILOGUE_STORE_F32
    , int add
#endif
) {
#if EPILOGUE != EPILOGUE_STORE_F32
    constexpr int add = 0;
#endif
    __shared__ __align__(8) u64 barriers[2][STAGES];
    const u32 full = shared_address(barriers[0]), empty = shared_address(barriers[1]), ring = shared_address(shared);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    if (thread < STAGES) {
        mbarrier_init(full + 8 * thread, THREADS);
        mbarrier_init(empty + 8 * thread, WARPS * WARP_ARRIVALS);
    }
    __syncthreads();

    // Bands of BAND token tiles; within one, all token tiles of a block of rows, then the next rows.
    const int row_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, k_tiles = k / TILE_K;
    const int row_blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, token_blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const int band = blockIdx.x / (BAND * row_blocks), within = blockIdx.x % (BAND * row_blocks);
    const int width = min(BAND, token_blocks - band * BAND);
    const int token0 = (band * BAND + within % width) * BLOCK_TOKENS, row0 = within / width * BLOCK_ROWS;
    const int first = row0 / TILE_ROWS, most = row_tiles - first;

    auto copy_tile = [&](int stage, int tile) {
        int start = first * k_tiles;
        asm volatile("" : "+r"(start));  // hidden: the compiler would keep addresses made of it in registers
        const i64 tile0 = start;
        const Source weights[SOURCES] = {
            {low + tile0 * Format::low_bytes, high + tile0 * Format::high_bytes, scales + tile0 * TILE_ROWS * 4},
#if EPILOGUE == EPILOGUE_SWIGLU
            {low2 + tile0 * Format::low_bytes, high2 + tile0 * Format::high_bytes, scales2 + tile0 * TILE_ROWS * 4},
#endif
        };
        copy_stage(ring + stage * STAGE_BYTES, codes, pairs, weights, tile, k_tiles, token0, held, most, thread);
        mbarrier_arrive_after_copies(full + 8 * stage);
    };
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s)
        if (s < k_tiles) copy_tile(s, s);

    f32 sum[COLUMNS][SLICES][4] = {};
    int stage = 0, last_stage = STAGES - 1;  // of this tile, of the one before
    u32 full_parity = 0, empty_parity = 0;   // of this tile's stage, of the last tile's
#pragma unroll 1
    for (int tile = 0; tile < k_tiles; ++tile) {
        mbarrier_wait(full + 8 * stage, full_parity);
        const u8* at = shared + stage * STAGE_BYTES;
        WarpWeights w;
        w.load(at, 0, warp, lane);
        multiply_columns(sum, w, at, 0, lane);
        if (tile > 0 && tile - 1 + STAGES < k_tiles) {  // the other warps had time to finish the tile before
            mbarrier_wait(empty + 8 * last_stage, empty_parity);
            copy_tile(last_stage, tile - 1 + STAGES);
        }
        w.load(at, 1, warp, lane);
        multiply_columns(sum, w, at, 1, lane);
        mbarrier_arrive_warp(empty + 8 * stage, lane);
        if (tile > 0 && last_stage == STAGES - 1) empty_parity ^= 1;
        last_stage = stage;
        if (++stage == STAGES) stage = 0, full_parity ^= 1;
    }
    __syncthreads();
    store_results(sum, y, token0, tokens, row0 + warp * WARP_ROWS, rows, add, warp, lane);
}
