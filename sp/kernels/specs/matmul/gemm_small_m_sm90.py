"""The small_m matrix products of super-block formats on Hopper.

Defines: TOKENS, FORMATS, EPILOGUE, GROUPS, see the source."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU, Epilogue
from sp.kernels.specs.matmul.weights import WEIGHT_ARGS
from sp.quant import format_bits, packings_in

__all__ = ["CAPACITY", "GEMM_SMALL_M_SM90", "HELD"]

HELD = (8, 16, 24, 32, 40, 48, 56, 64)  # capacities in tokens of the kernel's variants
RESIDENT = 32  # up to so many tokens the inputs stay in shared memory; for more they are streamed through a ring
CAPACITY = 225 * 1024
"""Shared memory of every launch: a block's maximum on sm_90, less that of a concurrent block of a norm."""
GROUPS = 3  # warpgroups per block that multiply


def slot_bytes(formats: int) -> int:
    """Return the bytes of a ring slot."""
    return max(p.unit_bytes for p in packings_in(formats))


def streamed(tokens: int) -> bool:
    """Return True if the inputs are streamed through a ring that the warpgroups of a block share."""
    return tokens > RESIDENT


def chunks(width: int, tokens: int) -> int:
    """Return the K-chunks of the `width` inputs of a block, each with one barrier or, if they are streamed, two."""
    return width // 256 if streamed(tokens) else width // 512 + 1


def strip_tasks(tokens: int, epilogue: Epilogue) -> int:
    """Return the number of tasks in which a row tile of 16 rows is summed up."""
    each = 8 if not streamed(tokens) else tokens if epilogue == STORE else 16
    return -(-tokens // each)


def input_bytes(width: int, tokens: int, formats: int) -> int:
    """Return the shared memory of `width` inputs, with their means if a format has minima, and their barriers."""
    count = chunks(width, tokens)
    means = count if any(p.minima for p in packings_in(formats)) else 0
    return (width // 64 + means) * tokens * 128 + 8 * count * (2 if streamed(tokens) else 1)


def scale_bytes(tokens: int) -> int:
    """Return the shared memory of the factors of each token's results and of the tiles made from these, and its
    barrier."""
    return 8 + 8 * tokens


def depth(width: int, tokens: int, formats: int, places: int, groups: int = GROUPS) -> int:
    """Return the slots of a warpgroup's ring, as many as fit next to `places` for tasks."""
    room = CAPACITY - input_bytes(width, tokens, formats) - 4 * (places + 3) - 16 * groups - scale_bytes(tokens)
    return room // (groups * (slot_bytes(formats) + 16))


def variant(tokens: int, formats: int, epilogue: Epilogue, groups: int = GROUPS) -> dict[str, int]:
    """Return the defines of a variant."""
    return {"TOKENS": tokens, "FORMATS": formats, "EPILOGUE": epilogue, "GROUPS": groups}


_SHIPPED = (((12,), STORE), ((14,), STORE), ((12, 14), STORE), ((12,), ADD), ((14,), ADD), ((12,), SWIGLU))


def _threads(defines: Defines) -> int:
    return 128 * int(defines["GROUPS"]) + 128


GEMM_SMALL_M_SM90 = KernelSpec(
    source="gemm_small_m_sm90.cu",
    entry="gemm_small_m_sm90",
    args=(
        "u8* x", "const u16*? plain", "const f32*? wide", "const f32*? norm", "f32 eps", "u32* ready", "i32 tokens",
        "i32 k", "i32 width", "i32 depth", "i32 ahead", "i32 places", "i32 count", "f32* partials", "u8*? tiles",
        "const f32*? squares", "const f32*? next_norm", "f32*? next_squares", "const f32*? before", *WEIGHT_ARGS,
    ),
    threads=_threads,
    variants=(
        *(variant(tokens, format_bits(*kinds), epilogue) for tokens in HELD for kinds, epilogue in _SHIPPED),
        variant(16, format_bits(13), STORE), variant(32, format_bits(14), SWIGLU),
        variant(16, format_bits(11, 21, 23), STORE), variant(64, format_bits(11, 21, 23), STORE),
        variant(16, format_bits(11), SWIGLU), variant(16, format_bits(23), ADD),
    ),
    arches="90a",
    smem=CAPACITY,
    pdl=True,
)  # fmt: skip
