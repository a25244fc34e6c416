// Hides the padding tokens of a pass of fixed size from the state of a Gated DeltaNet layer.
//
//   hide_padding  alpha[t, h] = beta[t, h] = HIDDEN for t >= *real: no decay, nothing written, whatever k and v are
//   keep_taps     history[j, c] = x[*real - 3 + j, c] for j < 3
//
// With alpha = HIDDEN the decay exp(a softplus(alpha + dt_bias)) is 1, with beta = HIDDEN the strength sigmoid(beta) is 0.
//
// Layouts: alpha, beta f32 (tokens, heads); x bf16 (tokens, channels), inputs of the convolution; history f32
//   (3, channels); real i32 (1,), 3 <= *real <= tokens.
// Launch: a thread a value of alpha, of history; 256 a block. keep_taps comes after the kernel that writes history. sm_80
//   and newer.
#include "pdl.cuh"

#define HIDDEN -1e30f

extern "C" __global__ void __launch_bounds__(256)
    hide_padding(f32* alpha, f32* beta, const i32* real, i32 tokens, i32 heads) {
    pdl_launch_dependents();
    pdl_wait();
    const i64 at = i64(blockIdx.x) * 256 + threadIdx.x;
    if (at < i64(*real) * heads || at >= i64(tokens) * heads) return;
    alpha[at] = beta[at] = HIDDEN;
}

extern "C" __global__ void __launch_bounds__(256)
    keep_taps(const u16* x, f32* history, const i32* real, i32 channels) {
    pdl_launch_dependents();
    pdl_wait();
    const i32 at = blockIdx.x * 256 + threadIdx.x;
    if (at >= 3 * channels) return;
    history[at] = f32_from_bf16(x[i64(*real - 3) * channels + at]);
}
