// Derived from the defines of gemv.cu: the forms of the inputs and the layout of shared memory.
#pragma once
#include "format_set.cuh"
#include "strip_input.cuh"
#include "one_input.cuh"
#include "weights.cuh"

// Whether a stage of the format has 256 inputs, which a lone token's are multiplied by in integers (strip_one.cuh):
// super-blocks, and blocks of 32 where they make whole stages.
template <int F>
constexpr bool WHOLE = Packing<F>::super || (K % 256 == 0 && Packing<F>::group == 32);
template <int F>
using Stage = Slot<F, STAGE_ROWS, WHOLE<F> ? 256 / TILE_K : 1>;

constexpr FormatSet FORMATS_HELD = format_set<Stage>();
constexpr bool SUPER = FORMATS_HELD.super, OTHER = FORMATS_HELD.other;
constexpr bool ONE = TOKENS == 1 && SUPER, MANY = TOKENS > 1 || OTHER;  // which forms of the inputs are needed
constexpr bool ONE32 = FORMATS_HELD.middles, ONE16 = FORMATS_HELD.halves;
constexpr bool WITH32 = TOKENS > 1 && FORMATS_HELD.minima, WITH16 = TOKENS > 1 && ONE16;
constexpr int NT = (TOKENS + 7) / 8, ALL_WARPS = WARPS * GROUPS, CHUNKS = (K + 127) / 128;
constexpr int PITCH = 2 * K + (TOKENS > 1 ? 64 : 0);
constexpr int FIRST = 1;  // slots filled before the inputs are read
constexpr bool EAGER_NORM = NORM && ONE && K / 256 <= ALL_WARPS;  // each warp norms one super-block
constexpr int SLOT = FORMATS_HELD.bytes;
// Shared memory, in bytes; sp/kernels/specs/matmul/gemv.py counts the same.
constexpr int RING_AT = 0;
constexpr int X_AT = RING_AT + ALL_WARPS * STAGES * SLOT;
constexpr int SUMS32_AT = X_AT + (MANY ? TOKENS * PITCH : 0);
constexpr int SUMS16_AT = SUMS32_AT + (WITH32 ? K / 256 * TOKENS * 32 : 0);
constexpr int ONE_AT = SUMS16_AT + (WITH16 ? K / 256 * TOKENS * 64 : 0);
constexpr int ONE_SUMS32_AT = ONE_AT + (ONE ? K / 256 * ONE_BYTES : 0);
constexpr int ONE_SUMS16_AT = ONE_SUMS32_AT + (ONE && ONE32 ? K / 256 * 32 : 0);
constexpr int ONE_FACTORS_AT = ONE_SUMS16_AT + (ONE && ONE16 ? K / 256 * 64 : 0);
constexpr int PARTIAL_AT = ONE_FACTORS_AT + (ONE ? (K / 256 + 3) / 4 * 16 : 0);
constexpr int PARTIAL = TOKENS * 20;  // floats of a warp: [token][16 rows], 20 apart so that a warp writes to 32 banks
constexpr int PARTS = EPILOGUE == EPILOGUE_SWIGLU ? 2 : 1;   // gate and up meet together
constexpr int BUFFERS = TOKENS < 8 ? 4 : 2;  // strips of a group that may be under way
constexpr int MEETING_AT = PARTIAL_AT + BUFFERS * GROUPS * PARTS * WARPS * PARTIAL * 4;
constexpr int MAIL = 80;  // bytes, see gemv_pair.cuh
constexpr int MAIL_AT = MEETING_AT + (BUFFERS * GROUPS * 8 + 15) / 16 * 16;
constexpr int SQUARES_AT = MAIL_AT + (SPLIT > 1 ? BUFFERS * GROUPS * MAIL : 0);
constexpr int FACTOR_AT = SQUARES_AT + (NORM ? TOKENS * CHUNKS * 4 : 0);  // CHUNKS: of 128 inputs

// Which of the inputs this block takes.
SP_DEVICE int half_of_pair() { return SPLIT > 1 ? blockIdx.x % SPLIT : 0; }

extern __shared__ __align__(128) u8 shared[];
