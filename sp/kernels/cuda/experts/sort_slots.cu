// Slots (a token has `used`, one an expert it goes to) sorted by expert, every expert's beginning at a whole block, and the tiles
// of tokens that are multiplied together.
//
//   experts  i32 (slots), each below `count` <= 1024
//   places   i32 (slots): where a slot comes to stand; of one expert in any order, so that only the order of rows differs
//            from run to run and no result
//   tiles    i32 (ceil(slots / block) + count, the most there may be): of each tile of up to `widest` places (a multiple of
//            block) the expert, in bits 10 and 11 whether it has up to 64, up to 128 or more tokens, from bit 12 on its first block
//            Tiles of many tokens come first: blocks take tiles at a stride of the grid, and end together if these cost
//            alike
//   made     u32 (1): how many tiles there are
// Launch: one block of 1024 threads: counts in shared memory, their sums, and places handed out. sm_80+.
#include "types.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / 32;

struct Sum {
    i32 before, all;  // of the threads before this one; of all
};

// Every thread of the block calls it.
SP_DEVICE Sum sum_of(i32 mine, i32* sums) {
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i32 sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const i32 before = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    Sum found = {sum - mine, 0};
    for (int w = 0; w < WARPS; ++w) found.before += w < warp ? sums[w] : 0, found.all += sums[w];
    __syncthreads();
    return found;
}

SP_DEVICE i32 width_of(i32 tokens) { return tokens <= 64 ? 0 : tokens <= 128 ? 1 : 2; }

extern "C" __global__ void __launch_bounds__(THREADS)
    sort_slots(const i32* __restrict__ experts, i32* __restrict__ places, i32* __restrict__ tiles, u32* __restrict__ made,
               i32 slots, i32 count, i32 block, i32 widest) {
    __shared__ i32 next[THREADS], sums[WARPS];
    next[threadIdx.x] = 0;
    __syncthreads();
    for (i32 slot = threadIdx.x; slot < slots; slot += THREADS) atomicAdd(next + experts[slot], 1);
    __syncthreads();
    const i32 mine = next[threadIdx.x];  // of those past `count` none
    const i32 block0 = sum_of((mine + block - 1) / block, sums).before, whole = mine / widest, left = mine % widest;
    next[threadIdx.x] = block0 * block;
    i32 at = 0;
    for (i32 width = 2; width >= 0; --width) {
        const bool last = left > 0 && width_of(left) == width;
        const i32 first = width_of(widest) == width ? 0 : whole;  // of this expert's tiles, the first of this width
        const Sum sum = sum_of(whole - first + last, sums);
        for (i32 i = first; i < whole + last; ++i)
            tiles[at + sum.before + i - first] = i32(threadIdx.x) | width << 10 | (block0 + i * (widest / block)) << 12;
        at += sum.all;
    }
    if (threadIdx.x == 0) *made = at;
    __syncthreads();
    for (i32 slot = threadIdx.x; slot < slots; slot += THREADS) places[slot] = atomicAdd(next + experts[slot], 1);
}
