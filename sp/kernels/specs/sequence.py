"""Counters of a sequence on the device, for decoding in CUDA graphs."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

ADVANCE_COUNTS = KernelSpec(
    source="sequence.cu",
    entry="advance_counts",
    args=("i32* counts", "i32 layers", "i32 tokens", "const i32*? more"),
    threads=64,
    pdl=True,
)

NEXT_STEP = KernelSpec(
    source="sequence.cu",
    entry="next_step",
    args=("const i32* chosen", "i32* current", "i64* position", "i32* history", "i32* step"),
    threads=1,
    pdl=True,
)

WINDOW_REACH = KernelSpec(
    source="sequence.cu",
    entry="window_reach",
    args=(
        "const i64* positions", "i64* places", "const i32*? stored", "i32 more", "i32 n", "i64 window", "i32 tree",
        "i32* reach",
    ),
    threads=128,
    pdl=True,
)  # fmt: skip
