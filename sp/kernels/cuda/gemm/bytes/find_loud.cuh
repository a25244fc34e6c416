// The search for outlier channels by a block of 1024 threads: channels whose peak is over four times the geometric mean
// of all peaks, at most the 64 largest.
//
//   peaks     u32 (COLS): bits of float32 values, none negative; COLS % 32 == 0, at most 32,768. Those of 0 are left out of the mean.
//             Zeros afterwards
//   count     u32: number of outliers
//   channels  u32 (64): their indices, ascending
//   mask      u32 (COLS / 32): bit i of word j is set where channel 32 j + i is an outlier
// Of more than 64 the largest by quarters of an octave are taken, of the last quarter the first ones. Without outliers
// only `count` is written. Channels t, t + 1024, .. belong to thread t. Define: COLS. Arches: 80+.
// Source: outlier features of LLM.int8() (Dettmers et al., 2022), found here by comparison with the other channels.
#pragma once
#include "mma.cuh"

enum { MOST = 64, BINS = 1024, EACH = (COLS + 1023) / 1024 };

SP_DEVICE u32 bin_of(u32 bits) { return bits >> 21; }  // exponent and two bits of the fraction

// Sums over the warps of a block of what each thread gives, up to it and of all; `room` holds a word a warp.
SP_DEVICE u32 sum_before(u32 value, u32* room, u32& total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == 31) room[warp] = sum;
    __syncthreads();
    u32 before = 0;
    total = 0;
#pragma unroll 4
    for (u32 i = 0; i < 32; ++i) {
        if (i < warp) before += room[i];
        total += room[i];
    }
    return before + sum - value;
}

SP_DEVICE void find_loud(u32* peaks, u32* count, u32* channels, u32* mask) {
    __shared__ u32 bins[BINS], room[32], counts[32 * EACH];
    __shared__ f32 sums[32];
    __shared__ u32 last, above;
    const u32 t = threadIdx.x;
    bins[t] = 0;
    u32 bits[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) bits[i] = 1024 * i + t < COLS ? __ldcg(peaks + 1024 * i + t) : 0;  // not from L1: other blocks may have raised them
    f32 logs = 0.0f;
    u32 some = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        const f32 peak = __uint_as_float(bits[i]);
        if (peak > 0.0f && peak < 0x1p127f) logs += __log2f(peak), ++some;
    }
    logs = warp_sum(logs);
    if (t % 32 == 0) sums[t / 32] = logs;
    u32 counted;
    sum_before(some, room, counted);
    f32 all = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 32; ++i) all += sums[i];
    const f32 least = 4.0f * exp2f(all / f32(max(counted, 1u)));
    const u32 least_bits = counted ? __float_as_uint(least) : 0xffffffffu;
    u32 mine = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i)
        if (bits[i] > least_bits) atomicAdd(bins + bin_of(bits[i]), 1u), ++mine;
    u32 total;
    sum_before(mine, room, total);
    if (t == 0) *count = min(total, u32(MOST)), last = 0, above = total;  // all fit
    if (total == 0) {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
            if (1024 * i + t < COLS) peaks[1024 * i + t] = 0;
        return;
    }

    // Thread t looks at bin 1023 - t: those before it have larger peaks.
    const u32 inside = bins[BINS - 1 - t];
    u32 unused;
    const u32 louder = sum_before(inside, room, unused);
    if (inside && louder <= MOST && louder + inside > MOST) last = BINS - 1 - t, above = louder;
    __syncthreads();
    const u32 from = last, left = MOST - min(above, u32(MOST));  // places in the last bin
    // How many channels of each 32 are over the last bin (in the high half) and in it; then how many of all those before.
    const u32 warp = t / 32;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        const bool loud = bits[i] > least_bits;
        const u32 over = __ballot_sync(0xffffffffu, loud && bin_of(bits[i]) > from);
        const u32 equal = __ballot_sync(0xffffffffu, loud && bin_of(bits[i]) == from);
        if (t % 32 == 0) counts[32 * i + warp] = __popc(over) << 16 | __popc(equal);
        if (1024 * i + t < COLS) peaks[1024 * i + t] = 0;
    }
    __syncthreads();
    u32 own = 0;
    if (t < 32)
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) own += counts[EACH * t + i];
    u32 sum = sum_before(t < 32 ? own : 0, room, unused);
    if (t < 32)
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 here = counts[EACH * t + i];
            counts[EACH * t + i] = sum;
            sum += here;
        }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        const u32 channel = 1024 * i + t, lower = (1u << t % 32) - 1, before = counts[32 * i + warp];
        const bool loud = bits[i] > least_bits;
        const bool is_over = loud && bin_of(bits[i]) > from, is_equal = loud && bin_of(bits[i]) == from;
        const u32 over_before = (before >> 16) + __popc(__ballot_sync(0xffffffffu, is_over) & lower);
        const u32 equal_before = (before & 0xffff) + __popc(__ballot_sync(0xffffffffu, is_equal) & lower);
        const bool taken = is_over || (is_equal && equal_before < left);
        if (taken) channels[over_before + min(equal_before, left)] = channel;
        const u32 word = __ballot_sync(0xffffffffu, taken);
        if (t % 32 == 0 && channel < COLS) mask[channel / 32] = word;
    }
}
