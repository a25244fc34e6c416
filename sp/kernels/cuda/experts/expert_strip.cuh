// One warp's share of 16 rows of the matrices of chosen experts times a single token: stages of 256 inputs that it
// fetches, its inputs as integers, and where the warps' sums meet. For expert_gated.cu and expert_down.cu.
//
// No warp waits for another before the sums: each makes integers of the 256 inputs of its own stage (one_input.cuh)
// while the codes are on their way, and multiplies them as gemv.cu does (strip_one.cuh). Where a row is no whole number
// of stages, which only blocks of 32 allow, its last one is of `tail` tiles of 64 inputs: scales and inputs behind them
// are zeros there.
// Defines: KIND (super-blocks, or blocks of 32 with a scale for 32), WARPS, DEPTH (stages of a warp under way), TAIL (1: rows may
// be no whole stages).
#pragma once
#include "activations.cuh"
#include "one_input.cuh"
#include "pdl.cuh"

#ifndef TAIL
#define TAIL 0
#endif

using F = Packing<KIND>;
using S = Slot<KIND, STAGE_ROWS, 256 / TILE_K>;
static_assert(F::super ? !TAIL : F::group == 32, "stages are of 256 inputs");

// 256 inputs of a token, as strip_one.cuh reads them.
struct __align__(16) StageInputs {
    u8 codes[ONE_BYTES];
    f32 sums32[8], sums16[16];
    f32 factor;

    SP_DEVICE void store(const f32 (&v)[2][4], int lane) {
        store_one<F::group == 32 && (F::minima || F::counted), F::group == 16>(codes, sums32, sums16, &factor, 0, v, lane);
    }

    SP_DEVICE OneInputs aimed(int lane) const {
        OneInputs in = {shared_address(codes), {}, sums32, sums16, &factor};
        in.aim(F::group == 16, lane);
        return in;
    }
};

// Stages of `Parts` matrices in turn, DEPTH turns ahead.
template <int Parts>
struct WarpRing {
    u8* slots;
    int turn = 0;

    SP_DEVICE u8* slot(int part) const { return slots + (turn % DEPTH * Parts + part) * S::bytes; }
};

// Shared memory of a block, in bytes; sp/kernels/specs/experts.py counts the same.
template <int Parts>
struct Room {
    static constexpr int ring = DEPTH * Parts * S::bytes, inputs = WARPS * ring, sums = inputs + WARPS * int(sizeof(StageInputs));
};

// Tiles of 64 inputs in a row of so many stages; whole ones are of four.
SP_DEVICE int tiles_of(int supers, int tail) { return TAIL ? 4 * supers - 4 + tail : 4 * supers; }

// fetch_stage of a row of `k_tiles` tiles.
SP_DEVICE void fetch_stage_of(u8* slot, const Planes& p, int index, int k_tiles, int lane) {
    const int tiles = k_tiles - 4 * index;
    if (!TAIL || tiles >= 4) return fetch_stage<S>(shared_address(slot), p, index, lane);
    using N = Pieces<S>;
    const auto copy = [&](u32 to, const u8* from, int bytes) {  // codes behind the last tile may be anything
        for (int i = 0; i * 512 + lane * 16 < bytes / S::tiles * tiles; ++i)
            cp_async_16(to + i * 512 + lane * 16, from + i * (N::STRIPS * 512));
    };
    copy(shared_address(slot), p.low + i64(index) * (S::tiles * F::low_bytes), S::low);
    if constexpr (S::high > 0) copy(shared_address(slot) + S::high_at, p.high + i64(index) * (S::tiles * F::high_bytes), S::high);
    if (lane < 2 * tiles * N::scale_run)
        cp_async_16(shared_address(slot) + S::scales_at + lane * 16, p.scales + i64(index) * (S::spans * F::scales_bytes));
    else if (lane < N::scales)
        *reinterpret_cast<uint4*>(slot + S::scales_at + lane * 16) = make_uint4(0, 0, 0, 0);
}

// Four inputs of each half of super-block `super` of a row of `k_tiles` tiles, as store_one takes them.
SP_DEVICE void load_inputs_of(f32 (&v)[2][4], const u16* row, int super, int k_tiles, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint2 a = {};
        if (!TAIL || 4 * super + 2 * i + lane / 16 < k_tiles)
            a = *reinterpret_cast<const uint2*>(row + super * 256 + i * 128 + lane * 4);
        v[i][0] = low_bf16(a.x), v[i][1] = high_bf16(a.x), v[i][2] = low_bf16(a.y), v[i][3] = high_bf16(a.y);
    }
}

// The sum of the four lanes that share a row, to where the warps' sums meet: 16 floats a warp.
SP_DEVICE void leave_sums(f32* sums, f32 (&acc)[2], int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        acc[r] += __shfl_xor_sync(0xffffffffu, acc[r], 1);
        acc[r] += __shfl_xor_sync(0xffffffffu, acc[r], 2);
        if (lane % 4 == 0) sums[lane / 4 + 8 * r] = acc[r];
    }
}

// What all warps left of row `row`, in their order.
SP_DEVICE f32 met(const f32* sums, int row) {
    f32 sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += sums[16 * w + row];
    return sum;
}

extern __shared__ __align__(128) u8 shared[];
