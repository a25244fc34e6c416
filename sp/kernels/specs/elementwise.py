"""Row and elementwise kernels between the matrix products."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

NORM_WARPS = 4  # rows per block if each has one warp


def norm_rows(defines: Defines) -> int:
    """Return the rows per block of `RMS_NORM`.

    >>> norm_rows({"COLS": 576}), norm_rows({"COLS": 5120})
    (4, 1)
    """
    return NORM_WARPS if int(defines["COLS"]) <= 1024 else 1


def _norm_threads(defines: Defines) -> int:
    wide = min(256, -(-int(defines["COLS"]) // 128) * 32)
    return 32 * NORM_WARPS if norm_rows(defines) > 1 else wide


RMS_NORM = KernelSpec(
    source="rms_norm.cu",
    entry="rms_norm",
    args=("const f32* x", "const f32* weight", "u16*? y", "f32*? y_f32", "i32 rows", "f32 eps"),
    threads=_norm_threads,
    variants=tuple({"COLS": cols} for cols in (5120, 1024, 576, 256)),
    pdl=True,
)

SWIGLU = KernelSpec(
    source="swiglu.cu", entry="swiglu", args=("const u16* gate", "const u16* up", "u16* y", "i64 steps"), threads=256
)

BIAS_THREADS = 128
BIAS_EACH = 8  # values per thread
MOST_BIASES = 3  # most arrays of one launch

ADD_BIAS = KernelSpec(
    source="add_bias.cu",
    entry="add_bias",
    args=(
        *("const f32* x0", "const f32* bias0", "u16* y0", "i32 rows0", "i32 cols0"),
        *("const f32*? x1", "const f32*? bias1", "u16*? y1", "i32 rows1", "i32 cols1"),
        *("const f32*? x2", "const f32*? bias2", "u16*? y2", "i32 rows2", "i32 cols2"),
    ),
    threads=BIAS_THREADS,
    pdl=True,
)
