"""Mask the logits of tokens that are too unlikely relative to the likeliest (min-p)."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

LIKELY_LOGITS = KernelSpec(
    source="likely_logits.cu",
    entry="likely_logits",
    args=("const f32* logits", "const i32* best", "f32* y", "i32 vocab", "f32 bound"),
    threads=256,
)
