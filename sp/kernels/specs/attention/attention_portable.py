"""Causal attention of many queries over pages on mma.sync tensor cores."""

from __future__ import annotations

from collections.abc import Mapping

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.attention.score_rule import RULES

KEYS = 64  # keys per tile
TUNED = {64: (2, 3), 128: (2, 3), 256: (1, 2)}
"""16-row slices of a warp and tiles of the ring, by head size; two blocks fit on a multiprocessor of 228 KiB."""
WARPS = 4
NO_RULE: Mapping[str, int] = {}


def variant(head_dim: int, rule: Mapping[str, int] = NO_RULE) -> dict[str, int]:
    """Return the defines of a head size and a rule of scores; see ``attention_portable.cu``."""
    slices, slots = TUNED[head_dim]
    if "WINDOW" in rule or "SOFTCAP" in rule:  # these need the registers of a second slice
        slices = 1
    return {"HEAD_DIM": head_dim, "WARPS": WARPS, "SLICES": slices, "SLOTS": slots, **rule}


def queries(defines: Defines) -> int:
    """Return the query rows of a block."""
    return 16 * WARPS * int(defines["SLICES"])


def _shared_bytes(defines: Defines) -> int:
    """Return the bytes of queries, and of a ring of tiles of keys."""
    d, slots = int(defines["HEAD_DIM"]), int(defines["SLOTS"])
    return 2 * d * (queries(defines) + slots * KEYS)


ATTENTION_PORTABLE = KernelSpec(
    source="attention_portable.cu",
    entry="attention_portable",
    args=(
        "const f16* q", "const u8* k_pages", "const u8* v_pages", "const i32* table", "const i32*? counts",
        "const i32*? indices", "u16* out", "f32*? lse", "const i32*? stored", "i32 more", "i32 n", "i32 heads",
        "i32 kv_heads", "i32 width", "f32 scale", "const i32*? reach", "f32 cap", "const f32*? sinks",
    ),
    threads=32 * WARPS,
    variants=(
        *(variant(d) for d in (64, 128, 256)),
        *(variant(d, rule) for d, rule in RULES),
    ),
    smem=_shared_bytes,
)  # fmt: skip
