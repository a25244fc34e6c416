// How the splits of attention_decode.cu become one: each leaves a state in global memory, the last to come sums them in order.
//
// The state of a tile of 8 query rows is QUADS float4: 32 of (two references, two totals), of which the first four count, one a
// column pair c; then the output fragments, float4 `m 32 + lane` being (dim g: rows 2c, 2c + 1; dim g + 8: the same).
#pragma once
#include "decode_products.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int QUADS = 32 * (OUTPUTS + 1);
constexpr int TABLE_PITCH = D + 8;  // floats from row to row of finished outputs

// Normalised outputs of fragment quad i of tile t -> their places in the table of rows, dims in order.
SP_DEVICE void put(f32* rows, int t, int i, const float4& sum, f32 a, f32 b) {
    const int m = i / 32, g = i % 32 / 4, c = i % 4;
    f32* row = rows + (8 * t + 2 * c) * TABLE_PITCH;
    row[output_dim(m, g, 0)] = sum.x * a, row[output_dim(m, g, 1)] = sum.z * a;
    row[TABLE_PITCH + output_dim(m, g, 0)] = sum.y * b, row[TABLE_PITCH + output_dim(m, g, 1)] = sum.w * b;
}

SP_DEVICE void add(float4& sum, const float4& o, f32 a, f32 b) {
    sum.x += o.x * a, sum.y += o.y * b, sum.z += o.z * a, sum.w += o.w * b;
}

// Sum of what splits stored, on their common references; `heads` is room for 4 float4 a split in shared memory.
SP_DEVICE void merge_splits(f32* table, const float4* parts, i32 splits, i32 stride, float4* heads) {
    const int c = int(threadIdx.x) % 4;
    constexpr int MINE = (32 * OUTPUTS + THREADS - 1) / THREADS;  // quads of a thread
    const auto mine = [](int j) { return j * THREADS + int(threadIdx.x); };
#pragma unroll 1
    for (int t = 0; t < TILES; t++, parts += i64(stride) * QUADS) {
        __syncthreads();
        for (int i = int(threadIdx.x); i < 4 * splits; i += THREADS) heads[i] = __ldcg(parts + i64(i / 4) * QUADS + i % 4);
        __syncthreads();
        f32 high[2] = {NEVER, NEVER}, total[2] = {0, 0};
        for (int part = 0; part < splits; part++)
            high[0] = fmaxf(high[0], heads[4 * part + c].x), high[1] = fmaxf(high[1], heads[4 * part + c].y);
        float4 sum[MINE] = {};
#pragma unroll 8
        for (int part = 0; part < splits; part++) {
            const float4 head = heads[4 * part + c];
            const f32 a = exp2_fast(head.x - high[0]), b = exp2_fast(head.y - high[1]);
            total[0] += head.z * a, total[1] += head.w * b;
#pragma unroll
            for (int j = 0; j < MINE; j++)
                if (32 * OUTPUTS % THREADS == 0 || mine(j) < 32 * OUTPUTS)
                    add(sum[j], __ldcg(parts + i64(part) * QUADS + 32 + mine(j)), a, b);
        }
#pragma unroll
        for (int j = 0; j < MINE; j++)
            if (32 * OUTPUTS % THREADS == 0 || mine(j) < 32 * OUTPUTS)
                put(table, t, mine(j), sum[j], 1.0f / total[0], 1.0f / total[1]);
    }
}
