"""Apply a bias and penalties to the logits of some tokens."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

BIASED_LOGITS = KernelSpec(
    source="biased_logits.cu",
    entry="biased_logits",
    args=("const i32* ids", "const f32* biases", "const f32* repeats", "const f32* shifts", "f32* y", "i32 n"),
    threads=256,
)
