// The end of an item of gemm_few_sm90.cu, for each warp on its own: the workers' sums meet, and results are written.
#pragma once
#include "few_sm90_fetch.cuh"
#include "few_sm90_products.cuh"
#include "input_tiles.cuh"

typedef f32 Sums[SETS][SUMS];

// Inputs of the next product, if this one makes them: tiles, and where that one has yet to norm them the weight of the
// norm and squares as find_scales takes them.
struct Next {
    u8* tiles;
    const f32* norm;
    f32* squares;
};

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
    constexpr int EACH = SETS * SUMS / 4, BATCH = EACH < 8 ? 16 / EACH : 1;  // pieces under way at a time
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

// Writes 16 rows from `row` on of 8 tokens from `first` on as inputs of the next product; value[i]: as acc[i] of `write`.
SP_DEVICE void write_tile(u8* tiles, int rows, int row, int first, int tokens, const f32 (&value)[4], int lane) {
    u32 pair[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                     : "=r"(pair[r])
                     : "r"(pack_f16(tile_value(value[2 * r]), tile_value(value[2 * r + 1]))));
    // Now a lane has rows 2 (lane % 4) and the next, and those 8 further on, of token lane / 4.
    f32 sum = (low_f16(pair[0]) + high_f16(pair[0])) + (low_f16(pair[1]) + high_f16(pair[1]));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int token = first + lane / 4;
    if (token >= tokens) return;
    const i64 place = tile_place(TOKENS, token, row + lane % 4 * 2);
    *reinterpret_cast<u32*>(tiles + place) = pair[0];
    *reinterpret_cast<u32*>(tiles + (place ^ 16)) = pair[1];
    if (lane % 4 == 0) store_tile_sum(tiles, rows, TOKENS, token, row, sum);
}

// Writes the sums of the squares of 16 rows of 8 tokens; value[i] as above, `squares`: of token `first`.
SP_DEVICE void write_squares(f32* squares, int rows, int left, const f32 (&value)[4], int lane) {
    const bool odd = lane / 4 % 2;
    const f32 even_sum = value[0] * value[0] + value[2] * value[2], odd_sum = value[1] * value[1] + value[3] * value[3];
    f32 sum = (odd ? odd_sum : even_sum) + __shfl_xor_sync(0xffffffffu, odd ? even_sum : odd_sum, 4);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    const int token = lane % 4 * 2 + odd;
    if (lane < 8 && token < left) squares[token * (rows / 16)] = sum;
}

// What `write` adds to and multiplies by, asked for while sums are still under way.
struct Asked {
    f32 old[SUMS], norm[2];
};

// `row`: of the weight, the first of this warp's 16.
SP_DEVICE Asked ask(const Weight& w, const Next& next, int row, int tokens, int lane) {
    Asked asked = {};
    if constexpr (EPILOGUE == 1) {
        row += lane / 4;
        if (next.tiles) asked.norm[0] = __ldg(next.norm + row), asked.norm[1] = __ldg(next.norm + row + 8);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, at = row + i / 2 % 2 * 8;
            if (token < tokens && at < w.rows) asked.old[i] = __ldcg(w.z + i64(token) * w.rows + at);
        }
    }
    return asked;
}

// acc[4 j + i]: row g + 8 (i / 2), token 8 j + 2 c + i % 2. What is given is used up: a loop is short code, which a warp
// runs once or twice and so must mostly wait for.
SP_DEVICE void write(const Weight& w, Sums& acc, Asked& asked, const Next& next, const Layout& block, int row, int tokens,
                     int lane) {
    const int mine = row + lane / 4;
    if constexpr (EPILOGUE != 1) barrier_wait(block.scaled, 0);
#pragma unroll 1
    for (int first = 0; first < TOKENS; first += 8) {
        f32 value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane % 4 * 2 + i % 2, at = mine + i / 2 * 8;
            const f32 scale = EPILOGUE == 1 ? 1 / INPUT_SCALE : block.scales[token];
            value[i] = acc[0][i] * scale;
            if constexpr (EPILOGUE == 1) value[i] += asked.old[i];
            if constexpr (EPILOGUE == 2) value[i] = silu(value[i]) * (acc[1][i] * scale);
            if (token >= tokens || at >= w.rows || (EPILOGUE == 2 && next.tiles)) continue;
            const i64 to = i64(token) * w.rows + at;
            if (EPILOGUE == 1 || (EPILOGUE == 0 && w.z))
                w.z[to] = value[i];
            else
                w.y[to] = bf16_from(value[i]);
        }
        if (EPILOGUE != 0 && next.tiles) {
            if constexpr (EPILOGUE == 1) {
                write_squares(next.squares + first * (w.rows / 16) + row / 16, w.rows, tokens - first, value, lane);
#pragma unroll
                for (int i = 0; i < 4; ++i) value[i] *= asked.norm[i / 2];
            }
            write_tile(next.tiles, w.rows, row, first, tokens, value, lane);
        }
#pragma unroll
        for (int i = 0; i + 4 < SUMS; ++i) {
#pragma unroll
            for (int m = 0; m < SETS; ++m) acc[m][i] = acc[m][i + 4];
            if constexpr (EPILOGUE == 1) asked.old[i] = asked.old[i + 4];
        }
    }
}

constexpr int HELPERS = 3;  // warps that neither multiply nor fetch

// What the results of each token are multiplied by, found by HELPERS warps, this one `part` of them: the tiles' scale and, if
// x has yet to be normed, 1 / sqrt(mean(x^2) + eps). `squares`: sums of 16 x^2 each, (tokens, k / 16), or null.
SP_DEVICE void find_scales(const f32* squares, f32 eps, int k, int tokens, int part, const Layout& at, int lane) {
    constexpr int LANES = 4;  // for a token
    for (int token = part * (32 / LANES) + lane / LANES; token < TOKENS; token += HELPERS * (32 / LANES)) {
        f32 sum = 0;
        if (squares && token < tokens) {
            const float4* const from = reinterpret_cast<const float4*>(squares + i64(token) * (k / 16));
#pragma unroll 4
            for (int i = lane % LANES; i < k / 64; i += LANES) {
                const float4 v = __ldcg(from + i);
                sum += (v.x + v.y) + (v.z + v.w);
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        at.scales[token] = squares ? rsqrtf(sum / k + eps) / INPUT_SCALE : 1 / INPUT_SCALE;
    }
    barrier_arrive_warp(at.scaled, lane);
}

// Words in shared memory that warps of a block give each other. racecheck takes flags for races, but not atomics.
SP_DEVICE void give_word(u32* place, u32 word) {
#ifdef SP_DEBUG
    __threadfence();
    atomicExch(place, word);
#else
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(place)), "r"(word) : "memory");
#endif
}

SP_DEVICE u32 look_at_word(u32* place) {
#ifdef SP_DEBUG
    const u32 word = atomicOr(place, 0);
    __threadfence();
#else
    u32 word;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(place)) : "memory");
#endif
    return word;
}

// A task is to report the piece of a strip and, if no other is missing, to add them up and write the result. `units`: of
// the piece.
SP_DEVICE void give_task(const Layout& at, int t, int units, int strip, int lane) {
    __syncwarp();
    if (lane > 0) return;
    const u32 task = 1u << 31 | t << 12 | units << 2 | strip;
    give_word(at.tasks + atomicAdd(at.queue + 1, 1), task);
}

// Tasks of this block until there will be no more: what a warp does that has nothing else to do.
SP_DEVICE void do_tasks(const Weights& weights, const Division& work, int supers, int tokens, f32* partials, u32* arrived,
                        const Next& next, const Layout& at, int lane) {
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
        while ((task = look_at_word(at.tasks + index)) == 0) __nanosleep(40);
        const int t = task << 1 >> 13, strip = task & 3;
        u32* const count = arrived + 4 * t + strip;
        u32 come = 0;
        if (lane == 0) come = report(count, task >> 2 & 1023);
        if (__shfl_sync(0xffffffffu, come, 0) < supers) continue;
        if (lane == 0) *count = 0;  // for the next launch
        const Item item = item_at(weights, t);
        const Weight w = pick(weights, item.which);
        const int row = item.tile * TILE_ROWS + strip * 16;
        Asked asked = ask(w, next, row, tokens, lane);
        Sums acc;
        gather(acc, work, item, t, supers, partials, strip, lane);
        write(w, acc, asked, next, at, row, tokens, lane);
    }
}
