// Projects tokens of a paged cache into the space of a trained head, one layer at a time:
//
//   document[t] (+)= unrotated(k[t]) . B[keys] + v[t] . B[values]
//
// k is rotated back in float32 and rounded to f16, as unrotate.cu does; products are those of tensor cores, summed in
// float32. Of 131,072 tokens with 3 heads of 64 and rank 96 it reads 101 MB of rows and 50 MB of sums and writes 50 MB:
// 0.05 ms at 4 TB/s, to which come 75 MB of weights from L2.
//
// Layouts: pages f16 (pool_pages, 128, kv_heads, HEAD_DIM), table i32, or null where the pages of the sequence lie in order;
//   positions i64 (tokens,), turns i64 (half,) and magnitude as in unrotate.cu; weights f16 (2 kv_heads HEAD_DIM, pitch), rows
//   of keys before those of values; document f32 (tokens, pitch), written where `first` is set, else added to.
// Launch: a block takes 8192 / HEAD_DIM tokens and RANK columns; a warp takes 16 tokens, of which it copies one head after the
//   other; 64 rows of weights at a time are shared by all warps. All is copied a step ahead. 16-byte aligned arrays.
//   sm_80 and newer.
// Defines: HEAD_DIM 64, 128, 256, 512; RANK, a multiple of 16 up to 128 that divides the pitch; INTERLEAVED, see rotary.cuh.
#include "rotary.cuh"

constexpr int TOKENS = 8192 / HEAD_DIM, WARPS = TOKENS / 16;
constexpr int DEPTH = 64, PIECES = HEAD_DIM / DEPTH;  // values of a step, and steps of a head
constexpr int ROW = 2 * HEAD_DIM + 16, WEIGHT_ROW = 2 * RANK + 16;  // bytes, an odd number of 16: ldmatrix meets banks once
constexpr int TILE = TOKENS * ROW, WEIGHTS = DEPTH * WEIGHT_ROW;

// Sixteen tokens' rows of a head, which lie ROW bytes apart, without rotary embedding; a pair is one lane's.
SP_DEVICE void turn_back(u8* rows, const i64* positions, int count, const i64* turns, int half, f32 magnitude, u32 lane) {
#pragma unroll 2
    for (int row = 0; row < count; row++) {
        const Angles angles = angles_of(-positions[row], turns, half, magnitude, lane);
        u16* x = reinterpret_cast<u16*>(rows + row * ROW);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 64; i++) {
            const int j = int(lane) + 32 * i;
            if (j >= half) continue;
            const int first = INTERLEAVED ? 2 * j : j, second = INTERLEAVED ? 2 * j + 1 : j + half;
            const f32 a = f32_from_f16(x[first]), b = f32_from_f16(x[second]);
            x[first] = f16_from(a * angles.cosine[i] - b * angles.sine[i]);
            x[second] = f16_from(a * angles.sine[i] + b * angles.cosine[i]);
        }
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
space_rows(const u8* k_pages, const u8* v_pages, const i32* table, const i64* positions, const i64* turns, const u16* weights,
           f32* document, i64 tokens, i32 kv_heads, i32 half, i32 pitch, i32 first, f32 magnitude) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = int(blockIdx.y) * RANK, steps = 2 * kv_heads * PIECES;
    const i64 mine = i64(blockIdx.x) * TOKENS + 16 * warp;  // sixteen tokens, which lie in one page
    const int count = int(mine < tokens ? min(tokens - mine, i64(16)) : 0);
    i64 place = mine;
    if (count && table) place = i64(table[mine / PAGE_TOKENS]) * PAGE_TOKENS + mine % PAGE_TOKENS;
    const u32 base = shared_address(shared), own = base + 16 * warp * ROW, everybody = base + 2 * TILE;

    const auto copy_rows = [&](int part) {  // heads of keys, then of values
        const u8* pages = part < kv_heads ? k_pages : v_pages;
        const int head = part < kv_heads ? part : part - kv_heads;
#pragma unroll 4
        for (int i = int(lane); i < 2 * HEAD_DIM; i += 32) {
            const int row = i / (HEAD_DIM / 8), eighth = i % (HEAD_DIM / 8);
            const bool valid = row < count;
            const i64 at = valid ? ((place + row) * kv_heads + head) * (2 * HEAD_DIM) + 16 * eighth : 0;
            cp_async_16(own + part % 2 * TILE + row * ROW + 16 * eighth, pages + at, valid);
        }
    };
    const auto copy_weights = [&](int step) {
        const u16* source = weights + i64(step) * DEPTH * pitch + column;
        const u32 target = everybody + step % 2 * WEIGHTS;
#pragma unroll 1
        for (int i = int(threadIdx.x); i < DEPTH * RANK / 8; i += 32 * WARPS)
            cp_async_16(target + i / (RANK / 8) * WEIGHT_ROW + i % (RANK / 8) * 16,
                        source + i64(i / (RANK / 8)) * pitch + i % (RANK / 8) * 8);
    };

    copy_rows(0), copy_weights(0), cp_async_commit();
    f32* const out = document + (mine + lane / 4) * pitch + column + lane % 4 * 2;
    f32 sums[RANK / 8][4] = {};
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (first || int(lane / 4) + 8 * side >= count) continue;
#pragma unroll
        for (int n = 0; n < RANK / 8; n++) {
            const float2 before = *reinterpret_cast<const float2*>(out + i64(8 * side) * pitch + 8 * n);
            sums[n][2 * side] = before.x, sums[n][2 * side + 1] = before.y;
        }
    }
    for (int step = 0; step < steps; step++) {
        const int part = step / PIECES, piece = step % PIECES;
        if (step + 1 < steps) {
            copy_weights(step + 1);
            if (piece == PIECES - 1) copy_rows(part + 1);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        if (piece == 0 && part < kv_heads && half)
            turn_back(shared + part % 2 * TILE + 16 * warp * ROW, positions + mine, count, turns, half, magnitude, lane);
        const u32 rows = own + part % 2 * TILE + lane % 16 * ROW + piece * (2 * DEPTH) + lane / 16 * 16;
        const u32 columns = everybody + step % 2 * WEIGHTS + lane % 16 * WEIGHT_ROW + lane / 16 * 16;
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            u32 a[4];
            ldmatrix_x4(a, rows + 32 * k);
#pragma unroll
            for (int n = 0; n < RANK / 16; n++) {
                u32 b[4];
                ldmatrix_x4_trans(b, columns + 16 * k * WEIGHT_ROW + 32 * n);
                mma_f16(sums[2 * n], a, b[0], b[1]);
                mma_f16(sums[2 * n + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();  // before the next step but one is copied over these
    }
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (int(lane / 4) + 8 * side >= count) continue;
#pragma unroll
        for (int n = 0; n < RANK / 8; n++)
            *reinterpret_cast<float2*>(out + i64(8 * side) * pitch + 8 * n) =
                make_float2(sums[n][2 * side], sums[n][2 * side + 1]);
    }
}
