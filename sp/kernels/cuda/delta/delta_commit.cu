// After delta_tree: updates the states of all recurrent layers along one path of the tree, in place.
//
//   S <- exp(g_1 + .. + g_n) S + sum_j exp(g_j+1 + .. + g_n) k_j u_j^T over the n nodes of the path;  history <- the last
//   three of history and the path's inputs
//
// memories    u64 (layers, 2): addresses of history f32 (3, channels) and state f32 (value_heads, HEAD_DIM, HEAD_DIM)
// keys        f32 (layers, nodes, key_heads, HEAD_DIM);  added f32 (layers, nodes, value_heads, HEAD_DIM) u
// decays      f32 (layers, nodes, value_heads) g;  inputs bf16 (layers, nodes, channels)
// path        i32 (nodes or more), kept i32 (1): n; 0 leaves everything
//
// Grid (value_heads * HEAD_DIM / 64, layers), 2 * HEAD_DIM threads; nodes <= 64. A block takes 64 keys of a head, a thread
// 8 of them and 4 columns in registers; k and u of 16 nodes at a time lie in shared memory, the last nodes first, so that
// their decays add up from nothing. The blocks of a layer share its channels. Capturable. 16-byte aligned rows. sm_80+.
// Bound by memory: every state is read and written once; its loads are under way while the path is looked up.
#include "types.cuh"

#define THREADS (2 * HEAD_DIM)
#define KEYS 64
#define BATCH 16
#define MOST 64

extern "C" __global__ void __launch_bounds__(THREADS, 768 / THREADS)
    delta_commit(const u64* memories, const f32* keys, const f32* added, const f32* decays, const u16* inputs,
               const i32* path, const i32* kept, i32 nodes, i32 key_heads, i32 value_heads) {
    __shared__ f32 logs[MOST];
    __shared__ __align__(16) f32 k[BATCH][KEYS], u[BATCH][HEAD_DIM];
    const i32 thread = threadIdx.x;
    const i32 p = blockIdx.x / (HEAD_DIM / KEYS), from = blockIdx.x % (HEAD_DIM / KEYS) * KEYS;
    const i64 layer = blockIdx.y;
    f32* const history = reinterpret_cast<f32*>(memories[2 * layer]);
    f32* const state = reinterpret_cast<f32*>(memories[2 * layer + 1]);
    const i32 column = thread % (HEAD_DIM / 4) * 4, row = thread / (HEAD_DIM / 4) * 8;
    float4* const own = reinterpret_cast<float4*>(state + (i64(p) * HEAD_DIM + from + row) * HEAD_DIM + column);
    float4 S[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) S[i] = own[i * (HEAD_DIM / 4)];
    const i32 n = *kept;
    if (n == 0) return;
    if (thread < n) logs[thread] = decays[(layer * nodes + path[thread]) * value_heads + p];
    f32 whole = 0.0f, rest = 0.0f;  // logs of the decays of the whole path, and behind the node at hand
    for (i32 end = n; end > 0; end -= BATCH) {
        const i32 start = max(end - BATCH, 0), batch = end - start;
        for (i32 item = thread; item < batch * KEYS; item += THREADS) {
            const i64 node = layer * nodes + path[start + item / KEYS];
            k[item / KEYS][item % KEYS] = keys[(node * key_heads + p % key_heads) * HEAD_DIM + from + item % KEYS];
        }
        for (i32 item = thread; item < batch * HEAD_DIM; item += THREADS) {
            const i64 node = layer * nodes + path[start + item / HEAD_DIM];
            u[item / HEAD_DIM][item % HEAD_DIM] = added[(node * value_heads + p) * HEAD_DIM + item % HEAD_DIM];
        }
        __syncthreads();
        if (end == n) {
            for (i32 j = n - 1; j >= 0; --j) whole += logs[j];
            whole = expf(whole);
#pragma unroll
            for (int i = 0; i < 8; ++i) S[i].x *= whole, S[i].y *= whole, S[i].z *= whole, S[i].w *= whole;
        }
        for (i32 j = batch - 1; j >= 0; --j) {
            const f32 share = expf(rest);
            rest += logs[start + j];
            float4 d = *reinterpret_cast<const float4*>(u[j] + column);
            d.x *= share, d.y *= share, d.z *= share, d.w *= share;
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                const float4 key = *reinterpret_cast<const float4*>(k[j] + row + i);
                const f32 four[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    S[i + s].x += four[s] * d.x, S[i + s].y += four[s] * d.y;
                    S[i + s].z += four[s] * d.z, S[i + s].w += four[s] * d.w;
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) own[i * (HEAD_DIM / 4)] = S[i];

    const i64 channels = i64(2 * key_heads + value_heads) * HEAD_DIM;
    for (i64 c = i64(blockIdx.x) * THREADS + thread; c < channels; c += i64(gridDim.x) * THREADS) {
        f32 past[3];
#pragma unroll
        for (int j = 0; j < 3; ++j)
            past[j] = n + j < 3 ? history[(n + j) * channels + c]
                                : f32_from_bf16(inputs[(layer * nodes + path[n + j - 3]) * channels + c]);
#pragma unroll
        for (int j = 0; j < 3; ++j) history[j * channels + c] = past[j];
    }
}
