"""Gated DeltaNet: exclude the padding after the real tokens of a pass from the recurrent state."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

THREADS = 256

HIDE_PADDING = KernelSpec(
    source="delta_padding.cu",
    entry="hide_padding",
    args=("f32* alpha", "f32* beta", "const i32* real", "i32 tokens", "i32 heads"),
    threads=THREADS,
    pdl=True,
)

KEEP_TAPS = KernelSpec(
    source="delta_padding.cu",
    entry="keep_taps",
    args=("const u16* x", "f32* history", "const i32* real", "i32 channels"),
    threads=THREADS,
    pdl=True,
)
