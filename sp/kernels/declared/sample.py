"""Choosing the next token on the device."""

from __future__ import annotations

from sp.kernels.launch import Kernel

ARGMAX = Kernel(
    source="sample.cu",
    entry="argmax",
    args=("const f32* logits", "u64* best", "u32* arrivals", "i32* token", "i32 vocab"),
    threads=256,
)

SAMPLE_TOKEN = Kernel(
    source="sample.cu",
    entry="sample_token",
    args=(
        "const f32* logits",
        "const i32* best",
        "const i64* seed",
        "i64* step",
        "i32* token",
        "i32 vocab",
        "f32 temperature",
        "i32 top_k",
        "f32 top_p",
    ),
    threads=1024,
)
