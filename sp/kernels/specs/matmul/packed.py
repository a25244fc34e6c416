"""Weights into and out of fragment order, their expanded scales, and rows of an embedding table. Define: FORMAT."""

from __future__ import annotations

from sp.kernels.launch import Kernel

KINDS = (1, 2, 8, 12, 13, 14, 30)
"""ggml type ids of every packed format."""

PACK = Kernel(
    source="pack.cu",
    entry="pack_rows",
    args=(
        "const u8* rows",
        "u8* low",
        "u8*? high",
        "u8*? scales",
        "u8*? deltas",
        "i32 first_tile",
        "i32 count",
        "i32 k_tiles",
    ),
    threads=128,
    variants=tuple({"FORMAT": kind} for kind in KINDS),
)

UNPACK = Kernel(
    source="unpack.cu",
    entry="unpack_tiles",
    args=(
        "const u8* low",
        "const u8*? high",
        "const u8*? scales",
        "const u8*? deltas",
        "const u32*? words",
        "f32*? values",
        "u16*? rounded",
        "i32 rows",
        "i32 k_tiles",
    ),
    threads=128,
    variants=tuple({"FORMAT": kind, "ROUNDED": rounded} for kind in KINDS for rounded in (0, 1)),
)

EXPAND_SCALES = Kernel(
    source="expand_scales.cu",
    entry="expand_scales",
    args=("const u8* scales", "const u8*? deltas", "u32* words", "i64 count", "i32 k_tiles"),
    threads=256,
    variants=tuple({"FORMAT": kind} for kind in KINDS if kind not in (1, 30)),
)

GATHER_ROWS = Kernel(
    source="gather_rows.cu",
    entry="gather_rows",
    args=("const i32* ids", "const u8* table", "f32* y", "i32 rows", "i32 width"),
    threads=128,
    variants=tuple({"FORMAT": kind} for kind in (0, *KINDS)),
    pdl=True,
)
