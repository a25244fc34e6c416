// y_i[t, o] = sum_k h[t, k] W_i[o, k] for a few tokens t and up to four packed weights: the matrix products of decoding.
//
//   h    NORM 0: x, bf16 (tokens, K); NORM 1: x / sqrt(mean(x^2) + eps) * norm, x float32 (tokens, K), norm float32 (K).
//        The factor of a token is applied to its results, so that the inputs are rounded to bf16 once
//   W_i  (rows_i, K) in fragment order, 256-byte aligned, of ggml type kind_i; FORMATS has bit kind_i set
//   y_i  (tokens, rows_i): EPILOGUE 0 stores bf16 to y_i or float32 to z_i, whichever is given; 1 adds to float32 z_0 in
//        place; 2 stores bf16 silu(y_0) * y_1 to y_0
//   grid one block of 32 * WARPS * GROUPS threads a multiprocessor, at most one for GROUPS strips
//
// Bound by memory: each weight byte is read once, 16 bytes a lane, through a ring of STAGES slots a warp (cp.async) that is
// filled before the inputs are even read and never waits for the end of a strip. Strips (16 rows of a weight) are dealt to
// groups of WARPS warps, the stages of a group's strips in turn to its warps. At the end of a strip the warps' sums meet in
// shared memory and one warp adds them up, always in the same order: results do not depend on timing.
// Defines: K, TOKENS (rows of x held; a multiple of 8, or 1, 2, 4), FORMATS, NORM, EPILOGUE, WARPS, GROUPS, STAGES.
// Ideas: weight layout and group-wise scaling after Marlin (Frantar et al., 2024); ring of private slots: ours.
// Arches: 80+.
#include "strip_input.cuh"
#include "strip_one.cuh"

template <int F>
constexpr bool has = (FORMATS >> F) & 1;
template <int A, int B>
constexpr int most = A > B ? A : B;
template <int F>
constexpr int slot_of = has<F> ? Stage<F>::bytes : 0;

constexpr bool SUPER = has<Q4_K> || has<Q5_K> || has<Q6_K>, OTHER = has<Q8_0> || has<Q4_0> || has<BF16> || has<F16>;
constexpr bool ONE = TOKENS == 1 && SUPER, MANY = TOKENS > 1 || OTHER;  // which forms of the inputs are needed
constexpr bool WITH32 = TOKENS > 1 && (has<Q4_K> || has<Q5_K>), WITH16 = TOKENS > 1 && has<Q6_K>;
constexpr int NT = (TOKENS + 7) / 8, ALL_WARPS = WARPS * GROUPS, CHUNKS = (K + 127) / 128;
constexpr int PITCH = 2 * K + (TOKENS > 1 ? 64 : 0);
constexpr int K_SLOT = most<most<slot_of<Q4_K>, slot_of<Q5_K>>, slot_of<Q6_K>>;
constexpr int SLOT = most<most<K_SLOT, slot_of<Q8_0>>, most<slot_of<Q4_0>, most<slot_of<BF16>, slot_of<F16>>>>;
// Shared memory, in bytes; sp/kernels/declared/gemv.py counts the same.
constexpr int RING_AT = 0;
constexpr int X_AT = RING_AT + ALL_WARPS * STAGES * SLOT;
constexpr int SUMS32_AT = X_AT + (MANY ? TOKENS * PITCH : 0);
constexpr int SUMS16_AT = SUMS32_AT + (WITH32 ? K / 256 * TOKENS * 32 : 0);
constexpr int ONE_AT = SUMS16_AT + (WITH16 ? K / 256 * TOKENS * 64 : 0);
constexpr int ONE_SUMS32_AT = ONE_AT + (ONE ? K / 256 * ONE_BYTES : 0);
constexpr int ONE_SUMS16_AT = ONE_SUMS32_AT + (ONE ? K / 256 * 32 : 0);
constexpr int ONE_FACTORS_AT = ONE_SUMS16_AT + (ONE ? K / 256 * 64 : 0);
constexpr int PARTIAL_AT = ONE_FACTORS_AT + (ONE ? (K / 256 + 3) / 4 * 16 : 0);
constexpr int PARTIAL = TOKENS * 20;  // floats of a warp: [token][16 rows], 20 apart so that a warp writes to 32 banks
constexpr int SQUARES_AT = PARTIAL_AT + 2 * ALL_WARPS * PARTIAL * 4;
constexpr int FACTOR_AT = SQUARES_AT + (NORM ? TOKENS * CHUNKS * 4 : 0);  // CHUNKS: of 128 inputs

extern __shared__ __align__(128) u8 shared[];

struct Weight {
    const u8* data;
    i32 kind, rows;
    u16* y;
    f32* z;
};

struct Weights {
    Weight list[4];
};

// What `DO` says for the format `kind`, a number known at run time.
#define SP_FOR_FORMAT(DO) DO(Q4_K) DO(Q5_K) DO(Q6_K) DO(Q8_0) DO(Q4_0) DO(BF16) DO(F16)

SP_DEVICE Weight pick(const Weights& weights, int which) {
    Weight w = weights.list[0];
#pragma unroll
    for (int i = 1; i < 4; ++i)
        if (which == i) w = weights.list[i];
    return w;
}

SP_DEVICE int strips_of(const Weight& w) { return (w.rows + 15) / 16; }

// A group's way through its strips: every GRID * GROUPS-th unit (a strip, or the strips of gate and up), stage by stage.
struct Walk {
    int unit, step, total;  // step: units between two of this group
    int which, strip, stages, index;  // the weight and its strip; `index`: the warp's next stage

    SP_DEVICE bool valid() const { return unit < total; }

    SP_DEVICE void locate(const Weights& weights, int count) {
        which = EPILOGUE == 2 ? which : 0, strip = unit;
        if constexpr (EPILOGUE == 0) {
#pragma unroll
            for (int i = 0; i < 3; ++i)
                if (which == i && i + 1 < count && strip >= strips_of(weights.list[i])) strip -= strips_of(weights.list[i]), which = i + 1;
        }
        int kind = weights.list[0].kind;
#pragma unroll
        for (int i = 1; i < 4; ++i) kind = which == i ? weights.list[i].kind : kind;
        stages = kind == Q4_K || kind == Q5_K || kind == Q6_K ? K / 256 : K / 64;
    }

    SP_DEVICE void start(const Weights& weights, int count, int first, int stride, int warp) {
        unit = first, step = stride, index = warp, which = 0;
        total = strips_of(weights.list[0]);
        if constexpr (EPILOGUE == 0) {
#pragma unroll
            for (int i = 1; i < 4; ++i) total += i < count ? strips_of(weights.list[i]) : 0;
        }
        if (valid()) locate(weights, count);
    }

    // Past the end of this strip: what is left of `index` counts from the next one.
    SP_DEVICE void next_strip(const Weights& weights, int count) {
        index -= stages;
        if (EPILOGUE == 2 && which == 0) {
            which = 1;
        } else {
            which = 0;
            unit += step;
        }
        if (valid()) locate(weights, count);
    }
};

// The copies of a warp: STAGES - 1 stages ahead of its products.
struct Fetch {
    Walk at;
    int kind;
    Planes planes;

    SP_DEVICE void enter(const Weights& weights, int lane) {
        const Weight w = pick(weights, at.which);
        kind = w.kind;
        const i64 row_tiles = (w.rows + 63) / 64;
#define SP_DO(F)                                                                                              \
    if constexpr (has<F>)                                                                                     \
        if (kind == F) planes = strip_of<F>(planes_of<F>(w.data, row_tiles, K / 64), at.strip, K / 64, lane);
        SP_FOR_FORMAT(SP_DO)
#undef SP_DO
    }

    // To the strip that this warp's next stage lies in.
    SP_DEVICE void settle(const Weights& weights, int count, int lane) {
        while (at.valid() && at.index >= at.stages) {
            at.next_strip(weights, count);
            if (at.valid()) enter(weights, lane);
        }
    }

    SP_DEVICE void next(const Weights& weights, int count, u32 slot, int lane) {
        if (at.valid()) {
#define SP_DO(F)          \
    if constexpr (has<F>) \
        if (kind == F) fetch_stage<F>(slot, planes, at.index, lane);
            SP_FOR_FORMAT(SP_DO)
#undef SP_DO
            at.index += WARPS;
            settle(weights, count, lane);
        }
        cp_async_commit();
    }
};

// The only token to shared memory as 16-bit integers, a super-block a warp at a time.
SP_DEVICE void load_one(const u16* x, const f32* wide, const f32* norm, int warp, int lane) {
    constexpr int SUPERS = K / 256, ROUNDS = (SUPERS + ALL_WARPS - 1) / ALL_WARPS, BATCH = NORM ? (ROUNDS < 2 ? 1 : 2) : (ROUNDS < 5 ? ROUNDS : 5);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round += BATCH) {
        f32 v[BATCH][2][4];
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int super = (round + b) * ALL_WARPS + warp, k = super * 256 + i * 128 + lane * 4;
                const bool valid = super < SUPERS;
                if constexpr (NORM) {
                    const float4 a = valid ? *reinterpret_cast<const float4*>(wide + k) : make_float4(0, 0, 0, 0);
                    v[b][i][0] = a.x, v[b][i][1] = a.y, v[b][i][2] = a.z, v[b][i][3] = a.w;
                } else {
                    const uint2 a = valid ? *reinterpret_cast<const uint2*>(x + k) : make_uint2(0, 0);
                    v[b][i][0] = low_bf16(a.x), v[b][i][1] = high_bf16(a.x), v[b][i][2] = low_bf16(a.y), v[b][i][3] = high_bf16(a.y);
                }
            }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int super = (round + b) * ALL_WARPS + warp;
            if (super >= SUPERS) break;
            if constexpr (NORM) {
                f32 square[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float4 w = *reinterpret_cast<const float4*>(norm + super * 256 + i * 128 + lane * 4);
                    f32(&u)[4] = v[b][i];
                    square[i] = u[0] * u[0] + u[1] * u[1] + (u[2] * u[2] + u[3] * u[3]);
                    u[0] *= w.x, u[1] *= w.y, u[2] *= w.z, u[3] *= w.w;
                }
                const f32 sum = warp_sum(square[0] + square[1]);
                if (lane < 2) reinterpret_cast<f32*>(shared + SQUARES_AT)[2 * super + lane] = lane == 0 ? sum : 0;
            }
            store_one(shared + ONE_AT, reinterpret_cast<f32*>(shared + ONE_SUMS32_AT), reinterpret_cast<f32*>(shared + ONE_SUMS16_AT),
                      reinterpret_cast<f32*>(shared + ONE_FACTORS_AT), super, v[b], lane);
        }
    }
}

// x to shared memory as bf16; with NORM the squares of a token's inputs too, summed in an order of their own.
SP_DEVICE void load_inputs(const u16* x, const f32* wide, const f32* norm, int tokens, int warp, int lane) {
    f32* squares = reinterpret_cast<f32*>(shared + SQUARES_AT);
    constexpr int PIECES = TOKENS * CHUNKS, ROUNDS = (PIECES + ALL_WARPS - 1) / ALL_WARPS, BATCH = ROUNDS < 5 ? ROUNDS : 4;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round += BATCH) {
        float4 v[BATCH] = {}, w[BATCH] = {};
        uint2 packed[BATCH] = {};
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = (round + b) * ALL_WARPS + warp, token = piece / CHUNKS, k = piece % CHUNKS * 128 + lane * 4;
            if (token < tokens && k < K) {
                if constexpr (NORM) {
                    v[b] = *reinterpret_cast<const float4*>(wide + i64(token) * K + k);
                    w[b] = *reinterpret_cast<const float4*>(norm + k);
                } else {
                    packed[b] = *reinterpret_cast<const uint2*>(x + i64(token) * K + k);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int piece = (round + b) * ALL_WARPS + warp, token = piece / CHUNKS, k = piece % CHUNKS * 128 + lane * 4;
            if (piece >= PIECES) break;
            if constexpr (NORM) {
                f32 square = warp_sum(v[b].x * v[b].x + v[b].y * v[b].y + (v[b].z * v[b].z + v[b].w * v[b].w));
                if (lane == 0) squares[piece] = square;
                packed[b] = make_uint2(pack_bf16(v[b].x * w[b].x, v[b].y * w[b].y), pack_bf16(v[b].z * w[b].z, v[b].w * w[b].w));
            }
            store_inputs<TOKENS, PITCH, WITH32, WITH16>(shared + X_AT, shared + SUMS32_AT, shared + SUMS16_AT, token, k,
                                                        k < K, packed[b].x, packed[b].y);
        }
    }
}

// Launched early (see sp/kernels/early.py): the ring is filled while the kernel before still runs.
SP_DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

SP_DEVICE void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

SP_DEVICE f32 silu(f32 v) { return v / (1 + __expf(-v)); }

extern "C" __global__ void __launch_bounds__(32 * ALL_WARPS, 1)
    gemv(const u16* x, const f32* wide, const f32* norm, f32 eps, i32 tokens, i32 count,
         const u8* data0, i32 kind0, i32 rows0, u16* y0, f32* z0, const u8* data1, i32 kind1, i32 rows1, u16* y1, f32* z1,
         const u8* data2, i32 kind2, i32 rows2, u16* y2, f32* z2, const u8* data3, i32 kind3, i32 rows3, u16* y3, f32* z3) {
    const Weights weights = {{{data0, kind0, rows0, y0, z0}, {data1, kind1, rows1, y1, z1},
                              {data2, kind2, rows2, y2, z2}, {data3, kind3, rows3, y3, z3}}};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int group = warp / WARPS, member = warp % WARPS;

    let_next_start();
    Fetch fetch = {};
    fetch.at.start(weights, count, group * gridDim.x + blockIdx.x, GROUPS * gridDim.x, member);
    Walk compute = fetch.at;
    if (compute.valid()) fetch.enter(weights, lane);
    fetch.settle(weights, count, lane);
    u8* ring = shared + RING_AT + warp * (STAGES * SLOT);
    const u32 ring_address = shared_address(ring);
    for (int i = 0; i < STAGES - 1; ++i) fetch.next(weights, count, ring_address + i * SLOT, lane);

    wait_for_earlier();
    if constexpr (ONE) load_one(x, wide, norm, warp, lane);
    if constexpr (MANY) load_inputs(x, wide, norm, tokens, warp, lane);
    __syncthreads();
    f32* factors = reinterpret_cast<f32*>(shared + FACTOR_AT);
    if constexpr (NORM) {
        for (int token = warp; token < TOKENS; token += ALL_WARPS) {
            f32 sum = 0;
            for (int i = lane; i < CHUNKS; i += 32) sum += reinterpret_cast<f32*>(shared + SQUARES_AT)[token * CHUNKS + i];
            sum = warp_sum(sum);
            if (lane == 0) factors[token] = 1 / sqrtf(sum / K + eps);
        }
        __syncthreads();
    }
    const Inputs in = inputs_of<TOKENS, PITCH>(shared + X_AT, shared + SUMS32_AT, shared + SUMS16_AT, lane);

    OneInputs one = {shared_address(shared + ONE_AT), {}, reinterpret_cast<const f32*>(shared + ONE_SUMS32_AT),
                     reinterpret_cast<const f32*>(shared + ONE_SUMS16_AT), reinterpret_cast<const f32*>(shared + ONE_FACTORS_AT)};

    constexpr int OUTPUTS = (TOKENS * 16 + 32 * WARPS - 1) / (32 * WARPS);  // of a thread, at the end of a strip
    f32* partials = reinterpret_cast<f32*>(shared + PARTIAL_AT) + group * (WARPS * PARTIAL);
    int slot = 0, parity = 0, turn = 0;
    f32 gate[OUTPUTS];
    while (compute.valid()) {
        const Weight w = pick(weights, compute.which);
        f32 acc[NT][4] = {}, shares[2] = {};
        if constexpr (ONE) one.aim(w.kind == Q6_K, lane);
        while (compute.index < compute.stages) {
            cp_async_wait<STAGES - 2>();
            __syncwarp();
            fetch.next(weights, count, ring_address + (slot == 0 ? STAGES - 1 : slot - 1) * SLOT, lane);
            const u8* here = ring + slot * SLOT;
#define SP_DO(F)                                                                            \
    if constexpr (has<F>)                                                                   \
        if (w.kind == F) {                                                                  \
            if constexpr (ONE && Stage<F>::super)                                           \
                multiply_one<F>(shares, here, one, compute.index, lane);                    \
            else                                                                            \
                multiply_stage<F, TOKENS, PITCH>(acc, here, in, compute.index, lane);       \
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
        // The group's sums meet. Its threads add up an output each, always the warps in turn; gate and up of a strip fall to
        // the same thread, and where there are few outputs, strips to one warp after another.
        f32* mine = partials + parity * (ALL_WARPS * PARTIAL) + member * PARTIAL;
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = nt * 8 + 2 * c + i % 2;
                if (TOKENS % 8 == 0 || token < TOKENS) mine[token * 20 + g + i / 2 * 8] = acc[nt][i];
            }
        const int first = (member >= turn ? member - turn : member - turn + WARPS) * 32 + lane;
        f32 before[OUTPUTS];
        if constexpr (EPILOGUE == 1) {
#pragma unroll
            for (int i = 0; i < OUTPUTS; ++i) {
                const int token = (first + i * 32 * WARPS) / 16, o = compute.strip * 16 + first % 16;
                before[i] = token < tokens && o < w.rows ? w.z[i64(token) * w.rows + o] : 0;
            }
        }
        asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(32 * WARPS) : "memory");
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) {
            const int token = (first + i * 32 * WARPS) / 16, o = compute.strip * 16 + first % 16;
            if (token >= tokens || o >= w.rows) continue;
            const f32* parts = partials + parity * (ALL_WARPS * PARTIAL) + token * 20 + first % 16;
            f32 value = 0;
#pragma unroll
            for (int m = 0; m < WARPS; ++m) value += parts[m * PARTIAL];
            if constexpr (NORM) value *= factors[token];
            const i64 at = i64(token) * w.rows + o;
            if (EPILOGUE == 2 && compute.which == 0)
                gate[i] = value;
            else if (EPILOGUE == 2)
                weights.list[0].y[at] = bf16_from(silu(gate[i]) * value);
            else if (EPILOGUE == 1)
                w.z[at] = before[i] + value;
            else if (w.z)
                w.z[at] = value;
            else
                w.y[at] = bf16_from(value);
        }
        parity ^= 1;
        if (EPILOGUE != 2 || compute.which == 1) turn = turn + 1 == WARPS ? 0 : turn + 1;
        compute.next_strip(weights, count);
    }
    cp_async_wait<0>();
}
