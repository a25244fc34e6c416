// The end of an item of gemm_few_sm90.cu, for each warp on its own: the workers' sums meet, and results are written.
#pragma once
#include "few_sm90_fetch.cuh"
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

// Where worker v's piece of item t lies, for strip `strip` of 16 rows.
SP_DEVICE f32* piece_of(f32* partials, const Division& work, int slice, int t, int v, int strip) {
    return partials + ((i64(slice) * (work.items + work.workers) + t + v) * 4 + strip) * PIECE;
}

// Reports `units` of an item's strip; returns how many have come, these included. Pieces written before, also those of
// which the calling thread has heard from others, are seen by whom finds them all come.
SP_DEVICE u32 report(u32* count, u32 units) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(units) : "memory");
    return before + units;
}

// acc = the sum of all pieces of a strip of item t, slice by slice and in the order of the workers.
SP_DEVICE void gather(Sums& acc, const Division& work, const Item& item, int t, int supers, f32* partials, int strip,
                      int lane) {
    // Lane i knows who has slice i.
    const int stages = supers * (lane + 1) / gridDim.y - supers * lane / gridDim.y;
    const int firsts = stages ? work.worker_of(item, 0, stages) : 0;
    const int lasts = stages ? work.worker_of(item, stages - 1, stages) : 0;
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
            const float4* from = reinterpret_cast<const float4*>(piece_of(partials, work, slice, t, v, strip));
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

// A task is to report the piece of a strip and, if no other is missing, to add them up and write the result. `units`: of
// the piece.
SP_DEVICE void give_task(const Layout& at, int t, int units, int strip, int lane) {
    __syncwarp();
    if (lane > 0) return;
    const u32 task = 1u << 31 | t << 12 | units << 2 | strip;
    u32* const place = at.tasks + atomicAdd(at.queue + 1, 1);
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(place)), "r"(task) : "memory");
}

// Tasks of this block until there will be no more: what a warp does that has nothing else to do.
SP_DEVICE void do_tasks(const Weights& weights, const Division& work, int supers, int tokens, f32* partials, u32* arrived,
                        u8* tiles, const Layout& at, int lane) {
    u32 tasks = 0;  // pieces of worker `lane`, then four tasks for each piece of them all
    if (lane < GROUPS) {
        const int worker = blockIdx.x * GROUPS + lane;
        const int from = work.start(weights, worker), to = work.start(weights, worker + 1);
        if (from < to) tasks = 4 * ((to - 1) / work.stages - from / work.stages + 1);
    }
    tasks = __reduce_add_sync(0xffffffffu, tasks);
    for (;;) {
        u32 index = lane == 0 ? atomicAdd(at.queue, 1) : 0;
        index = __shfl_sync(0xffffffffu, index, 0);
        if (index >= tasks) return;
        u32 task;
        for (;;) {
            asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(task) : "r"(shared_address(at.tasks + index)) : "memory");
            if (task) break;
            __nanosleep(40);
        }
        const int t = task << 1 >> 13, strip = task & 3;
        u32* const count = arrived + 4 * t + strip;
        u32 come = 0;
        if (lane == 0) come = report(count, task >> 2 & 1023);
        if (__shfl_sync(0xffffffffu, come, 0) < supers) continue;
        if (lane == 0) *count = 0;  // for the next launch
        const Item item = item_at(weights, t);
        Sums acc;
        gather(acc, work, item, t, supers, partials, strip, lane);
        write(pick(weights, item.which), acc, tiles, item.tile * TILE_ROWS + strip * 16, tokens, lane);
    }
}
