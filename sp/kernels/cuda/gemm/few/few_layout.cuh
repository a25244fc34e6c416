// Derived from the defines of gemm_small_m.cu: the forms of the inputs and the layout of shared memory.
#pragma once
#include "format_set.cuh"
#include "weights.cuh"

template <int F>
using Stage = Slot<F, STAGE_ROWS>;

constexpr FormatSet FORMATS_HELD = format_set<Stage>();
constexpr bool SUPER = FORMATS_HELD.super;
static_assert(!SUPER || !FORMATS_HELD.other, "stages of one length");
constexpr int STAGE_K = SUPER ? 256 : 64;  // inputs of a stage
constexpr bool MINIMA = FORMATS_HELD.minima;  // for which sums of inputs are needed
constexpr int NT = TOKENS / 8;
constexpr int PITCH = 2 * WIDTH + 16;  // of a token: the 8 rows that ldmatrix reads at a time lie in different banks
constexpr int SLOT = 2 * FORMATS_HELD.bytes;
// Shared memory, in bytes; sp/kernels/specs/matmul/gemm_small_m.py counts the same.
constexpr int X_AT = WARPS * STAGES * SLOT;
constexpr int FACTORS_AT = X_AT + TOKENS * PITCH;                              // f32 [super-block][token]
constexpr int SUMS_AT = FACTORS_AT + (SUPER ? WIDTH / 256 * TOKENS * 4 : 0);  // [super-block][token]: 8 as high and low bf16
constexpr int HEADS_AT = SUMS_AT + (MINIMA ? WIDTH / 256 * TOKENS * 32 : 0);
constexpr int PIECE = 2 * NT * 4;  // sums a lane holds of an item: [strip][8 tokens][4]

extern __shared__ __align__(128) u8 shared[];
