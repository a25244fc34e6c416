"""Hopper prefill attention. Defines: D of a head, STAGES of the ring, a tile of keys or values each."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

BARRIER_BYTES = 256
MOST_STAGES = 8
CAPACITY = 227 * 1024
"""Shared memory a block of an sm_90 card can have."""


def keys(head_dim: int) -> int:
    """Keys of a tile."""
    return 64 if head_dim > 128 else 128


def smem(defines: Defines) -> int:
    """Queries, ring and barriers, as laid out in the source."""
    d = int(defines["D"])
    return 2 * d * (128 + int(defines["STAGES"]) * keys(d)) + BARRIER_BYTES


def variant(head_dim: int) -> dict[str, int]:
    """Defines with as many stages as fit, within reason."""
    defines = {"D": head_dim, "STAGES": 0}
    return defines | {"STAGES": min(MOST_STAGES, (CAPACITY - smem(defines)) // (2 * head_dim * keys(head_dim)))}


ATTENTION_SM90 = KernelSpec(
    source="attention_sm90.cu",
    entry="attention_sm90",
    args=(
        "map q_map",
        "map k_map",
        "map v_map",
        "const i32* table",
        "const i32*? counts",
        "const i32*? indices",
        "u16* out",
        "f32*? lse",
        "i32* next_tile",
        "i32 n",
        "i32 tokens",
        "i32 heads",
        "i32 group",
        "i32 section",
        "i32 early",
        "i32 width",
        "f32 scale",
    ),
    threads=384,
    variants=(variant(64), variant(128), variant(256)),
    arches="90a",
    smem=smem,
)
