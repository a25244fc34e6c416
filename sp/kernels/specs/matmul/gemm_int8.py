"""The prefill matmul in eight bits, what rounds its inputs and what makes its scales. Define of all: FORMAT or COLS."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import STORE, STORE_F32, SWIGLU, Epilogue
from sp.quant import Q4_K, Packing, kernel_formats, packing_of
from sp.quant.packing import TILE

GROUP = 32
"""Inputs that share a scale, of those of a product."""
HELD = 128
"""Tokens are padded to a multiple of it, so that no copy of a tile must look where they end."""
MOST_NORMED = 8192
"""Inputs of a row that stays in registers between its norm and its rounding."""

WIDE = {"SLICES": 2, "COLUMNS": 16, "WARPS": 8, "BLOCKS": 1}
"""256 rows x 128 tokens: the least traffic."""
SMALL = {"SLICES": 2, "COLUMNS": 8, "WARPS": 4, "BLOCKS": 2}
"""128 rows x 64 tokens."""
SHAPES = (WIDE, SMALL)
EPILOGUES = (STORE, STORE_F32, SWIGLU)
"""Those it is compiled for; ADD is STORE_F32 with its argument `add`."""


def is_native(packing: Packing) -> bool:
    """Whether codes of a format, or the numbers that they stand for, are integers of a byte.

    Examples
    --------
    >>> from sp.quant import BF16, Q6_K
    >>> is_native(Q6_K.packing), is_native(BF16.packing)
    (True, False)
    """
    return not packing.plain and packing.tiled


def variant(kind: int, epilogue: Epilogue, shape: Defines) -> Defines:
    """Defines for a ggml type id, one of EPILOGUES and one of SHAPES."""
    packing = packing_of(kind)
    stages = 4 if packing.bits <= 4 else 3  # what 99 KiB of a multiprocessor of sm_86 hold
    columns = 8 if packing.group == 16 else shape["COLUMNS"]  # with two sums a group, more do not fit the registers
    return {"FORMAT": kind, "EPILOGUE": epilogue, **shape, "COLUMNS": columns, "STAGES": stages}


def tile(defines: Defines) -> tuple[int, int]:
    """Rows of y and tokens a block computes."""
    slices = int(defines["SLICES"]) // (2 if defines["EPILOGUE"] == SWIGLU else 1)
    return 16 * slices * int(defines["WARPS"]), 8 * int(defines["COLUMNS"])


def stage_bytes(defines: Defines) -> int:
    """Of the ring: codes and scales of the inputs, and planes and scales of the weights, of 64 inputs."""
    packing, tokens = packing_of(int(defines["FORMAT"])), tile(defines)[1]
    weight_rows = 16 * int(defines["SLICES"]) * int(defines["WARPS"])
    planes = weight_rows // TILE * (packing.low_bytes + packing.high_bytes)
    return tokens * (TILE + 16) + planes + weight_rows * 16


def smem(defines: Defines) -> int:
    """The ring, which results go through in the end."""
    return int(defines["STAGES"]) * stage_bytes(defines)


def threads(defines: Defines) -> int:
    """Of a block."""
    return 32 * int(defines["WARPS"])


KINDS = tuple(fmt.ggml_type for fmt in kernel_formats() if fmt.packing and is_native(fmt.packing))
"""ggml type ids of the formats that are multiplied in eight bits."""


def _shipped(epilogue: Epilogue) -> tuple[Defines, ...]:
    """Every format in wide tiles, the commonest in small ones too."""
    wide = (variant(kind, epilogue, WIDE) for kind in KINDS)
    return (*wide, variant(Q4_K.ggml_type, epilogue, SMALL))


INPUTS = ("const i8* codes", "const f32* pairs")
WEIGHT = ("const u8* low", "const u8*? high", "const f32* scales")
SIZES = ("i32 tokens", "i32 held", "i32 rows", "i32 k")

BF16 = KernelSpec(
    source="gemm_int8.cu",
    entry="gemm_int8_bf16",
    args=(*INPUTS, *WEIGHT, "u16* y", *SIZES),
    threads=threads,
    variants=_shipped(STORE),
    smem=smem,
)

F32 = KernelSpec(
    source="gemm_int8.cu",
    entry="gemm_int8_f32",
    args=(*INPUTS, *WEIGHT, "f32* y", *SIZES, "i32 add"),
    threads=threads,
    variants=_shipped(STORE_F32),
    smem=smem,
)

GATED = KernelSpec(
    source="gemm_int8.cu",
    entry="gemm_int8_gated",
    args=(*INPUTS, *WEIGHT, *(f"{word}2" for word in WEIGHT), "u16* y", *SIZES),
    threads=threads,
    variants=_shipped(SWIGLU),
    smem=smem,
)

INTEGER_SCALES = KernelSpec(
    source="integer_scales.cu",
    entry="integer_scales",
    args=("const u8* scales", "const u8*? deltas", "f32* words", "i64 count"),
    threads=256,
    variants=tuple({"FORMAT": kind} for kind in KINDS),
)

QUANTISE = KernelSpec(
    source="quantise_inputs.cu",
    entry="quantise_inputs",
    args=(
        "const f32*? x",
        "const u16*? narrow",
        "const f32*? weight",
        "i8* codes",
        "f32* pairs",
        "f32 eps",
        "i32 held",
    ),
    threads=lambda defines: min(256, -(-int(defines["COLS"]) // 128) * 32),
    variants=(
        {"COLS": 5120, "WIDE": 1, "NORM": 1},
        {"COLS": 5120, "WIDE": 0, "NORM": 0},
        {"COLS": 6144, "WIDE": 0, "NORM": 0},
        {"COLS": 17408, "WIDE": 0, "NORM": 0},
    ),
)
