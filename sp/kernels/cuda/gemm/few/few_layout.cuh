// What the defines of gemm_few.cu decide: which forms of the inputs there are and where things lie in shared memory.
#pragma once
#include "strip.cuh"
#include "weights.cuh"

template <int A, int B>
constexpr int most = A > B ? A : B;
template <int F>
constexpr int slot_of = has<F> ? 2 * Stage<F>::bytes : 0;

constexpr bool SUPER = has<Q4_K> || has<Q5_K> || has<Q6_K>;
static_assert(!SUPER || !(has<Q8_0> || has<Q4_0> || has<BF16> || has<F16>), "stages of one length");
constexpr int STAGE_K = SUPER ? 256 : 64;  // inputs of a stage
constexpr bool MINIMA = has<Q4_K> || has<Q5_K>;  // for which sums of inputs are needed
constexpr int NT = TOKENS / 8;
constexpr int PITCH = 2 * WIDTH + 16;  // of a token: the 8 rows that ldmatrix reads at a time lie in different banks
constexpr int K_SLOT = most<most<slot_of<Q4_K>, slot_of<Q5_K>>, slot_of<Q6_K>>;
constexpr int SLOT = most<most<K_SLOT, slot_of<Q8_0>>, most<slot_of<Q4_0>, most<slot_of<BF16>, slot_of<F16>>>>;
// Shared memory, in bytes; sp/kernels/specs/matmul/gemm_few.py counts the same.
constexpr int X_AT = WARPS * STAGES * SLOT;
constexpr int FACTORS_AT = X_AT + TOKENS * PITCH;                              // f32 [super-block][token]
constexpr int SUMS_AT = FACTORS_AT + (SUPER ? WIDTH / 256 * TOKENS * 4 : 0);  // [super-block][token]: 8 as high and low bf16
constexpr int HEADS_AT = SUMS_AT + (MINIMA ? WIDTH / 256 * TOKENS * 32 : 0);
constexpr int PIECE = 2 * NT * 4;  // sums a lane holds of an item: [strip][8 tokens][4]

extern __shared__ __align__(128) u8 shared[];
