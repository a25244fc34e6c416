// The scan of the chunked delta rule on Hopper: as delta_scan.cu, with wgmma and tensor copies.
//
// Per chunk of 64 tokens, with e_i = exp(G_i), t_i = exp(G_end - G_i) from delta_chunk.cu:
//   D = T (V - e K S);   O = e Q S / sqrt(128) + P D;   S <- e_end S + K^T (t D)
//
// keys, queries  maps of f16 (key_heads * 2, tokens, 64), boxes of 2 x 64 x 64: one head of a chunk, in two panels
// value_map      f16 (tokens, value_heads * 128), V before, O after, boxes of 64 x 64
// T, P           maps of f16 (value_heads * chunks * 64, 64), boxes of 64 x 64, zero above the diagonal
// decay          f32 (value_heads, chunks, 2, 64);  state f32 (value_heads, 128 keys, 128 values), moved on in place
//
// Grid (2, value_heads), 128 + 32 threads. A warpgroup owns 64 value columns of S^T in accumulators; all products are
// transposed, so that A is always registers (a packed accumulator) and B a tile in shared memory: K and Q K-major for
// S^T K^T, S^T Q^T, K MN-major for S^T += D^T K. The chain from one state to the next is short of work for the tensor
// cores, so O is computed in its gaps and written under the next chunk's products. The last warp fetches STAGES
// chunks ahead; missing tokens arrive as zeros. Only copies of S inside products are f16. 128-byte swizzle. sm_90a.
// A whole head a block (two warpgroups) was slower.
// Yang et al. 2024 (chunked form); Shah et al. 2024, FlashAttention-3 (accumulators repacked as A).
#include "activations.cuh"
#include "wgmma_f16.cuh"

#define CHUNK 64
#define PANEL 8192  // bytes of 64 rows of 128
#define KEYS 0
#define QUERIES (2 * PANEL)
#define SOLVER (4 * PANEL)
#define WITHIN (5 * PANEL)
#define VALUES (6 * PANEL)
#define STAGE (7 * PANEL)
#define OUTPUTS (STAGES * STAGE)
#define DECAYS (OUTPUTS + 2 * PANEL)
#define BARRIERS (DECAYS + STAGES * 512)

extern __shared__ __align__(1024) u8 shared[];

SP_DEVICE u64 moved_by(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

// D (64, 64) += A (64, 16) in registers times B (16, 64) K-major, that is rows of its transpose; D = A B if not `add`.
SP_DEVICE void wgmma_rows(f32 (&d)[32], const u32* a, u64 b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SP_R32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t}"
                 : SP_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(i32(add)));
}

// An accumulator of 64 rows and Count / 2 columns as the A operands of Count / 8 steps.
template <int Count>
SP_DEVICE void operands(u32 (&a)[Count / 2], const f32 (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) a[i] = pack_f16_finite(d[2 * i], d[2 * i + 1]);
}

extern "C" __global__ void __launch_bounds__(160, 1)
    delta_scan_sm90(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap queries,
                    const __grid_constant__ TensorMap value_map, const __grid_constant__ TensorMap solver_map,
                    const __grid_constant__ TensorMap within_map, const f32* __restrict__ decay, f32* state,
                    i32 tokens, i32 key_heads) {
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 p = blockIdx.y, first = blockIdx.x * 64;
    const i32 chunks = (tokens + CHUNK - 1) / CHUNK;
    u64* const full = reinterpret_cast<u64*>(shared + BARRIERS);
    u64* const empty = full + STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + i, 1), barrier_init(empty + i, 4 * WARP_ARRIVALS);
        barrier_init_fence();
    }
    __syncthreads();

    if (warp == 4) {
        if (lane != 0) return;
        const i32 panel = p % key_heads * 2;
        for (i32 chunk = 0; chunk < chunks; ++chunk) {
            const i32 slot = chunk % STAGES, token = chunk * CHUNK, square = (p * chunks + chunk) * CHUNK;
            u8* const at = shared + slot * STAGE;
            u64* const ready = full + slot;
            barrier_wait(empty + slot, chunk / STAGES % 2 ^ 1);
            barrier_expect(ready, STAGE + 512);
            tensor_load(at + KEYS, &keys, ready, 0, token, panel);
            tensor_load(at + VALUES, &value_map, ready, p * 128 + first, token);
            bulk_load(shared + DECAYS + slot * 512, decay + (i64(p) * chunks + chunk) * 2 * CHUNK, 512, ready);
            tensor_load(at + SOLVER, &solver_map, ready, 0, square);
            tensor_load(at + QUERIES, &queries, ready, 0, token, panel);
            tensor_load(at + WITHIN, &within_map, ready, 0, square);
        }
        return;
    }

    const i32 g = lane / 4, c = lane % 4;
    f32* const own = state + (i64(p) * 128 + 2 * c) * 128 + first + 16 * warp + g;
    f32 S[64];  // S^T: value columns g, g + 8; keys 8 tile + 2c, + 1
#pragma unroll
    for (int i = 0; i < 64; ++i) S[i] = own[(i / 4 * 8 + i % 2) * 128 + i / 2 % 2 * 8];

    u32 a[32], done[16] = {};  // S as operands, before its decay; O of the chunk before
    auto write = [&](i32 chunk) {
        u8* const target = shared + OUTPUTS + (chunk & 1) * PANEL;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i32 token = 16 * i + 8 * (lane / 16) + lane % 8, step = 2 * warp + lane / 8 % 2;
            const u32 four[4] = {done[4 * i], done[4 * i + 1], done[4 * i + 2], done[4 * i + 3]};
            stmatrix_x4_trans(shared_address(target) + token * 128 + (step ^ (token & 7)) * 16, four);
        }
        fence_async_proxy();
        if (threadIdx.x == 0) bulk_wait_read<0>();  // the store before this one has left the other buffer
        named_barrier(1, 128);
        if (threadIdx.x == 0 && chunk >= 0) {
            tensor_store(&value_map, target, p * 128 + first, chunk * CHUNK);
            bulk_commit();
        }
    };
    auto decays = [&](i32 chunk) { return reinterpret_cast<const f32*>(shared + DECAYS + chunk % STAGES * 512); };
    auto take_state = [&](f32 end) {
        operands(a, S);
#pragma unroll
        for (int i = 0; i < 64; ++i) S[i] *= end;
    };
    barrier_wait(full, 0);
    take_state(decays(0)[CHUNK - 1]);
    for (i32 chunk = 0; chunk < chunks; ++chunk) {
        const i32 slot = chunk % STAGES;
        const u32 at = shared_address(shared + slot * STAGE);
        const f32* const e = decays(chunk);
        f32 D[32], O[32];
        const u64 k_rows = wgmma_descriptor(at + KEYS), q_rows = wgmma_descriptor(at + QUERIES);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; ++i) wgmma_rows(D, a + 4 * i, moved_by(k_rows, i / 4 * PANEL + i % 4 * 32), i > 0);
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < 8; ++i) wgmma_rows(O, a + 4 * i, moved_by(q_rows, i / 4 * PANEL + i % 4 * 32), i > 0);
        wgmma_commit();
        write(chunk - 1);
        u32 v[16];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i32 token = 16 * i + 8 * (lane / 16) + lane % 8, step = 2 * warp + lane / 8 % 2;
            u32 four[4];
            ldmatrix_x4_trans(four, at + VALUES + token * 128 + (step ^ (token & 7)) * 16);
#pragma unroll
            for (int j = 0; j < 4; ++j) v[4 * i + j] = four[j];
        }
        wgmma_wait<1>();
        accumulators_ready(D);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float2 grown = *reinterpret_cast<const float2*>(e + 8 * i + 2 * c);
            D[4 * i] = low_f16(v[2 * i]) - grown.x * D[4 * i];
            D[4 * i + 1] = high_f16(v[2 * i]) - grown.y * D[4 * i + 1];
            D[4 * i + 2] = low_f16(v[2 * i + 1]) - grown.x * D[4 * i + 2];
            D[4 * i + 3] = high_f16(v[2 * i + 1]) - grown.y * D[4 * i + 3];
        }
        u32 r[16];
        operands(r, D);
        const u64 t_rows = wgmma_descriptor(at + SOLVER);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma_rows(D, r + 4 * i, moved_by(t_rows, 32 * i), i > 0);
        wgmma_commit();
        wgmma_wait<1>();
        accumulators_ready(O);
        const f32 root = rsqrtf(128.0f);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float2 grown = *reinterpret_cast<const float2*>(e + 8 * i + 2 * c);
            O[4 * i] *= grown.x * root, O[4 * i + 1] *= grown.y * root;
            O[4 * i + 2] *= grown.x * root, O[4 * i + 3] *= grown.y * root;
        }
        wgmma_wait<0>();
        accumulators_ready(D);
        u32 d[16];
        operands(d, D);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float2 left = *reinterpret_cast<const float2*>(e + CHUNK + 8 * i + 2 * c);
            D[4 * i] *= left.x, D[4 * i + 1] *= left.y, D[4 * i + 2] *= left.x, D[4 * i + 3] *= left.y;
        }
        operands(r, D);
        const bool more = chunk + 1 < chunks;
        if (more) barrier_wait(full + (chunk + 1) % STAGES, (chunk + 1) / STAGES % 2);
        const f32 end = more ? decays(chunk + 1)[CHUNK - 1] : 1.0f;
        const u64 p_rows = wgmma_descriptor(at + WITHIN), k_columns = wgmma_descriptor(at + KEYS, 1024, PANEL);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma_rs(S, r + 4 * i, moved_by(k_columns, 2048 * i));
        wgmma_commit();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma_rows(O, d + 4 * i, moved_by(p_rows, 32 * i), true);
        wgmma_commit();
        wgmma_wait<1>();
        accumulators_ready(S);
        take_state(end);
        wgmma_wait<0>();
        accumulators_ready(O);
        barrier_arrive_warp(empty + slot, lane);
        operands(done, O);
    }
    write(chunks - 1);
    if (threadIdx.x == 0) bulk_wait<0>();
#pragma unroll
    for (int i = 0; i < 64; ++i) own[(i / 4 * 8 + i % 2) * 128 + i / 2 % 2 * 8] = S[i];
}
