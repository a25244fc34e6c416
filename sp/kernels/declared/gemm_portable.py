"""The portable prefill matmul. Defines: FORMAT (ggml type id), MODE of the output, and the shape of its tile."""

from __future__ import annotations

from sp.kernels.launch import Defines, Kernel

STORED = {"bf16": 0, "f32": 1, "gated": 2}
FORMATS = (12, 13, 14, 8, 2, 30, 1)
TALL = {"SLICES": 2, "COLUMNS": 16, "WARPS_M": 8, "WARPS_N": 1, "STAGES": 4, "BLOCKS": 1}
"""256 rows x 128 tokens, 64 KiB of shared memory, one block a multiprocessor: the least traffic."""
SMALL = {"SLICES": 2, "COLUMNS": 8, "WARPS_M": 4, "WARPS_N": 1, "STAGES": 4, "BLOCKS": 3}
"""128 rows x 64 tokens, 32 KiB, three blocks a multiprocessor: for products that few tall tiles cover."""
TALL_GAIN = 1.2
"""Rate of tall tiles over that of small ones where both fill the card, on an H200."""


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


def variant(kind: int, stored: str, shape: Defines) -> Defines:
    """Defines for a ggml type id, a way to store y, and TALL or SMALL."""
    return {"FORMAT": kind, "MODE": STORED[stored], **shape}


def shipped(stored: str) -> tuple[Defines, ...]:
    """Every format in tall tiles, the commonest in small ones too."""
    return (*(variant(kind, stored, TALL) for kind in FORMATS), variant(FORMATS[0], stored, SMALL))


WEIGHT = ("const u8* low", "const u8*? high", "const u32*? scales")
SIZES = ("i32 tokens", "i32 rows", "i32 k")

BF16 = Kernel(
    source="gemm_portable.cu",
    entry="gemm_portable_bf16",
    args=("const u16* x", *WEIGHT, "u16* y", *SIZES),
    threads=threads,
    variants=shipped("bf16"),
    smem=smem,
)

F32 = Kernel(
    source="gemm_portable.cu",
    entry="gemm_portable_f32",
    args=("const u16* x", *WEIGHT, "f32* y", *SIZES, "i32 add"),
    threads=threads,
    variants=shipped("f32"),
    smem=smem,
)

GATED = Kernel(
    source="gemm_portable.cu",
    entry="gemm_portable_gated",
    args=("const u16* x", *WEIGHT, *(f"{word}2" for word in WEIGHT), "u16* y", *SIZES),
    threads=threads,
    variants=shipped("gated"),
    smem=smem,
)
