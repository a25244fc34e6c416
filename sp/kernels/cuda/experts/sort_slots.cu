// Slots (a token has `used`, one an expert it goes to) sorted by expert, every expert's beginning at a whole block.
//
//   experts  i32 (slots), each below `count` <= 1024
//   places   i32 (slots): where a slot comes to stand; of one expert in any order, so that only the order of rows differs
//            from run to run and no result
//   owners   i32 (ceil(slots / block) + count, the most there may be): the expert of each block of `block` places
//   blocks   u32 (1): how many blocks there are
// Launch: one block of 1024 threads: counts in shared memory, their sums, and places handed out. sm_80+.
#include "types.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    sort_slots(const i32* __restrict__ experts, i32* __restrict__ places, i32* __restrict__ owners, u32* __restrict__ blocks,
               i32 slots, i32 count, i32 block) {
    __shared__ i32 next[THREADS], sums[WARPS];
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next[threadIdx.x] = 0;
    __syncthreads();
    for (i32 slot = threadIdx.x; slot < slots; slot += THREADS) atomicAdd(next + experts[slot], 1);
    __syncthreads();
    const i32 mine = (next[threadIdx.x] + block - 1) / block;  // blocks of expert threadIdx.x; of those past `count` none
    i32 sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const i32 before = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    i32 first = sum - mine;
    for (int w = 0; w < warp; ++w) first += sums[w];
    next[threadIdx.x] = first * block;
    for (i32 b = 0; b < mine; ++b) owners[first + b] = threadIdx.x;
    if (threadIdx.x == THREADS - 1) *blocks = first + mine;
    __syncthreads();
    for (i32 slot = threadIdx.x; slot < slots; slot += THREADS) places[slot] = atomicAdd(next + experts[slot], 1);
}
