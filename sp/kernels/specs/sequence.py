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
