"""The matrix products of decoding. Defines: K, TOKENS, FORMATS, NORM, EPILOGUE, a `Layout` and STAGES, see gemv.cu."""

from __future__ import annotations

from typing import NamedTuple

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU, Epilogue
from sp.kernels.specs.matmul.weights import WEIGHT_ARGS
from sp.quant import Packing, format_bits, packings_in

CAPACITY = 227 * 1024
"""Most shared memory of a block on sm_90 and sm_100; it is 163 KiB on sm_80, 99 KiB on sm_86, sm_89 and sm_120."""
MOST_STAGES = 12


class Layout(NamedTuple):
    """Division of a block: `groups` row tiles at a time, `warps` for each."""

    warps: int
    groups: int


def warps(defines: Defines) -> int:
    """Return the warps per block."""
    return int(defines["WARPS"]) * int(defines["GROUPS"])


def whole(p: Packing, k: int) -> bool:
    """Return True if a K-chunk has 256 inputs, which are multiplied in integers if there is one token: WHOLE in the
    source.

    >>> from sp.quant import BF16, IQ4_NL, Q6_K
    >>> [whole(fmt.packing, 1280) for fmt in (Q6_K, IQ4_NL, BF16)], whole(IQ4_NL.packing, 896)
    ([True, True, False], False)
    """
    return p.super or (k % 256 == 0 and p.group == 32)


def fixed_bytes(defines: Defines) -> int:
    """Return the shared memory without the ring, as laid out in the source."""
    k, tokens = int(defines["K"]), int(defines["TOKENS"])
    packings = packings_in(int(defines["FORMATS"]))
    wholes = [p for p in packings if whole(p, k)]
    super_blocks, many = k // 256, tokens > 1
    middles = any(p.super and p.minima for p in packings)  # these need sums of 32 inputs
    if not many:
        middles = any(p.group == 32 and (p.minima or p.counted) for p in wholes)
    sums = 32 * middles + 64 * any(p.group == 16 for p in packings)
    sums *= tokens * super_blocks
    total = tokens * (2 * k + 64 * many) if many or len(wholes) < len(packings) else 0
    if many:
        total += sums
    elif wholes:
        total += super_blocks * 544 + sums + -(-super_blocks // 4) * 16
    buffers = 4 if tokens < 8 else 2  # row tiles whose sums may be in flight
    total += buffers * warps(defines) * tokens * 80 * (2 if defines["EPILOGUE"] == SWIGLU else 1)
    total += -(-buffers * int(defines["GROUPS"]) * 8 // 16) * 16
    total += buffers * int(defines["GROUPS"]) * 80 * (defines["SPLIT"] != 1)
    total += tokens * -(-k // 128) * 4 if defines["NORM"] else 0
    return total + 4 * tokens


def slot_bytes(formats: int, k: int) -> int:
    """Return the bytes of a ring slot."""
    return max(p.stage_bytes * (256 // p.span if whole(p, k) else 1) for p in packings_in(formats))


def smem(defines: Defines) -> int:
    """Return the dynamic shared memory."""
    return fixed_bytes(defines) + warps(defines) * int(defines["STAGES"]) * slot_bytes(
        int(defines["FORMATS"]), int(defines["K"])
    )


def variant(
    k: int,
    tokens: int,
    formats: int,
    norm: bool,
    epilogue: Epilogue,
    layout: Layout,
    capacity: int = CAPACITY,
    split: int = 1,
) -> dict[str, int]:
    """Return the defines with the deepest ring that fits in `capacity`; STAGES < 2 means that none fits."""
    defines = {
        "K": k // split,
        "SPLIT": split,
        "TOKENS": tokens,
        "FORMATS": formats,
        "NORM": int(norm),
        "EPILOGUE": epilogue,
        "WARPS": layout.warps,
        "GROUPS": layout.groups,
    }
    stages = (capacity - fixed_bytes(defines)) // (warps(defines) * slot_bytes(formats, defines["K"]))
    return defines | {"STAGES": min(stages, MOST_STAGES)}


_WIDE, _MANY, _SMALL, _PAIRS = Layout(8, 3), Layout(8, 2), Layout(8, 1), Layout(4, 5)

GEMV = KernelSpec(
    source="gemv.cu",
    entry="gemv",
    args=(
        "const u16*? x", "const f32*? wide", "const f32*? norm", "f32 eps", "i32 tokens", "i32 count", *WEIGHT_ARGS,
    ),
    threads=lambda defines: 32 * warps(defines),
    variants=(
        variant(5120, 1, format_bits(12, 14), True, STORE, _WIDE),
        variant(5120, 1, format_bits(12), True, SWIGLU, _WIDE),
        variant(17408, 1, format_bits(14), False, ADD, _PAIRS, split=2),
        variant(6144, 1, format_bits(12), False, ADD, _WIDE),
        variant(5120, 1, format_bits(12), True, STORE, Layout(6, 4)),
        variant(5120, 8, format_bits(12), True, SWIGLU, _MANY),
        variant(1024, 8, format_bits(30), True, STORE, _SMALL, 99 * 1024),
        variant(1024, 16, format_bits(8), True, SWIGLU, _SMALL, 99 * 1024),
        variant(512, 4, format_bits(13, 2, 1), False, STORE, _SMALL, 99 * 1024),
        variant(5120, 1, format_bits(11, 21, 23), True, STORE, _WIDE),
        variant(5120, 1, format_bits(11), True, SWIGLU, _WIDE),
        variant(5120, 1, format_bits(21, 23), True, SWIGLU, _WIDE),
        variant(17408, 1, format_bits(23), False, ADD, _PAIRS, split=2),
        variant(17408, 1, format_bits(20), False, ADD, _WIDE, split=2),
        variant(1024, 1, format_bits(3, 6, 7, 39), True, STORE, _SMALL, 99 * 1024),
        variant(896, 1, format_bits(6, 7, 20, 39), True, STORE, _SMALL, 99 * 1024),
        variant(512, 8, format_bits(11, 21, 23), True, STORE, _SMALL, 99 * 1024),
        variant(512, 8, format_bits(3, 6, 7), True, SWIGLU, _SMALL, 99 * 1024),
        variant(512, 2, format_bits(20, 39), False, ADD, _SMALL, 99 * 1024),
    ),
    smem=smem,
    pdl=True,
)  # fmt: skip
