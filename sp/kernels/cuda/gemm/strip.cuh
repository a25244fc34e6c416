// One strip (16 rows of a row tile) of a packed weight, a stage at a time: its way into shared memory.
//
// A stage is what a warp fetches at once: a super-block of 256 inputs with its scales, or of blocks of 32 one or four
// tiles of 64 inputs, as the kernel says. `S`, a `Slot` of 16 rows, says where its parts lie in a ring slot; every lane
// copies 16-byte pieces.
#pragma once
#include "fragment.cuh"
#include "mma.cuh"

// The planes of one weight, as plane_offsets of sp/ops/matmul/fragment_order.py lays them out.
struct Planes {
    const u8 *low, *high, *scales, *deltas;
};

SP_DEVICE i64 aligned_up(i64 bytes) { return (bytes + 255) & ~i64(255); }

template <int F>
SP_DEVICE Planes planes_of(const u8* data, i64 row_tiles, i64 k_tiles) {
    Planes p;
    p.low = data;
    p.high = p.low + aligned_up(row_tiles * k_tiles * Packing<F>::low_bytes);
    p.scales = p.high + aligned_up(row_tiles * k_tiles * Packing<F>::high_bytes);
    p.deltas = p.scales + aligned_up(row_tiles * (k_tiles / Packing<F>::tiles) * Packing<F>::scales_bytes);
    return p;
}

// How the parts of a stage are copied, in pieces of 16 bytes; all lanes but those past the last piece take part. A part is
// made of runs, what lies together of 16 rows: codes of a tile, scales of a group of 32 or of a super-block.
template <class S>
struct Pieces {
    static constexpr int STRIPS = TILE_ROWS / STAGE_ROWS;
    static constexpr int low_run = S::low / S::tiles < 512 ? S::low / S::tiles / 16 : 32, high_run = S::high / S::tiles / 16;
    static constexpr int scales = S::scales / 16, deltas = S::deltas / 16;
    static constexpr int scale_run = S::super ? scales : scales / (2 * S::tiles);
};

// Where the parts of stage 0 of a strip begin for this lane; stages of a strip follow each other at fixed distances.
template <class S>
SP_DEVICE Planes strip_of(Planes p, int strip, int k_tiles, int lane) {
    using F = Packing<S::format>;
    using N = Pieces<S>;
    const i64 row_tile = strip / 4;
    const int quarter = strip % 4;
    const auto piece = [&](int run, bool only) {
        return quarter * (16 * run) + (only ? lane * 16 : lane / run * (N::STRIPS * 16 * run) + lane % run * 16);
    };
    p.low += row_tile * k_tiles * F::low_bytes + piece(N::low_run, N::low_run == 32);
    if constexpr (S::high > 0) p.high += row_tile * k_tiles * F::high_bytes + piece(N::high_run, false);
    if constexpr (S::scales > 0) p.scales += row_tile * (k_tiles / F::tiles) * F::scales_bytes + piece(N::scale_run, S::super);
    if constexpr (S::deltas > 0) {
        const i64 first = row_tile * (k_tiles / F::tiles);
        if (lane >= N::scales) p.scales = p.deltas + first * F::deltas_bytes + quarter * S::deltas + (lane - N::scales) * 16;
    }
    return p;
}

// Starts the copies of stage `index` of a strip into a ring slot.
template <class S>
SP_DEVICE void fetch_stage(u32 slot, const Planes& p, i32 index, int lane) {
    using F = Packing<S::format>;
    using N = Pieces<S>;
    const auto copy = [&](u32 to, const u8* from, int bytes) {
#pragma unroll
        for (int i = 0; i < (bytes + 511) / 512; ++i)
            if (bytes - i * 512 >= 512 || lane < (bytes - i * 512) / 16)
                cp_async_16(to + i * 512 + lane * 16, from + i * (N::STRIPS * 512));
    };
    copy(slot, p.low + i64(index) * (S::tiles * F::low_bytes), S::low);
    if constexpr (S::high > 0) copy(slot + S::high_at, p.high + i64(index) * (S::tiles * F::high_bytes), S::high);
    if constexpr (S::scales > 0) {
        const bool delta = S::deltas > 0 && lane >= N::scales;
        const u8* scales = p.scales + i64(index) * (delta ? F::deltas_bytes : S::spans * F::scales_bytes);
        if (lane < N::scales + N::deltas) cp_async_16(slot + S::scales_at + lane * 16, scales);
    }
}

// The codes of tile t of a stage.
template <class S>
SP_DEVICE void load_codes(Quants<S::format>& q, const u8* slot, int t, int lane) {
    using F = Packing<S::format>;
    const u8* low = slot + t * (S::low / S::tiles);
    if constexpr (F::low_word == 8) {
        const uint2 words = reinterpret_cast<const uint2*>(low)[lane];
        q.low[0].x = words.x, q.low[0].y = words.y;
    } else {
#pragma unroll
        for (int p = 0; p < F::low_parts; ++p) q.low[p] = reinterpret_cast<const uint4*>(low + p * 512)[lane];
    }
    load_high<S::format>(q, slot + S::high_at + t * (S::high / S::tiles), lane);
}
