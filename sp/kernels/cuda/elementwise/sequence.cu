// What a sequence knows about itself, moved on where a CUDA graph can do it.
//
//   advance_counts  for each layer: before = after, after += tokens + more
//   next_step       current = history[step] = chosen, step += 1, position += 1
//
// Layouts: counts i32 (layers, 2) of tokens before and after the last append; more i32 (1,) or null for 0; chosen,
//   current i32 (1,); position i64 (1,); history i32 (capacity,); step i32 (1,), below capacity.
// Launch: advance_counts a thread a layer, next_step one thread. sm_80 and newer.
#include "pdl.cuh"

extern "C" __global__ void advance_counts(i32* counts, i32 layers, i32 tokens, const i32* more) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 layer = blockIdx.x * blockDim.x + threadIdx.x;
    if (layer >= layers) return;
    const i32 before = counts[2 * layer + 1];
    counts[2 * layer] = before;
    counts[2 * layer + 1] = before + tokens + (more ? *more : 0);
}

extern "C" __global__ void next_step(const i32* chosen, i32* current, i64* position, i32* history, i32* step) {
    pdl_launch_dependents();
    pdl_wait();
    *current = history[*step] = *chosen;
    *step += 1;
    *position += 1;
}
