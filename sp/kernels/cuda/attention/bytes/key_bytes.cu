// Quantises the keys in a sequence's pages to bytes, as attention_byte_keys.cu multiplies them, and finds what the keys of a head share.
//
//   key_centre[h] = mean of the keys of pages table[0], table[step], .. `sampled` of them; zeros if there are none
//   r = H (signs * (k - centre[h])) / sqrt(WIDTH), H[i, j] = (-1)^popcount(i & j): spreads channels that are large
//   key_scales[h, b] = max |r| / 127 over block b; codes = round(r / key_scale)
//
// Layouts: pages (pool_pages, 128, kv_heads, WIDTH) f16, token j in slot j % 128 of page table[j / 128]; centre f32 (kv_heads,
//   WIDTH); codes i8 (kv_heads, blocks, 128 tokens, WIDTH): zeros past `tokens`, where pages are not read.
// Launch: key_bytes (kv_heads, blocks) blocks of 256 threads, key_centre (kv_heads) of 1,024. 16-byte aligned arrays.
// Defines: WIDTH, 64, 128 or 256. Arches: 80+.
// Source: rotated queries and keys as in QuaRot (Ashkboos et al., 2024).
#include "page_values.cuh"
#include "rotation_signs.cuh"

constexpr int CENTRE_ROWS = 32 * SIDE, FOURS = WIDTH / (4 * LANES);  // of a lane: values 128 i + 4 lane ..

// Sums and differences of values at distances 1, 2, 4 .. below WIDTH, of a row that LANES lanes hold.
SP_DEVICE void rotate(Four (&row)[FOURS], u32 lane) {
#pragma unroll
    for (int i = 0; i < FOURS; ++i) {
        f32(&x)[4] = row[i].x;
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const f32 a = x[j], b = x[j + 1];
            x[j] = __fadd_rn(a, b), x[j + 1] = __fsub_rn(a, b);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const f32 a = x[j], b = x[j + 2];
            x[j] = __fadd_rn(a, b), x[j + 2] = __fsub_rn(a, b);
        }
#pragma unroll
        for (u32 step = 1; step < LANES; step *= 2)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const f32 other = __shfl_xor_sync(0xffffffffu, x[j], step);
                x[j] = lane & step ? __fsub_rn(other, x[j]) : __fadd_rn(x[j], other);
            }
    }
#pragma unroll
    for (int step = 1; step < FOURS; step *= 2)
#pragma unroll
        for (int i = 0; i < FOURS; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (i & step) continue;
                const f32 a = row[i].x[j], b = row[i + step].x[j];
                row[i].x[j] = __fadd_rn(a, b), row[i + step].x[j] = __fsub_rn(a, b);
            }
}

extern "C" __global__ void __launch_bounds__(LANES * CENTRE_ROWS)
key_centre(const u8* pages, const i32* table, f32* centre, i32 sampled, i32 step, i32 kv_heads) {
    __shared__ f32 sums[CENTRE_ROWS][WIDTH];
    const i32 head = i32(blockIdx.x);
    const u32 lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    Four sum[FOURS] = {};
#pragma unroll 4
    for (int row = int(first); row < sampled * PAGE; row += CENTRE_ROWS) {
        const i64 token = i64(table[row / PAGE * step]) * PAGE + row % PAGE;
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const Four four = four_of(pages + (token * kv_heads + head) * (2 * WIDTH), lane + 32 * i);
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[i].x[j] += four.x[j];
        }
    }
#pragma unroll
    for (int i = 0; i < FOURS; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[first][128 * i + 4 * lane + j] = sum[i].x[j];
    __syncthreads();
    if (threadIdx.x >= WIDTH) return;
    f32 total = 0;
    for (int i = 0; i < CENTRE_ROWS; ++i) total += sums[i][threadIdx.x];
    centre[head * WIDTH + threadIdx.x] = sampled ? total / f32(sampled * PAGE) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
key_bytes(const u8* pages, const i32* table, const f32* centre, u8* codes, f32* key_scales, i32 tokens, i32 kv_heads) {
    __shared__ f32 shared[WARPS];
    const i32 head = i32(blockIdx.x), block = i32(blockIdx.y), valid = min(PAGE, tokens - block * PAGE);
    const u32 lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    const u8* rows = pages + (i64(table[block]) * PAGE * kv_heads + head) * (2 * WIDTH);
    const i64 tile = i64(head) * gridDim.y + block;
    Four middle[FOURS];
    Four keys[ROWS][FOURS];
    u32 signs[FOURS];  // bit j: of value 128 i + 4 lane + j
    f32 peak = 0;
#pragma unroll
    for (int j = 0; j < FOURS; ++j) {
        const float4 centred = reinterpret_cast<const float4*>(centre + head * WIDTH)[lane + 32 * j];
        middle[j] = {{centred.x, centred.y, centred.z, centred.w}};
        signs[j] = sign_word(4 * j + lane / 8) >> 4 * (lane % 8);
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = int(first) + WARPS * SIDE * i;
#pragma unroll
        for (int j = 0; j < FOURS; ++j) {
            keys[i][j] = {};
            if (row >= valid) continue;
            keys[i][j] = minus(four_of(rows + i64(row) * kv_heads * (2 * WIDTH), lane + 32 * j), middle[j]);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (signs[j] >> k & 1) keys[i][j].x[k] = -keys[i][j].x[k];
        }
        rotate(keys[i], lane);
#pragma unroll
        for (int j = 0; j < FOURS; ++j) peak = fmaxf(peak, peak_of(keys[i][j]));
    }
    peak = block_max(peak, shared);
    const f32 inverse = peak > 0 ? __fdiv_rn(127.0f, peak) : 0.0f;
    static_assert(WIDTH == 256 || WIDTH == 128 || WIDTH == 64, "its square root");
    const f32 root = WIDTH == 256 ? 0.0625f : WIDTH == 128 ? 0.08838834764831845f : 0.125f;
    if (threadIdx.x == 0) key_scales[tile] = peak * (1.0f / 127.0f) * root;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < FOURS; ++j) {
            const int row = int(first) + WARPS * SIDE * i;
            reinterpret_cast<u32*>(codes)[(tile * PAGE + row) * (WIDTH / 4) + lane + 32 * j] = code_word(keys[i][j], inverse);
        }
}
