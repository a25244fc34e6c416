"""Hopper prefill attention. Defines: D of a head, STAGES of 32 KiB in the ring."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

STAGE_BYTES = 32768
BARRIER_BYTES = 256
CAPACITY = 227 * 1024
"""Shared memory a block of an sm_90 card can have."""


def smem(defines: Defines) -> int:
    """Queries, ring and barriers, as laid out in the source."""
    return 128 * int(defines["D"]) * 2 + int(defines["STAGES"]) * STAGE_BYTES + BARRIER_BYTES


def variant(head_dim: int) -> dict[str, int]:
    """Defines with as many stages as fit."""
    defines = {"D": head_dim, "STAGES": 0}
    return defines | {"STAGES": (CAPACITY - smem(defines)) // STAGE_BYTES}


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
    variants=(variant(128), variant(256)),
    arches="90a",
    smem=smem,
)
