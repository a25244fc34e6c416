// Quantises the keys and values in a sequence's pages to bytes, as attention_bytes.cu multiplies them.
//
//   value_peaks[h] = max |v|, over all tokens; to be 0 before
//   key_scales[h, b] = max |k - centre[h]| / 127 over block b; k_codes = round((k - centre) / key_scale)
//   v_codes[h, b, i, key_place(token)] = e4m3(v[i] * 448 / value_peaks[h])
//   key_place: token 8 j + 2 c + e of 32 (c < 4, e < 2) goes to 16 (j / 2) + 4 c + 2 (j % 2) + e, where a quad's sums of scores,
//   packed to bytes, are the A operand of a product
//
// Layouts: pages (pool_pages, 128, kv_heads, WIDTH) f16, token j in slot j % 128 of page table[j / 128]; centre
//   f32 (kv_heads, WIDTH); k_codes i8 (kv_heads, blocks, 128 tokens, WIDTH), v_codes e4m3 (kv_heads, blocks, WIDTH,
//   128 tokens): zeros past `tokens`, where pages are not read.
// Launch: (kv_heads, blocks) blocks of 256 threads. 16-byte aligned arrays. Defines: WIDTH, 64 or 128.
// sm_90a.
#include "page_values.cuh"
#include "wgmma_e4m3.cuh"

constexpr int ROW_BYTES = 2 * WIDTH;

extern "C" __global__ void __launch_bounds__(THREADS)
value_peaks(const u8* pages, const i32* table, u32* peaks, i32 tokens, i32 kv_heads) {
    __shared__ f32 shared[WARPS];
    const i32 head = i32(blockIdx.x), block = i32(blockIdx.y), valid = min(PAGE, tokens - block * PAGE);
    const u32 lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    const u8* rows = pages + (i64(table[block]) * PAGE * kv_heads + head) * ROW_BYTES;
    f32 peak = 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = int(first) + WARPS * SIDE * i;
        if (row < valid) peak = fmaxf(peak, peak_of(four_of(rows + i64(row) * kv_heads * ROW_BYTES, lane)));
    }
    peak = block_max(peak, shared);
    if (threadIdx.x == 0) atomicMax(peaks + head, __float_as_uint(peak));  // no float here is negative
}

extern "C" __global__ void __launch_bounds__(THREADS, WIDTH == 64 ? 2 : 4)
kv_bytes(const u8* k_pages, const u8* v_pages, const i32* table, const f32* centre, const f32* peaks, u8* k_codes,
         f32* key_scales, u8* v_codes, i32 tokens, i32 kv_heads) {
    __shared__ f32 shared[WARPS];
    __shared__ alignas(16) u32 pairs[PAGE * WIDTH / 2];  // pair p of row r at p ^ 4 (r / 16): columns are read below
    const i32 head = i32(blockIdx.x), block = i32(blockIdx.y), valid = min(PAGE, tokens - block * PAGE);
    const u32 lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    const i64 page = (i64(table[block]) * PAGE * kv_heads + head) * ROW_BYTES, tile = i64(head) * gridDim.y + block;
    const float4 centred = reinterpret_cast<const float4*>(centre + head * WIDTH)[lane];
    const Four middle = {{centred.x, centred.y, centred.z, centred.w}};
    uint2 keys[ROWS];  // as stored: in float32 they would take the registers of a block
    f32 peak = 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = int(first) + WARPS * SIDE * i;
        Four values = {};
        keys[i] = make_uint2(0, 0);
        if (row < valid) {
            const i64 at = page + i64(row) * kv_heads * ROW_BYTES;
            keys[i] = words_of(k_pages + at, lane), values = four_of(v_pages + at, lane);
            peak = fmaxf(peak, peak_of(minus(four_of(keys[i]), middle)));
        }
        u32* to = pairs + row * (WIDTH / 2) + ((2 * lane) ^ (row / 16 * 4));
        to[0] = pack_f16(values.x[0], values.x[1]), to[1] = pack_f16(values.x[2], values.x[3]);
    }
    peak = block_max(peak, shared);
    const f32 inverse = peak > 0 ? __fdiv_rn(127.0f, peak) : 0.0f;
    if (threadIdx.x == 0) key_scales[tile] = peak * (1.0f / 127.0f);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        u32 word = code_word(minus(four_of(keys[i]), middle), inverse);
        const int row = int(first) + WARPS * SIDE * i;
        if (row >= valid) word = 0;
        reinterpret_cast<u32*>(k_codes)[(tile * PAGE + row) * (WIDTH / 4) + lane] = word;
    }
    const f32 largest = peaks[head], rise = largest > 0 ? __fdiv_rn(448.0f, largest) : 0.0f;
    const u32 warp = threadIdx.x / 32, chunk = threadIdx.x % 32 / 4;  // of 16 tokens
#pragma unroll
    for (int i = 0; i < WIDTH / 8 / WARPS; ++i) {
        const u32 pair = 4 * (warp + WARPS * i) + threadIdx.x % 4;
        u32 held[16], words[2][4];
#pragma unroll
        for (int j = 0; j < 16; ++j) held[j] = pairs[(16 * chunk + j) * (WIDTH / 2) + (pair ^ (4 * chunk))];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const u32 four[4] = {held[2 * c], held[2 * c + 1], held[8 + 2 * c], held[9 + 2 * c]};
            words[0][c] = pack_e4m3(low_f16(four[0]) * rise, low_f16(four[1]) * rise, low_f16(four[2]) * rise,
                                    low_f16(four[3]) * rise);
            words[1][c] = pack_e4m3(high_f16(four[0]) * rise, high_f16(four[1]) * rise, high_f16(four[2]) * rise,
                                    high_f16(four[3]) * rise);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            *reinterpret_cast<uint4*>(v_codes + (tile * WIDTH + 2 * pair + half) * PAGE + 16 * chunk) =
                uint4{words[half][0], words[half][1], words[half][2], words[half][3]};
    }
}
