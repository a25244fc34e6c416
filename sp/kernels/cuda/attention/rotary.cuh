// Rotary embedding of a head's row that a warp holds as head_row.cuh says. `scratch` is HEAD_DIM floats of shared memory of this
// warp's own, 16-byte aligned.
#pragma once
#include "head_row.cuh"

#ifndef INTERLEAVED
#define INTERLEAVED 0  // which values rotary embedding turns together: (j, j + half), or with 1 (2 j, 2 j + 1)
#endif

// `turns` holds, pair by pair, the fraction of a full turn that one position adds, in units of 2^-64. The product with the
// position wraps round exactly at whole turns, so that the angle is as exact at position 1 000 000 as at 1. What is turned
// is also multiplied by `magnitude`.
// A lane has the sines and cosines of pairs lane, lane + 32, ..
struct Angles {
    f32 sine[HEAD_DIM / 64], cosine[HEAD_DIM / 64];
};

SP_DEVICE Angles angles_of(i64 position, const i64* turns, int half, f32 magnitude, u32 lane) {
    Angles angles;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 64; i++) {
        const int j = int(lane) + 32 * i;
        if (j >= half) continue;
        const i32 fraction = i32(u64(position) * u64(turns[j]) >> 32);
        sincospif(f32(fraction) * 0x1p-31f, angles.sine + i, angles.cosine + i);
        angles.sine[i] *= magnitude, angles.cosine[i] *= magnitude;
    }
    return angles;
}

struct alignas(E < 4 ? 8 : 16) HeadFloats {
    f32 x[E];
};

SP_DEVICE void turn(HeadRow& r, const Angles& angles, int half, f32* scratch, u32 lane) {
    HeadFloats& mine = reinterpret_cast<HeadFloats*>(scratch)[lane];
#pragma unroll
    for (int i = 0; i < E; i++) mine.x[i] = r.x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 64; i++) {
        const int j = int(lane) + 32 * i;
        if (j >= half) continue;
        const int first = INTERLEAVED ? 2 * j : j, second = INTERLEAVED ? 2 * j + 1 : j + half;
        const f32 a = scratch[first], b = scratch[second];
        scratch[first] = a * angles.cosine[i] - b * angles.sine[i];
        scratch[second] = a * angles.sine[i] + b * angles.cosine[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < E; i++) r.x[i] = mine.x[i];
    __syncwarp();
}

SP_DEVICE void rope(HeadRow& r, i64 position, const i64* turns, int half, f32 magnitude, f32* scratch, u32 lane) {
    turn(r, angles_of(position, turns, half, magnitude, lane), half, scratch, lane);
}
