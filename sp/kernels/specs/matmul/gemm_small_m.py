"""The small_m matrix products, of 9 to 32 tokens.

Defines: WIDTH, TOKENS, FORMATS, EPILOGUE, WARPS, STAGES, HEADS, see gemm_small_m.cu."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemv import CAPACITY
from sp.kernels.specs.matmul.weights import WEIGHT_ARGS
from sp.quant import format_bits, packings_in

__all__ = ["CAPACITY", "GEMM_SMALL_M", "HELD", "piece_bytes", "slot_bytes", "smem"]

HELD = (16, 24, 32)  # capacities in tokens of the kernel's variants
MOST_STAGES = 6


def slot_bytes(formats: int) -> int:
    """Return the bytes of a row tile of 16 rows in a ring slot, which holds two."""
    return max(p.stage_bytes for p in packings_in(formats))


def piece_bytes(tokens: int) -> int:
    """Return the bytes of the sums of a work tile of 32 rows."""
    return 128 * tokens


def fixed_bytes(defines: Defines) -> int:
    """Return the shared memory without the ring, as laid out in the source."""
    width, tokens = int(defines["WIDTH"]), int(defines["TOKENS"])
    packings = packings_in(int(defines["FORMATS"]))
    sums = 4 * any(p.super for p in packings) + 32 * any(p.super and p.minima for p in packings)  # and factors
    heads = int(defines["WARPS"]) * piece_bytes(tokens) if defines["HEADS"] else 0
    return tokens * (2 * width + 16) + width // 256 * tokens * sums + heads


def smem(defines: Defines) -> int:
    """Return the dynamic shared memory."""
    ring = int(defines["WARPS"]) * int(defines["STAGES"]) * 2 * slot_bytes(int(defines["FORMATS"]))
    return fixed_bytes(defines) + ring


def variant(
    width: int, tokens: int, formats: int, epilogue: Epilogue, warps: int, heads: bool, capacity: int = CAPACITY
) -> dict[str, int]:
    """Return the defines with the deepest ring that fits in `capacity`; STAGES < 2 means that none fits."""
    defines = {
        "WIDTH": width,
        "TOKENS": tokens,
        "FORMATS": formats,
        "EPILOGUE": epilogue,
        "WARPS": warps,
        "HEADS": int(heads),
    }
    stages = (capacity - fixed_bytes(defines)) // (warps * 2 * slot_bytes(formats))
    return defines | {"STAGES": min(stages, MOST_STAGES)}


GEMM_SMALL_M = KernelSpec(
    source="gemm_small_m.cu",
    entry="gemm_small_m",
    args=(
        "const u16* x", "i32 tokens", "i32 k", "i32 count", "f32*? heads", "f32*? partials", "u32*? arrived",
        *WEIGHT_ARGS,
    ),
    threads=lambda defines: 32 * int(defines["WARPS"]),
    variants=(
        variant(2560, 16, format_bits(12), SWIGLU, 12, True), variant(2560, 16, format_bits(12, 14), STORE, 8, True),
        variant(1536, 16, format_bits(12), ADD, 12, True), variant(2560, 16, format_bits(14), ADD, 8, True),
        variant(1280, 24, format_bits(12), SWIGLU, 12, True), variant(1280, 24, format_bits(12, 14), STORE, 8, True),
        variant(2560, 24, format_bits(14), ADD, 8, False), variant(1792, 32, format_bits(12), SWIGLU, 8, True),
        variant(512, 16, format_bits(13), STORE, 4, True, 99 * 1024),
        variant(512, 16, format_bits(8, 2, 1), STORE, 8, True, 99 * 1024),
        variant(256, 32, format_bits(30), SWIGLU, 4, True, 99 * 1024),
        variant(2560, 16, format_bits(11), SWIGLU, 8, True), variant(2560, 16, format_bits(23), SWIGLU, 8, True),
        variant(2560, 16, format_bits(20), ADD, 8, True),
        variant(512, 32, format_bits(11, 21, 23), STORE, 4, True, 99 * 1024),
        variant(512, 16, format_bits(3, 6, 7), STORE, 8, True, 99 * 1024),
        variant(512, 24, format_bits(20, 39), STORE, 8, True, 99 * 1024),
    ),
    smem=smem,
    pdl=True,
)  # fmt: skip
