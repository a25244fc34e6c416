// Updates the counts and positions of a sequence on the device, so that a CUDA graph can do it.
//
//   advance_counts  for each layer: before = after, after += tokens + more
//   next_step       current = history[step] = chosen, step += 1, position += 1
//   window_reach    places[start + i] = positions[i]; reach[i] = the first j with place j > positions[i] - window, start =
//                   *stored + more - n, j up to start + n; of a tree j up to start, places[start + i] = positions[0] + i
//
// Layouts: counts i32 (layers, 2) of tokens before and after the last append; more i32 (1,) or null for 0; chosen,
//   current i32 (1,); position i64 (1,); history i32 (capacity,); step i32 (1,), below capacity; positions i64 (n,), of a
//   run ascending, of a tree its root first; places i64 (start + n or more,), ascending; reach i32 (n,).
// Launch: advance_counts and window_reach a thread a layer and a token, next_step one thread. sm_80 and newer.
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

extern "C" __global__ void window_reach(const i64* positions, i64* places, const i32* stored, i32 more, i32 n, i64 window,
                                        i32 tree, i32* reach) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const i32 start = (stored ? *stored : 0) + more - n;
    const i64 hidden = positions[i] - window;
    i32 low = 0, high = tree ? start : start + i;  // a token sees itself
    while (low < high) {
        const i32 middle = (low + high) / 2;
        const i64 place = middle < start ? places[middle] : positions[middle - start];
        if (place > hidden)
            high = middle;
        else
            low = middle + 1;
    }
    reach[i] = low;
    places[start + i] = tree ? positions[0] + i : positions[i];
}
