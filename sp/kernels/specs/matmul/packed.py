"""Pack and unpack weights in fragment order, expand their scales, gather rows of an embedding table. Define: FORMAT."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec
from sp.quant import FORMATS, kernel_formats, packing_of

KINDS = tuple(fmt.ggml_type for fmt in kernel_formats())  # ggml type ids of all formats that matrix kernels read

PACK = KernelSpec(
    source="pack.cu",
    entry="pack_rows",
    args=(
        "const u8* rows", "u8* low", "u8*? high", "u8*? scales", "u8*? deltas", "i32 first_tile", "i32 count",
        "i32 k_tiles",
    ),
    threads=128,
    variants=tuple({"FORMAT": kind} for kind in KINDS),
)  # fmt: skip

UNPACK = KernelSpec(
    source="unpack.cu",
    entry="unpack_tiles",
    args=(
        "const u8* low", "const u8*? high", "const u8*? scales", "const u8*? deltas", "const u32*? words",
        "f32*? values", "u16*? rounded", "i32 rows", "i32 k_tiles",
    ),
    threads=128,
    variants=tuple({"FORMAT": kind, "ROUNDED": rounded} for kind in KINDS for rounded in (0, 1)),
)  # fmt: skip

EXPAND_SCALES = KernelSpec(
    source="expand_scales.cu",
    entry="expand_scales",
    args=("const u8* scales", "const u8*? deltas", "u32* words", "i64 count", "i32 k_tiles"),
    threads=256,
    variants=tuple({"FORMAT": kind} for kind in KINDS if not packing_of(kind).plain),
)

GATHER_ROWS = KernelSpec(
    source="gather_rows.cu",
    entry="gather_rows",
    args=("const i32* ids", "const u8* table", "f32* y", "i32 rows", "i32 width"),
    threads=128,
    variants=tuple({"FORMAT": kind} for kind, fmt in FORMATS.items() if fmt.packing),
    pdl=True,
)
