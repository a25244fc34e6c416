"""The portable prefill matmul. Defines: FORMAT (ggml type id), MODE of the output, and the shape of its tile."""

from __future__ import annotations

from sp.kernels.launch import Defines, Kernel

STORED = {"bf16": 0, "f32": 1, "gated": 2}
WIDE = {"SLICES": 2, "COLUMNS": 16, "WARPS_M": 4, "WARPS_N": 1, "STAGES": 3, "BLOCKS": 2}
"""128 rows x 128 tokens, 48 KiB of shared memory, two blocks a multiprocessor."""
FORMATS = (12, 13, 14, 8, 2, 30, 1)


def tile(defines: Defines) -> tuple[int, int]:
    """Rows of y and tokens a block computes."""
    slices = int(defines["SLICES"]) // (2 if defines["MODE"] == STORED["gated"] else 1)
    return 16 * slices * int(defines["WARPS_M"]), 8 * int(defines["COLUMNS"]) * int(defines["WARPS_N"])


def threads(defines: Defines) -> int:
    """Of a block."""
    return 32 * int(defines["WARPS_M"]) * int(defines["WARPS_N"])


def smem(defines: Defines) -> int:
    """The ring of x."""
    return int(defines["STAGES"]) * tile(defines)[1] * 128


def variant(kind: int, stored: str) -> dict[str, int]:
    """Defines for a ggml type id and a way to store y."""
    return {"FORMAT": kind, "MODE": STORED[stored], **WIDE}


WEIGHT = ("const u8* low", "const u8*? high", "const u32*? scales")
SIZES = ("i32 tokens", "i32 rows", "i32 k")

BF16 = Kernel(
    source="gemm_portable.cu",
    entry="gemm_portable_bf16",
    args=("const u16* x", *WEIGHT, "u16* y", *SIZES),
    threads=threads,
    variants=tuple(variant(kind, "bf16") for kind in FORMATS),
    smem=smem,
)

F32 = Kernel(
    source="gemm_portable.cu",
    entry="gemm_portable_f32",
    args=("const u16* x", *WEIGHT, "f32* y", *SIZES, "i32 add"),
    threads=threads,
    variants=tuple(variant(kind, "f32") for kind in FORMATS),
    smem=smem,
)

GATED = Kernel(
    source="gemm_portable.cu",
    entry="gemm_portable_gated",
    args=("const u16* x", *WEIGHT, *(f"{word}2" for word in WEIGHT), "u16* y", *SIZES),
    threads=threads,
    variants=tuple(variant(kind, "gated") for kind in FORMATS),
    smem=smem,
)
