// y_i[t, o] = sum_k h[t, k] W_i[o, k] for a few tokens t and up to four packed weights: the matrix products of
// decoding.
//
//   h    NORM 0: x, bf16 (tokens, K); NORM 1: x / sqrt(mean(x^2) + eps) * norm, both float32, (tokens, K) and (K);
//        the factor of a token is applied to its results, so that the inputs are rounded to bf16 once
//   W_i  (rows_i, K) in fragment order, 256-byte aligned, of ggml type kind_i; FORMATS has bit kind_i set
//   y_i  (tokens, rows_i): EPILOGUE STORE: bf16 to y_i or float32 to z_i, whichever is given; ADD: to float32 z_0 in
//        place; SWIGLU: bf16 silu(y_0) * y_1 to y_0
//   grid one block of 32 * WARPS * GROUPS threads a multiprocessor, at most one for GROUPS strips
//
// Bound by memory: each weight byte is read once, 16 bytes a lane, through a ring of STAGES slots a warp (cp.async)
// that is filled before the inputs are even read and never waits for the end of a strip. Strips (16 rows of a weight)
// are dealt to groups of WARPS warps, the stages of a group's strips in turn to its warps. At the end of a strip the
// warps' sums meet in shared memory and the last to come adds them up, always in the same order: results do not depend
// on timing. Launched by PDL, see sp/kernels/pdl.py: one slot is filled while the kernel before still runs, the others
// only when the inputs are here, which would wait behind them.
//
// With SPLIT = 2 two blocks, a cluster, share each strip, K inputs each: few long strips come out even on twice as many
// blocks. For one token, ADD and formats in stages of 256 inputs; the grid is even.
//
// Defines: K (inputs of a block), SPLIT, TOKENS (rows of x held; a multiple of 8, or 1, 2, 4), FORMATS, NORM, EPILOGUE,
// WARPS, GROUPS, STAGES. Ideas: weight layout and group-wise scaling after Marlin (Frantar et al., 2024); ring of
// private slots: ours. Arches: 80+.
#include "activations.cuh"
#include "pdl.cuh"
#include "gemv_input.cuh"
#include "gemv_pair.cuh"
#include "gemv_walk.cuh"

// compute-sanitizer's racecheck does not follow counters: for it the warps of a group wait for each other.
SP_DEVICE void meet_in_the_open(int group) {
#ifdef SP_DEBUG
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * WARPS) : "memory");
#endif
}

extern "C" __global__ void SP_PAIRED __launch_bounds__(32 * ALL_WARPS, 1)
    gemv(const u16* x, const f32* wide, const f32* norm, f32 eps, i32 tokens, i32 count,
         SP_WEIGHT_PARAMETERS) {
    const Weights weights = SP_WEIGHTS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int group = warp / WARPS, member = warp % WARPS, half = half_of_pair();
    const int unit = group * (gridDim.x / SPLIT) + blockIdx.x / SPLIT, step = GROUPS * (gridDim.x / SPLIT);

    pdl_launch_dependents();
    if constexpr (NORM && !EAGER_NORM) {  // from memory, so ahead of the ring's many requests
        for (int line = threadIdx.x; line < K / 32; line += 32 * ALL_WARPS)
            prefetch_l2(norm + line * 32);
    }
    Fetch fetch = {};
    fetch.at.start(weights, count, unit, step, member);
    if (fetch.at.valid()) fetch.enter(weights, lane);
    fetch.settle(weights, count, lane);
    u8* ring = shared + RING_AT + warp * (STAGES * SLOT);
    const u32 ring_address = shared_address(ring);
    const auto fill = [&](int from, int to) {
#pragma unroll 1
        for (int i = from; i < to; ++i) fetch.next(weights, count, ring_address + i * SLOT, lane);
    };
    float4 scale[2];
    fill(0, FIRST);
    if constexpr (EAGER_NORM) load_norm(scale, norm, warp, lane);

    Mail* mails = reinterpret_cast<Mail*>(shared + MAIL_AT);
    if (threadIdx.x < BUFFERS * GROUPS) {
        reinterpret_cast<Meeting*>(shared + MEETING_AT)[threadIdx.x] = {0, 0};
        if constexpr (SPLIT > 1) mails[threadIdx.x].filled = mails[threadIdx.x].taken = 0;
    }
    arrive_at_pair();
    pdl_wait();
    if constexpr (ONE) load_one(x + half * K, wide, norm, scale, warp, lane);
    if constexpr (MANY) load_inputs(x, wide, norm, tokens, warp, lane);
    fill(FIRST, STAGES - 1);
    __syncthreads();
    wait_for_pair();
    f32* factors = reinterpret_cast<f32*>(shared + FACTOR_AT);
    f32 only = 1;  // the factor of a lone token, which every warp works out for itself
    if constexpr (NORM) {
        const f32* squares = reinterpret_cast<const f32*>(shared + SQUARES_AT);
        for (int token = TOKENS > 1 ? warp : 0; token < TOKENS; token += ALL_WARPS) {
            f32 sum = 0;
            for (int i = lane; i < CHUNKS; i += 32) sum += squares[token * CHUNKS + i];
            only = 1 / sqrtf(warp_sum(sum) / K + eps);
            if (TOKENS > 1 && lane == 0) factors[token] = only;
        }
        if constexpr (TOKENS > 1) __syncthreads();
    }
    const Inputs in = inputs_of<TOKENS, PITCH>(shared + X_AT, shared + SUMS32_AT, shared + SUMS16_AT, lane);

    OneInputs one = {shared_address(shared + ONE_AT), {}, reinterpret_cast<const f32*>(shared + ONE_SUMS32_AT),
                     reinterpret_cast<const f32*>(shared + ONE_SUMS16_AT),
                     reinterpret_cast<const f32*>(shared + ONE_FACTORS_AT)};

    constexpr int OUTPUTS = (TOKENS * 16 + 31) / 32;  // of a lane of the warp that finishes a strip
    Meeting* meetings = reinterpret_cast<Meeting*>(shared + MEETING_AT) + group * BUFFERS;
    f32* partials = reinterpret_cast<f32*>(shared + PARTIAL_AT) + group * (BUFFERS * PARTS * WARPS * PARTIAL);
    Walk compute;
    compute.start(weights, count, unit, step, member);
    int slot = 0, strips = 0;
    while (compute.valid()) {
        const Weight w = pick(weights, compute.which);
        const int row = compute.strip * 16;
        f32 before[OUTPUTS];
        if (EPILOGUE == EPILOGUE_ADD && half == 0) {
#pragma unroll
            for (int i = 0; i < OUTPUTS; ++i) {
                const int token = (lane + i * 32) / 16, o = row + lane % 16;
                before[i] = token < tokens && o < w.rows ? w.z[i64(token) * w.rows + o] : 0;
            }
        }
        f32 acc[NT][4] = {}, shares[2] = {};
        if constexpr (ONE) one.aim(is_halved(w.kind), lane);
        while (compute.index < compute.stages) {
            cp_async_wait<STAGES - 2>();
            __syncwarp();
            fetch.next(weights, count, ring_address + (slot == 0 ? STAGES - 1 : slot - 1) * SLOT, lane);
            const u8* here = ring + slot * SLOT;
#define SP_DO(F)                                                                      \
    if constexpr (has<F>)                                                             \
        if (w.kind == F) {                                                            \
            if constexpr (ONE && WHOLE<F>)                                            \
                multiply_one<Stage<F>>(shares, here, one, compute.index, lane);       \
            else                                                                      \
                multiply_stage<Stage<F>, TOKENS, PITCH>(acc, here, in, compute.index, lane); \
        }
            SP_FOR_FORMAT(SP_DO)
#undef SP_DO
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            compute.index += WARPS;
        }
        if constexpr (ONE) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                shares[r] += __shfl_xor_sync(0xffffffffu, shares[r], 1);
                acc[0][2 * r] += shares[r] + __shfl_xor_sync(0xffffffffu, shares[r], 2);
            }
        }
        // The warps' sums meet; none waits for another, the last to come adds them up, always in the same order.
        const int buffer = strips % BUFFERS, part = EPILOGUE == EPILOGUE_SWIGLU ? compute.which : 0;
        f32* sums = partials + buffer * (PARTS * WARPS * PARTIAL);
        Meeting* meeting = meetings + buffer;
        meet_in_the_open(group);
        while (*static_cast<volatile int*>(&meeting->over) < strips / BUFFERS) {}  // the strip BUFFERS before is done
        __syncwarp();
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = nt * 8 + 2 * c + i % 2;
                if (TOKENS % 8 == 0 || token < TOKENS)
                    sums[(part * WARPS + member) * PARTIAL + token * 20 + g + i / 2 * 8] = acc[nt][i];
            }
        meet_in_the_open(group);
        if (part == PARTS - 1) {
            __threadfence_block();
            __syncwarp();
            int arrived = 0;
            if (lane == 0) arrived = atomicAdd(&meeting->arrived, 1) + 1;
            if (__shfl_sync(0xffffffffu, arrived, 0) == WARPS) {
                __threadfence_block();
                f32 own = 0;
#pragma unroll
                for (int i = 0; i < OUTPUTS; ++i) {
                    const int token = (lane + i * 32) / 16, o = row + lane % 16;
                    if (token >= tokens || o >= w.rows) continue;
                    f32 value[PARTS] = {};
#pragma unroll
                    for (int p = 0; p < PARTS; ++p) {
                        const f32* parts = sums + p * (WARPS * PARTIAL) + token * 20 + lane % 16;
#pragma unroll
                        for (int m = 0; m < WARPS; ++m) value[p] += parts[m * PARTIAL];
                        if constexpr (NORM) value[p] *= TOKENS > 1 ? factors[token] : only;
                    }
                    const i64 at = i64(token) * w.rows + o;
                    if (SPLIT > 1)
                        own = value[0];
                    else if (EPILOGUE == EPILOGUE_SWIGLU)
                        weights.list[0].y[at] = bf16_from(silu_rn(value[0]) * value[PARTS - 1]);
                    else if (EPILOGUE == EPILOGUE_ADD)
                        w.z[at] = before[i] + value[0];
                    else if (w.z)
                        w.z[at] = value[0];
                    else
                        w.y[at] = bf16_from(value[0]);
                }
                if constexpr (SPLIT > 1) {
                    const Mail* mail = mails + group * BUFFERS + buffer;
                    if (half == 1) {
                        post(mail, own, strips / BUFFERS, lane);
                    } else {
                        own += take(mail, strips / BUFFERS, lane);
                        if (lane < 16 && row + lane < w.rows) w.z[row + lane] = before[0] + own;
                    }
                }
                __syncwarp();
                if (lane == 0) {
                    meeting->arrived = 0;
                    __threadfence_block();
                    *static_cast<volatile int*>(&meeting->over) = strips / BUFFERS + 1;
                }
            }
            ++strips;
        }
        compute.next_strip(weights, count);
    }
    cp_async_wait<0>();
}
