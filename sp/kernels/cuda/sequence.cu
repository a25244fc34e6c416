// What a sequence knows about itself, moved on where a CUDA graph can do it.
//
//   advance_counts  for each layer: before = after, after += tokens + more
//   next_step       current = history[step] = chosen, step += 1, position += 1
//   masked_block    ids = chosen, mask, mask, ...; positions = position, position + 1, ...
//
// Layouts: counts i32 (layers, 2) of tokens before and after the last append; more i32 (1,) or null for 0; chosen,
//   current i32 (1,); position i64 (1,); history i32 (capacity,); step i32 (1,), below capacity; ids i32 and positions
//   i64 (size,).
// Launch: advance_counts a thread a layer, next_step one thread, masked_block a thread a token. sm_80 and newer.
#include "early.cuh"

extern "C" __global__ void advance_counts(i32* counts, i32 layers, i32 tokens, const i32* more) {
    let_next_start();
    wait_for_earlier();
    const i32 layer = blockIdx.x * blockDim.x + threadIdx.x;
    if (layer >= layers) return;
    const i32 before = counts[2 * layer + 1];
    counts[2 * layer] = before;
    counts[2 * layer + 1] = before + tokens + (more ? *more : 0);
}

extern "C" __global__ void next_step(const i32* chosen, i32* current, i64* position, i32* history, i32* step) {
    let_next_start();
    wait_for_earlier();
    *current = history[*step] = *chosen;
    *step += 1;
    *position += 1;
}

extern "C" __global__ void masked_block(const i32* chosen, const i64* position, i32* ids, i64* positions, i32 mask,
                                        i32 size) {
    let_next_start();
    wait_for_earlier();
    const i32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= size) return;
    ids[at] = at ? mask : *chosen;
    positions[at] = *position + at;
}
