"""Hopper prefill attention. Defines: D, the head size, and STAGES, tiles of keys or values in the ring."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.attention.score_rule import RULES

HEAD_DIMS = (64, 128, 256)
MOST_STAGES = 8
BARRIER_BYTES = 256
CAPACITY = 227 * 1024  # most shared memory of a block on sm_90


def tile_keys(head_dim: int) -> int:
    """Return the keys, or values, per stage."""
    return 64 if head_dim == 256 else 128


def smem(defines: Defines) -> int:
    """Return the bytes of queries, ring and barriers, as laid out in the source."""
    d = int(defines["D"])
    return 128 * d * 2 + int(defines["STAGES"]) * tile_keys(d) * d * 2 + BARRIER_BYTES


def variant(head_dim: int) -> dict[str, int]:
    """Return the defines with as many stages as fit."""
    defines = {"D": head_dim, "STAGES": 0}
    return defines | {"STAGES": min(MOST_STAGES, (CAPACITY - smem(defines)) // (tile_keys(head_dim) * head_dim * 2))}


ATTENTION_SM90 = KernelSpec(
    source="attention_sm90.cu",
    entry="attention_sm90",
    args=(
        "map q_map", "map k_map", "map v_map", "const i32* table", "const i32*? counts", "const i32*? indices",
        "u16* out", "f32*? lse", "i32* next_tile", "const i32*? stored", "i32 more", "i32 n", "i32 heads", "i32 group",
        "i32 section", "i32 early", "i32 width", "f32 scale", "const i32*? reach", "f32 cap", "const f32*? sinks",
    ),
    threads=384,
    variants=(*map(variant, HEAD_DIMS), *(variant(d) | rule for d, rule in RULES)),
    arches="90a",
    smem=smem,
)  # fmt: skip
