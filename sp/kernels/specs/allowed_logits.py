"""Mask logits to the tokens that a constraint allows."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

ALLOWED_LOGITS = KernelSpec(
    source="allowed_logits.cu",
    entry="allowed_logits",
    args=("const f32* logits", "const u32* words", "f32* y", "i32 vocab"),
    threads=256,
)
