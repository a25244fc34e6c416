// The end of an item of gemm_few_sm90.cu, for each warp on its own: the workers' sums meet, and results are written.
#pragma once
#include "few_sm90_products.cuh"
#include "input_tiles.cuh"

typedef f32 Sums[SETS][SUMS];
constexpr int PIECE = 32 * SETS * SUMS;  // sums of a warp

SP_DEVICE void store_piece(f32* piece, const Sums& acc, int lane) {
#pragma unroll
    for (int m = 0; m < SETS; ++m)
#pragma unroll
        for (int i = 0; i < SUMS; i += 4)
            reinterpret_cast<float4*>(piece)[(m * SUMS + i) * 8 + lane] =
                make_float4(acc[m][i], acc[m][i + 1], acc[m][i + 2], acc[m][i + 3]);
}

// Whether this worker's piece of item `t`, `units` of all its `supers`, is the last to come. Then `acc` becomes the
// sum of all pieces, slice by slice and in the order of the workers.
SP_DEVICE bool gather(Sums& acc, const Division& work, const Item& item, int t, int worker, int units, int supers,
                      f32* partials, u32* arrived, int warp, int lane) {
    const i64 places = work.items + work.workers;
    const auto piece = [&](int slice, int v) { return partials + ((slice * places + t + v) * 4 + warp) * PIECE; };
    store_piece(piece(blockIdx.y, worker), acc, lane);
    // Lane i knows who has slice i.
    const int stages = supers * (lane + 1) / gridDim.y - supers * lane / gridDim.y;
    const int firsts = stages ? work.worker_of(item, 0, stages) : 0;
    const int lasts = stages ? work.worker_of(item, stages - 1, stages) : 0;
    __syncwarp();
    u32* const count = arrived + 4 * t + warp;
    u32 before = 0;
    if (lane == 0)
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(units) : "memory");
    if (__shfl_sync(0xffffffffu, before, 0) + units < supers) return false;
    if (lane == 0) *count = 0;  // for the next launch
#pragma unroll
    for (int m = 0; m < SETS; ++m)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) acc[m][i] = 0;
    constexpr int EACH = SETS * SUMS / 4, BATCH = 16 / EACH;  // pieces under way at a time
    int slice = 0, v = __shfl_sync(0xffffffffu, firsts, 0), last = __shfl_sync(0xffffffffu, lasts, 0);
    while (slice < gridDim.y) {
        float4 part[BATCH][EACH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const bool valid = slice < gridDim.y;
            const float4* from = reinterpret_cast<const float4*>(piece(slice, v));
#pragma unroll
            for (int i = 0; i < EACH; ++i)  // past the L1 cache, which may hold what was there before
                part[b][i] = valid ? __ldcg(from + i * 32 + lane) : make_float4(0, 0, 0, 0);
            if (++v <= last) continue;
            ++slice;
            v = __shfl_sync(0xffffffffu, firsts, slice & 31), last = __shfl_sync(0xffffffffu, lasts, slice & 31);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                f32* const to = acc[i / (SUMS / 4)] + i % (SUMS / 4) * 4;
                to[0] += part[b][i].x, to[1] += part[b][i].y, to[2] += part[b][i].z, to[3] += part[b][i].w;
            }
    }
    return true;
}

SP_DEVICE f32 silu(f32 v) { return v / (1 + __expf(-v)); }

// `row`: of the weight, the first of this warp's 16. acc[4 j + i]: row g + 8 (i / 2), token 8 j + 2 c + i % 2.
SP_DEVICE void write(const Weight& w, const Sums& acc, u8* tiles, int row, int tokens, int lane) {
    constexpr f32 unscale = 1 / INPUT_SCALE;
    row += lane / 4;
    if (EPILOGUE == 2 && tiles) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            if (i & 2) continue;
            const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
            u32 pair = 0;
            f32 x[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) x[r] = tile_value(silu(acc[0][i + 2 * r] * unscale) * (acc[1][i + 2 * r] * unscale));
            pair = pack_f16(x[0], x[1]);
            f32 sum = low_f16(pair) + high_f16(pair);
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
            sum += __shfl_xor_sync(0xffffffffu, sum, 8);
            sum += __shfl_xor_sync(0xffffffffu, sum, 16);
            if (token >= tokens) continue;
            *reinterpret_cast<u16*>(tiles + tile_place(TOKENS, token, row)) = u16(pair);
            *reinterpret_cast<u16*>(tiles + tile_place(TOKENS, token, row + 8)) = u16(pair >> 16);
            if (lane < 4) store_tile_sum(tiles, w.rows, TOKENS, token, row, sum);
        }
        return;
    }
    f32 old[SUMS];
    if constexpr (EPILOGUE == 1) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, at = row + i / 2 % 2 * 8;
            old[i] = token < tokens && at < w.rows ? __ldcg(w.z + i64(token) * w.rows + at) : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, at = row + i / 2 % 2 * 8;
        if (token >= tokens || at >= w.rows) continue;
        const i64 to = i64(token) * w.rows + at;
        const f32 value = acc[0][i] * unscale;
        if (EPILOGUE == 2)
            w.y[to] = bf16_from(silu(value) * (acc[SETS - 1][i] * unscale));
        else if (EPILOGUE == 1)
            w.z[to] = old[i] + value;
        else if (w.z)
            w.z[to] = value;
        else
            w.y[to] = bf16_from(value);
    }
}
