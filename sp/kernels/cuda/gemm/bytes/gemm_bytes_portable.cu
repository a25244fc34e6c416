// Prefill matmul of bytes without Hopper's own instructions: Y[n, o] = sum_k X[n, k] W[o, k] for X and W rounded to int8 with a
// float32 scale for a row, as round_rows.cu makes them, and for up to 64 outlier channels in bf16 besides.
//
//   x        bytes (tokens, k) row-major; x_scales f32 (whole 128 tokens)
//   w        bytes (rows of w, k) row-major; w_scales f32 (rows of w). SWIGLU: gate's rows, those of up from `second` on
//   xl, wl   bf16 (tokens, 64) and (rows of w, 64): outlier channels; not read where *loud_count is 0
//   y        EPILOGUE STORE: bf16 (tokens, rows); STORE_F32: f32 stored, or added to y when `add`; SWIGLU: bf16 silu(x Gᵀ) * (x Uᵀ)
// Both sides hold the inputs in the same order, whichever that is. k % 128 == 0, rows % 8 == 0, tokens >= 1.
//
// Y = (w_scale * x_scale) * sum + the product of outlier channels; the sum is exact in int32 (k * 127^2 < 2^31).
// Launch: grid ceil(tokens / 128) * ceil(rows / 128 (SWIGLU: 64)), 256 threads, STAGES * 32,768 bytes of dynamic shared memory. A
// warp owns 64 tokens x 32 rows of w (SWIGLU: 16 of gate, 16 of up): A and B of mma.m16n8k32 through a ring of STAGES tiles of
// 128 inputs, filled by cp.async; 16-byte chunk j of row r lies at j ^ (r % 8). Warps wait for stages, never for each other.
// Arches: 80+ (cp.async, ldmatrix, mma.m16n8k32 and m16n8k16).
// Idea: multi-stage cp.async pipelines as in CUTLASS's sm_80 mainloop.
#include "activations.cuh"
#include "epilogue.cuh"
#include "mbarrier.cuh"

namespace {

constexpr bool PAIRED = EPILOGUE == EPILOGUE_SWIGLU;
constexpr int THREADS = 256, WARPS = 8;
constexpr int BLOCK = 128;                         // tokens, and rows of w
constexpr int OUTS = PAIRED ? 64 : 128;            // of a block
constexpr int TILE_BYTES = BLOCK * 128, STAGE_BYTES = 2 * TILE_BYTES;
constexpr int BAND = 16;                           // token blocks walked together, so that their x and w stay in L2
constexpr int COPIES = BLOCK * 8 / THREADS;        // of 16 bytes a thread, of each side
constexpr int M = 4, N = 4;                        // fragments of a warp: 16 tokens, 8 rows of w

// d += a b of whole numbers.
SP_DEVICE void mma_s8(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace

#if EPILOGUE == EPILOGUE_STORE_F32
#define ENTRY gemm_bytes_portable_f32
typedef f32 Out;
#else
#define ENTRY gemm_bytes_portable
typedef u16 Out;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) ENTRY(
    const u8* __restrict__ x, const u8* __restrict__ w, const u8* __restrict__ xl, const u8* __restrict__ wl,
    const f32* __restrict__ x_scales, const f32* __restrict__ w_scales, const u32* __restrict__ loud_count,
    Out* __restrict__ y, i32 tokens, i32 rows, i32 second, i32 k
#if EPILOGUE == EPILOGUE_STORE_F32
    , i32 add
#endif
) {
    extern __shared__ __align__(128) u8 ring[];
    __shared__ __align__(8) u64 barriers[2][STAGES];
    const u32 full = shared_address(barriers[0]), empty = shared_address(barriers[1]);
    if (threadIdx.x < STAGES) {
        mbarrier_init(full + 8 * threadIdx.x, THREADS);
        mbarrier_init(empty + 8 * threadIdx.x, WARPS * WARP_ARRIVALS);
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % 2, warp_n = warp / 2;
    const int g = lane / 4, c = lane % 4;
    const int k_tiles = k / 128;

    // Bands of BAND token blocks; within one, all token blocks of a block of rows, then the next rows.
    const int row_blocks = (rows + OUTS - 1) / OUTS, token_blocks = (tokens + BLOCK - 1) / BLOCK;
    const int band = blockIdx.x / (BAND * row_blocks), within = blockIdx.x % (BAND * row_blocks);
    const int width = min(BAND, token_blocks - band * BAND);
    const int token0 = (band * BAND + within % width) * BLOCK, out0 = within / width * OUTS;

    // ---- copies: chunk threadIdx % 8 of every 32nd row; rows past the end repeat the last one, nothing of these is stored
    auto row_of_w = [&](int r) {  // eights of rows stay together, for their scales
        const int i = r % 32, out = PAIRED ? out0 + r / 32 * 16 + i % 16 : out0 + r;
        return min(out, rows - 8 + r % 8) + (PAIRED && i >= 16 ? second : 0);
    };
    const int copy_row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    u32 from[2][COPIES];
    auto start = [&](u32 pitch) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            from[0][i] = u32(min(token0 + copy_row + 32 * i, tokens - 1)) * pitch + 16 * chunk;
            from[1][i] = u32(row_of_w(copy_row + 32 * i)) * pitch + 16 * chunk;
        }
    };
    const u32 base = shared_address(ring), copy_to = base + copy_row * 128 + (chunk ^ (copy_row % 8)) * 16;
    auto copy_tile = [&](const u8* a, const u8* b, int stage) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            cp_async_16(copy_to + stage * STAGE_BYTES + 32 * i * 128, a + from[0][i]);
            cp_async_16(copy_to + stage * STAGE_BYTES + TILE_BYTES + 32 * i * 128, b + from[1][i]);
        }
    };
    start(k);
    int copied = 0;  // tiles
    auto copy_next = [&](int stage) {
        copy_tile(x + 128 * copied, w + 128 * copied, stage);
        ++copied;
        mbarrier_arrive_after_copies(full + 8 * stage);
    };
#pragma unroll
    for (int s = 0; s < STAGES; ++s)
        if (s < k_tiles) copy_next(s);

    // ---- fragments: of A lane l gives row l % 16 and the k half l / 16; of B row l % 8 (+ 8 from lane 16 on) and the half l / 8 % 2
    const u32 a_from = (warp_m * 64 + lane % 16) * 128 + ((lane / 16) ^ (lane % 8)) * 16;
    const u32 b_from = TILE_BYTES + (warp_n * 32 + lane % 8 + lane / 16 * 8) * 128 + ((lane / 8 % 2) ^ (lane % 8)) * 16;
    u32 a[2][M][4], b[2][N / 2][4];
    auto load = [&](int into, u32 stage_base, int s) {
#pragma unroll
        for (int m = 0; m < M; ++m) ldmatrix_x4(a[into][m], stage_base + (a_from ^ (32 * s)) + m * 16 * 128);
#pragma unroll
        for (int n = 0; n < N / 2; ++n) ldmatrix_x4(b[into][n], stage_base + (b_from ^ (32 * s)) + n * 16 * 128);
    };

    i32 sums[M][N][4] = {};
    mbarrier_wait(full, 0);
    load(0, base, 0);
    int stage = 0, last_stage = STAGES - 1;  // of this tile, of the one before
    u32 full_parity = 0, empty_parity = 0;   // of the next tile's stage, of the last tile's
#pragma unroll 1
    for (int tile = 0; tile < k_tiles; ++tile) {
        const int next_stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            if (s == 1 && tile > 0 && copied < k_tiles) {
                mbarrier_wait(empty + 8 * last_stage, empty_parity);
                copy_next(last_stage);
            }
            if (s < 3) {
                load((s + 1) % 2, base + stage * STAGE_BYTES, s + 1);
            } else {
                mbarrier_arrive_warp(empty + 8 * stage, lane);
                if (next_stage == 0) full_parity ^= 1;
                if (tile + 1 < k_tiles) {
                    mbarrier_wait(full + 8 * next_stage, full_parity);
                    load(0, base + next_stage * STAGE_BYTES, 0);
                }
            }
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int n = 0; n < N; ++n)
                    mma_s8(sums[m][n], a[s % 2][m], b[s % 2][n / 2][n % 2 * 2], b[s % 2][n / 2][n % 2 * 2 + 1]);
        }
        if (tile > 0 && last_stage == STAGES - 1) empty_parity ^= 1;
        last_stage = stage;
        stage = next_stage;
    }

    // ---- scaled; then outlier channels: 64 inputs in bf16 are as wide as 128 bytes
    f32 d[M][N][4];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const float2 w_scale = *reinterpret_cast<const float2*>(w_scales + row_of_w(warp_n * 32 + 8 * n) + 2 * c);
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const f32 x_scale = x_scales[token0 + warp_m * 64 + 16 * m + 8 * (e / 2) + g];
                d[m][n][e] = f32(sums[m][n][e]) * (x_scale * (e % 2 ? w_scale.y : w_scale.x));
            }
    }
    if (*loud_count > 0) {
        __syncthreads();
        start(128);
        copy_tile(xl, wl, 0);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            load(0, base, s);
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int n = 0; n < N; ++n) mma_bf16(d[m][n], a[0][m], b[0][n / 2][n % 2 * 2], b[0][n / 2][n % 2 * 2 + 1]);
        }
    }

    // ---- results: four lanes store neighbouring outputs of a token
    constexpr int SHARE = PAIRED ? N / 2 : N;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 token = token0 + warp_m * 64 + 16 * m + 8 * h + g;
            if (token >= tokens) continue;
#pragma unroll
            for (int n = 0; n < SHARE; ++n) {
                const int out = out0 + warp_n * 8 * SHARE + 8 * n + 2 * c;
                if (out >= rows) continue;
                f32 first = d[m][n][2 * h], next = d[m][n][2 * h + 1];
                if constexpr (PAIRED) {
                    first = silu_rn(first) * d[m][n + N / 2][2 * h];
                    next = silu_rn(next) * d[m][n + N / 2][2 * h + 1];
                }
                Out* to = y + token * rows + out;
#if EPILOGUE == EPILOGUE_STORE_F32
                float2 old = make_float2(0, 0);
                if (add) old = *reinterpret_cast<const float2*>(to);
                *reinterpret_cast<float2*>(to) = make_float2(old.x + first, old.y + next);
#else
                *reinterpret_cast<u32*>(to) = pack_bf16(first, next);
#endif
            }
        }
}
