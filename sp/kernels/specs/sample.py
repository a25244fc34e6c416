"""Choose the next token on the device."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

BINS = 1024
CAPACITY = 8192  # most tokens that `SAMPLE_TOKEN` ranks by sorting
SLICE = 64 * 256  # logits per block of `TOP_LOGPROBS`
MOST_SLICES = 64

ARGMAX = KernelSpec(
    source="sample.cu",
    entry="argmax",
    args=("const f32* logits", "u64* best", "u32* arrivals", "i32* token", "u64*? bins", "i32 vocab"),
    threads=256,
    pdl=True,
)

TOP_LOGPROBS = KernelSpec(
    source="top_logprobs.cu",
    entry="top_logprobs",
    args=(
        "const f32* logits", "u64* candidates", "f32* sums", "u32* arrivals", "i32* tokens", "f32* log_probs",
        "i32 vocab", "i32 k",
    ),
    threads=256,
    pdl=True,
)  # fmt: skip

SAMPLE_BINS = KernelSpec(
    source="sample.cu",
    entry="sample_bins",
    args=("const f32* logits", "const i32* best", "u64* bins", "i32 vocab", "f32 temperature"),
    threads=256,
)

SAMPLE_TOKEN = KernelSpec(
    source="sample.cu",
    entry="sample_token",
    args=(
        "const f32* logits", "const i32* best", "const u64* bins", "u64* candidates", "u64* slices", "u32* counters",
        "const i64* seed", "i64* step", "i32* token", "i32 vocab", "f32 temperature", "i32 top_k", "f32 top_p",
    ),
    threads=1024,
    smem=8 * CAPACITY,
)  # fmt: skip
