"""The portable prefill matmul. Defines: FORMAT (ggml type id), EPILOGUE, and the shape of its tile."""

from __future__ import annotations

from dataclasses import dataclass

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import STORE, STORE_F32, SWIGLU, Epilogue
from sp.quant import Q4_K, kernel_formats

EPILOGUES = (STORE, STORE_F32, SWIGLU)  # the compiled ones; ADD is STORE_F32 with the argument `add`


@dataclass(frozen=True)
class Shape:
    """A tile: 32 rows times WARPS_M, 8 tokens times COLUMNS. `defines`: BLOCKS of them share a multiprocessor. `pace`:
    microseconds per K-chunk of 64 while 1, 2, ... BLOCKS of them run there, on an H200 with Q4_K."""

    defines: Defines
    pace: tuple[float, ...]


TALL = Shape({"SLICES": 2, "COLUMNS": 16, "WARPS_M": 8, "WARPS_N": 1, "STAGES": 4, "BLOCKS": 1}, (1.4,))
"""256 rows x 128 tokens, 64 KiB of shared memory: the least traffic."""
SMALL = Shape({"SLICES": 2, "COLUMNS": 8, "WARPS_M": 4, "WARPS_N": 1, "STAGES": 4, "BLOCKS": 3}, (0.9, 1.0, 1.3))
"""128 rows x 64 tokens, 32 KiB."""
THIN = Shape({"SLICES": 2, "COLUMNS": 4, "WARPS_M": 4, "WARPS_N": 1, "STAGES": 4, "BLOCKS": 4}, (0.65, 0.8, 0.92, 1.1))
"""128 rows x 32 tokens, 16 KiB."""
SHAPES = (TALL, SMALL, THIN)

MOST_PARTS = 16  # most splits of k, in split-K
START, PART, PARTIAL = 3.0, 0.3, 0.01
"""Microseconds to fill and drain a block's pipelines, to add a split of k at the end, to store one partial tile."""
MOST_TILES_IN_PARTS = 1024  # more tiles fill any GPU without splits


def tile(defines: Defines) -> tuple[int, int]:
    """Return the rows of y and tokens per block."""
    slices = int(defines["SLICES"]) // (2 if defines["EPILOGUE"] == SWIGLU else 1)
    return 16 * slices * int(defines["WARPS_M"]), 8 * int(defines["COLUMNS"]) * int(defines["WARPS_N"])


def tiles(defines: Defines, tokens: int, rows: int) -> int:
    """Return the number of tiles of a product."""
    block_rows, block_tokens = tile(defines)
    return -(-rows // block_rows) * -(-tokens // block_tokens)


def sums(defines: Defines) -> int:
    """Return the float32 sums per block."""
    return int(defines["SLICES"]) * int(defines["COLUMNS"]) * 4 * threads(defines)


def threads(defines: Defines) -> int:
    """Return the threads per block."""
    return 32 * int(defines["WARPS_M"]) * int(defines["WARPS_N"])


def smem(defines: Defines) -> int:
    """Return the bytes of the ring of x."""
    return int(defines["STAGES"]) * tile(defines)[1] * 128


def variant(kind: int, epilogue: Epilogue, shape: Shape) -> Defines:
    """Return the defines for a ggml type id, one of EPILOGUES and a tile shape."""
    return {"FORMAT": kind, "EPILOGUE": epilogue, **shape.defines}


def cost(shape: Shape, count: int, k_tiles: int, parts: int, processors: int) -> float:
    """Return the microseconds that the busiest multiprocessor needs for `count` tiles, each in `parts` splits of k."""
    if parts > 1 and (count > MOST_TILES_IN_PARTS or shape is TALL):  # tall tiles are for products with many tiles
        return float("inf")
    rounds, rest = divmod(-(-count * parts // processors), len(shape.pace))
    pace = rounds * shape.pace[-1] + (shape.pace[rest - 1] if rest else 0)
    joining = parts * (PART + PARTIAL * count) if parts > 1 else 0
    return pace * -(-k_tiles // parts) + START * (rounds + (rest > 0)) + joining


def shipped(epilogue: Epilogue) -> tuple[Defines, ...]:
    """Return every format in tall tiles, and the commonest in the other shapes too."""
    tall = (variant(fmt.ggml_type, epilogue, TALL) for fmt in kernel_formats())
    return (*tall, *(variant(Q4_K.ggml_type, epilogue, shape) for shape in SHAPES[1:]))


WEIGHT = ("const u8* low", "const u8*? high", "const u32*? scales")
SIZES = ("f32*? partial", "u32*? arrived", "i32 tokens", "i32 rows", "i32 k")

BF16 = KernelSpec(
    source="gemm_portable.cu",
    entry="gemm_portable_bf16",
    args=("const u16* x", *WEIGHT, "u16* y", *SIZES),
    threads=threads,
    variants=shipped(STORE),
    smem=smem,
)

F32 = KernelSpec(
    source="gemm_portable.cu",
    entry="gemm_portable_f32",
    args=("const u16* x", *WEIGHT, "f32* y", *SIZES, "i32 add"),
    threads=threads,
    variants=shipped(STORE_F32),
    smem=smem,
)

GATED = KernelSpec(
    source="gemm_portable.cu",
    entry="gemm_portable_gated",
    args=("const u16* x", *WEIGHT, *(f"{word}2" for word in WEIGHT), "u16* y", *SIZES),
    threads=threads,
    variants=shipped(SWIGLU),
    smem=smem,
)
