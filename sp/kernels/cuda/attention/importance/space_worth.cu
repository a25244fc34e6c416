// Worth of ranges of a text for a question, in the space of a trained head (late interaction, arXiv 2004.12832):
//
//   space_alike  alike[t, r] = document[t] . asking[r] / (|document[t]| |asking[r]|), where |x|^2 is x . x + 1e-12
//   space_worth  worth[u] = sum_r softmax_r(gate[r]) max_(t in range u) alike[t, r]
//
// Ranges are bounds[u] .. bounds[u + 1], or without bounds windows of `width` tokens, one every `step`: number u ends at
// step (u + 1), and only what lies inside of the text counts. No range is empty.
// Of 131,072 tokens of rank 96 and 64 rows space_alike reads 50 MB, writes 34 and multiplies 0.8 G times in float32, 0.06 ms;
// space_worth reads these 34 MB once, for windows of 64 every 8 another seven times from L2.
//
// Layouts: document f32 (tokens, rank), asking f32 (rows, stride), of which the first `rank` values count, gate[r] is
//   asking[r][rank]; alike f32 (tokens, rows); bounds i32 (units + 1,) or null; worth f32 (units,). rank is a multiple of 16.
// Launch: space_alike 256 threads a block, 64 tokens and 64 rows; space_worth 8 warps a block, a warp a range. 16-byte aligned
//   arrays, asking at any row. sm_80 and newer.
#include "mma.cuh"

constexpr int SIDE = 64, DEPTH = 16, WARPS = 8;
constexpr int PITCH = SIDE + 4;
constexpr f32 LEAST = -3.4e38f;

extern "C" __global__ void __launch_bounds__(256)
space_alike(const f32* document, const f32* asking, f32* alike, i64 tokens, i32 rank, i32 stride, i32 rows) {
    __shared__ alignas(16) f32 text[DEPTH][PITCH];
    __shared__ alignas(16) f32 asked[DEPTH][PITCH];
    const int x = int(threadIdx.x) % 16, y = int(threadIdx.x) / 16;
    const int line = int(threadIdx.x) / 4, four = int(threadIdx.x) % 4 * 4;  // what a thread copies
    const i64 start = i64(blockIdx.x) * SIDE;
    const int above = int(blockIdx.y) * SIDE;
    f32 dots[4][4] = {}, of_text[4] = {}, of_asked[4] = {};
    for (int from = 0; from < rank; from += DEPTH) {
        float4 values = make_float4(0, 0, 0, 0);
        if (start + line < tokens)
            values = *reinterpret_cast<const float4*>(document + (start + line) * rank + from + four);
        text[four][line] = values.x, text[four + 1][line] = values.y;
        text[four + 2][line] = values.z, text[four + 3][line] = values.w;
#pragma unroll
        for (int i = 0; i < 4; i++)
            asked[four + i][line] = above + line < rows ? asking[i64(above + line) * stride + from + four + i] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            f32 t[4], a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                t[i] = text[k][4 * y + i], a[i] = asked[k][x + 16 * i];
                of_text[i] += t[i] * t[i], of_asked[i] += a[i] * a[i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) dots[i][j] += t[i] * a[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const i64 token = start + 4 * y + i;
        if (token >= tokens) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = above + x + 16 * j;
            if (row < rows)
                alike[token * rows + row] = dots[i][j] / (sqrtf(of_text[i] + 1e-12f) * sqrtf(of_asked[j] + 1e-12f));
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
space_worth(const f32* alike, const f32* asking, const i32* bounds, f32* worth, i32 units, i32 tokens, i32 rank, i32 stride,
            i32 rows, i32 step, i32 width) {
    const int lane = int(threadIdx.x) % 32, unit = int(blockIdx.x) * WARPS + int(threadIdx.x) / 32;
    if (unit >= units) return;
    const int end = step * (unit + 1);
    const int first = bounds ? bounds[unit] : max(end - width, 0), last = bounds ? bounds[unit + 1] : min(end, tokens);
    f32 most = LEAST, weights = 0, total = 0;
    for (int row = lane; row < rows; row += 32) most = fmaxf(most, asking[i64(row) * stride + rank]);
    most = warp_max(most);
    for (int row = lane; row < rows; row += 32) {
        f32 best = LEAST;
#pragma unroll 8
        for (int token = first; token < last; token++) best = fmaxf(best, alike[i64(token) * rows + row]);
        const f32 weight = expf(asking[i64(row) * stride + rank] - most);
        weights += weight, total += weight * best;
    }
    weights = warp_sum(weights), total = warp_sum(total);
    if (lane == 0) worth[unit] = total / weights;
}
