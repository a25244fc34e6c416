// The epilogue of an item of gemm_small_m.cu: adds up the sums of the slices and writes the results.
#pragma once
#include "activations.cuh"
#include "few_walk.cuh"

typedef f32 Sums[2][NT][4];

SP_DEVICE void store_piece(f32* piece, const Sums& acc, int lane) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
            reinterpret_cast<float4*>(piece)[(m * NT + nt) * 32 + lane] =
                make_float4(acc[m][nt][0], acc[m][nt][1], acc[m][nt][2], acc[m][nt][3]);
}

// From other blocks (Past: past the L1 cache, which may hold what was there before) or from warps of this one.
template <bool Past>
SP_DEVICE void add_piece(Sums& acc, const f32* piece, int lane) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            const float4* from = reinterpret_cast<const float4*>(piece) + (m * NT + nt) * 32 + lane;
            const float4 v = Past ? __ldcg(from) : *from;
            acc[m][nt][0] += v.x, acc[m][nt][1] += v.y, acc[m][nt][2] += v.z, acc[m][nt][3] += v.w;
        }
}

// Whether this warp's slice of the item is the last to come. Then `acc` becomes the sum of all slices, in their order.
SP_DEVICE bool gather_slices(Sums& acc, f32* partials, u32* arrived, int items, int item, int lane) {
    store_piece(partials + (i64(blockIdx.y) * items + item) * (32 * PIECE), acc, lane);
    __syncwarp();
    u32 before = 0;
    if (lane == 0)
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived + item) : "memory");
    if (__shfl_sync(0xffffffffu, before, 0) + 1 < gridDim.y) return false;
    if (lane == 0) arrived[item] = 0;  // for the next launch
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][nt][i] = 0;
#pragma unroll 4
    for (int slice = 0; slice < gridDim.y; ++slice)
        add_piece<true>(acc, partials + (i64(slice) * items + item) * (32 * PIECE), lane);
    return true;
}

SP_DEVICE void write(const Weights& weights, const Walk& at, const Sums& acc, int tokens, int lane) {
    const Weight w = pick(weights, at.which);
#pragma unroll
    for (int m = 0; m < (EPILOGUE == EPILOGUE_SWIGLU ? 1 : 2); ++m)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = nt * 8 + lane % 4 * 2 + i % 2, row = (at.strip + m) * 16 + lane / 4 + i / 2 * 8;
                if (token >= tokens || row >= w.rows) continue;
                const i64 to = i64(token) * w.rows + row;
                const f32 value = acc[m][nt][i];
                if (EPILOGUE == EPILOGUE_SWIGLU)
                    w.y[to] = bf16_from(silu_rn(value) * acc[1][nt][i]);
                else if (EPILOGUE == EPILOGUE_ADD)
                    w.z[to] += value;
                else if (w.z)
                    w.z[to] = value;
                else
                    w.y[to] = bf16_from(value);
            }
}
