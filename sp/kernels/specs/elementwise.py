"""Row and elementwise kernels between the matrices."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

RMS_NORM = KernelSpec(
    source="rms_norm.cu",
    entry="rms_norm",
    args=("const f32* x", "const f32* weight", "u16*? y", "f32*? y_f32", "f32 eps"),
    threads=lambda defines: min(256, -(-int(defines["COLS"]) // 128) * 32),
    variants=tuple({"COLS": cols} for cols in (5120, 1024, 256)),
    pdl=True,
)

SWIGLU = KernelSpec(
    source="swiglu.cu",
    entry="swiglu",
    args=("const u16* gate", "const u16* up", "u16* y", "i64 steps"),
    threads=256,
)

BIAS_THREADS = 128
BIAS_EACH = 8
"""Values of a thread."""

ADD_BIAS = KernelSpec(
    source="add_bias.cu",
    entry="add_bias",
    args=("const f32* x", "const f32* bias", "u16* y", "i32 cols"),
    threads=BIAS_THREADS,
    pdl=True,
)
