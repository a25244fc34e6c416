// The epilogue of an item of gemm_small_m_sm90.cu, 16 rows of 8 tokens at a time, by each warp on its own: adds up the
// sums of the workers and writes the results. It is bound by latency, hence small tasks for many warps.
#pragma once
#include "activations.cuh"
#include "few_sm90_fetch.cuh"
#include "few_sm90_pieces.cuh"
#include "input_tiles.cuh"

// Inputs of the next product, if this one makes them: tiles, and where that one has yet to norm them the weight of the
// norm and squares as find_scales takes them; `before`: squares of what is added to, as far as they are known.
struct Next {
    u8* tiles;
    const f32* norm;
    f32* squares;
    const f32* before;
};

// Writes 16 rows from `row` on of 8 tokens from `first` on as inputs of the next product; value[i]: as sum[0][i] of a Part,
// `inverses`: of the scales of its two tokens.
SP_DEVICE void write_tile(u8* tiles, int rows, int row, int first, int tokens, const f32 (&value)[4], float2 inverses, int lane) {
    u32 pair[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                     : "=r"(pair[r])
                     : "r"(pack_f16(tile_value(value[2 * r], inverses.x), tile_value(value[2 * r + 1], inverses.y))));
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
    f32 old[4], norm[2];
};

// `row`: of the weight, the first of this warp's 16; `first`: of 8 tokens.
SP_DEVICE Asked ask(const Weight& w, const Next& next, int row, int first, int tokens, int lane) {
    Asked asked = {};
    if constexpr (EPILOGUE == EPILOGUE_ADD) {
        row += lane / 4;
        if (next.tiles) asked.norm[0] = __ldg(next.norm + row), asked.norm[1] = __ldg(next.norm + row + 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane % 4 * 2 + i % 2, at = row + i / 2 * 8;
            if (token < tokens && at < w.rows) asked.old[i] = __ldcg(w.z + i64(token) * w.rows + at);
        }
    }
    return asked;
}

SP_DEVICE void write(const Weight& w, const Part& sum, const Asked& asked, const Next& next, const Layout& block, int row,
                     int first, int tokens, int lane) {
    const int mine = row + lane / 4;
    f32 value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int token = first + lane % 4 * 2 + i % 2, at = mine + i / 2 * 8;
        const f32 scale = block.scales[token];
        value[i] = sum[0][i] * scale;
        if constexpr (EPILOGUE == EPILOGUE_ADD) value[i] += asked.old[i];
        if constexpr (EPILOGUE == EPILOGUE_SWIGLU) value[i] = silu(value[i]) * (sum[SETS - 1][i] * scale);
        if (token >= tokens || at >= w.rows || (EPILOGUE == EPILOGUE_SWIGLU && next.tiles)) continue;
        const i64 to = i64(token) * w.rows + at;
        if (EPILOGUE == EPILOGUE_ADD || (EPILOGUE == EPILOGUE_STORE && w.z))
            w.z[to] = value[i];
        else
            w.y[to] = bf16_from(value[i]);
    }
    if (EPILOGUE != EPILOGUE_STORE && next.tiles) {
        if constexpr (EPILOGUE == EPILOGUE_ADD) {
            write_squares(next.squares + first * (w.rows / 16) + row / 16, w.rows, tokens - first, value, lane);
#pragma unroll
            for (int i = 0; i < 4; ++i) value[i] *= asked.norm[i / 2];
        }
        const float2 inverses = *reinterpret_cast<const float2*>(block.inverses + first + lane % 4 * 2);
        write_tile(next.tiles, w.rows, row, first, tokens, value, inverses, lane);
    }
}

constexpr int HELPERS = GROUPS;  // warps that neither multiply nor fetch once the ring is full

constexpr int SQUARE_LANES = 4;  // for a token

// The mean of the squares of a token; `squares`: sums of 16 of them each, (tokens, width / 16).
SP_DEVICE f32 mean_square(const f32* squares, int width, int token, int lane) {
    f32 sum = 0;
    const float4* const from = reinterpret_cast<const float4*>(squares + i64(token) * (width / 16));
#pragma unroll 4
    for (int i = lane % SQUARE_LANES; i < width / 64; i += SQUARE_LANES) {
        const float4 v = __ldcg(from + i);
        sum += (v.x + v.y) + (v.z + v.w);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum / width;
}

// Found by HELPERS warps, this one `part` of them: what the results of each token are multiplied by, if x are tiles of an
// earlier product, of `given` scales: those and, if x has yet to be normed, 1 / sqrt(mean(x^2) + eps); and the scales of the
// tiles that are made here, which the first block stores. A stream that is added to is taken to keep about its size.
SP_DEVICE void find_scales(const f32* squares, f32 eps, int k, const f32* given, const Next& next, int rows, int tokens,
                           int part, const Layout& at, int lane) {
    constexpr f32 LEAST_SQUARE = 1e-6f;
    for (int token = part * (32 / SQUARE_LANES) + lane / SQUARE_LANES; token < TOKENS;
         token += HELPERS * (32 / SQUARE_LANES)) {
        const int real = min(token, tokens - 1);  // all lanes of a warp add up together
        f32 scale = given ? __ldcg(given + real) : 0;
        if (EPILOGUE != EPILOGUE_ADD && squares) scale *= rsqrtf(mean_square(squares, k, real, lane) + eps);
        if (given) at.scales[token] = scale;
        if (EPILOGUE == EPILOGUE_STORE || !next.tiles) continue;
        f32 unit = UNIT_SCALE;
        if (EPILOGUE == EPILOGUE_ADD && next.before) unit *= power_below(sqrtf(mean_square(next.before, rows, real, lane) + LEAST_SQUARE));
        at.inverses[token] = 1 / unit;
        if (blockIdx.x == 0 && blockIdx.y == 0) tile_scales(next.tiles, rows, TOKENS)[token] = unit;
    }
}

// Words in shared memory that warps of a block give each other. racecheck takes flags for races, but not atomics.
SP_DEVICE void give_word(u32* place, u32 word) {
#ifdef SP_DEBUG
    __threadfence();
    atomicExch(place, word);
#else
    asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(shared_address(place)), "r"(word) : "memory");
#endif
}

SP_DEVICE u32 look_at_word(u32* place) {
#ifdef SP_DEBUG
    const u32 word = atomicOr(place, 0);
    __threadfence();
#else
    u32 word;
    asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(place)) : "memory");
#endif
    return word;
}

// A task is to add up WIDE parts of a strip of an item and to write the result. Of the STRIPS * STRIP_TASKS tasks of item t
// this worker gives itself each `step`-th from `first` on.
struct Share {
    int first, step;

    SP_DEVICE int count() const { return (STRIPS * STRIP_TASKS - first + step - 1) / step; }
};

// In one of an item's slices its tasks go to the worker that has its first stage there: that one ends with the item, and so is
// among the last to have a piece of it. Without slices all workers that have a piece share them, for there are fewer
// items than blocks; whole items that are only stored have none.
SP_DEVICE Share share_of(const Division& work, const Item& item, int t, int worker, bool has_first) {
    if constexpr (STREAMED) {
        const int who = work.worker_of(item, 0, work.stages), until = work.worker_of(item, work.stages - 1, work.stages);
        return {EPILOGUE == EPILOGUE_STORE && who == until ? STRIPS * STRIP_TASKS : worker - who, until - who + 1};
    }
    return {has_first && t % gridDim.y == blockIdx.y ? 0 : STRIPS * STRIP_TASKS, 1};
}

SP_DEVICE void give_tasks(const Layout& at, int t, const Share& share, int strip, int lane) {
    const int from = strip * STRIP_TASKS + lane - share.first;
    if (lane < STRIP_TASKS && from >= 0 && from % share.step == 0)
        give_word(at.tasks + atomicAdd(at.queue + 1, 1), 1u << 31 | t << 7 | strip << 3 | lane);
}

// Writes the results of 16 rows that no other worker has a piece of.
SP_DEVICE void write_whole(const Weight& w, const Sums& acc, const Next& next, const Layout& at, int row, int tokens, int lane) {
    barrier_wait(at.prepared, 0);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        Part sum;
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[0][i] = acc[4 * part + i];
        write(w, sum, Asked{}, next, at, row, 8 * part, tokens, lane);
    }
}

// Finds how many tasks this block will have, by one warp.
SP_DEVICE void count_tasks(const Weights& weights, const Division& work, const Layout& at, int lane) {
    u32 tasks = 0;
    const int one = lane % 4;
    if (one < BLOCK_WORKERS) {
        const Range range = range_of(weights, work, one);
        for (int t = range.begin / work.stages + lane / 4; t * work.stages < range.end; t += 8)
            tasks += share_of(work, item_at(weights, t), t, blockIdx.x * BLOCK_WORKERS + one, t * work.stages >= range.begin)
                         .count();
    }
    tasks = __reduce_add_sync(0xffffffffu, tasks);
    if (lane == 0) *at.all_tasks = tasks;
}

// Tasks of this block until there will be no more: what a warp does that has nothing else to do.
SP_DEVICE void do_tasks(const Weights& weights, const Division& work, int supers, int tokens, f32* partials,
                        const Next& next, const Layout& at, int lane) {
    barrier_wait(at.prepared, 0);
    const u32 tasks = *at.all_tasks;
    for (;;) {
        u32 index = lane == 0 ? atomicAdd(at.queue, 1) : 0;
        index = __shfl_sync(0xffffffffu, index, 0);
        if (index >= tasks) return;
        u32 task;
        while ((task = look_at_word(at.tasks + index)) == 0) __nanosleep(40);
        const int t = task << 1 >> 8, strip = task >> 3 & 15, part = (task & 7) * WIDE;
        const Item item = item_at(weights, t);
        const Weight w = pick(weights, item.which);
        if (item.tile + strip / 4 >= tiles_of(w)) continue;
        const int row = item.tile * TILE_ROWS + strip * 16;
        Asked asked[WIDE];
#pragma unroll
        for (int i = 0; i < WIDE; ++i) asked[i] = ask(w, next, row, 8 * (part + i), tokens, lane);
        Part sum[WIDE];
        gather(sum, work, item, t, supers, partials, strip, part, lane);
#pragma unroll
        for (int i = 0; i < WIDE; ++i)
            if (part + i < PARTS) write(w, sum[i], asked[i], next, at, row, 8 * (part + i), tokens, lane);
    }
}
