"""Kernels of mixtures of experts around their products. Define of `ROUTE`: EACH, logits of a lane."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

ROUTE_TOKENS = 4
"""Of a block, a warp each."""
MOST_EXPERTS = 512
MOST_USED = 32

ROUTE = KernelSpec(
    source="route.cu",
    entry="route",
    args=("const f32* logits", "i32* experts", "f32* weights", "i32 tokens", "i32 count", "i32 used", "i32 normalised"),
    threads=32 * ROUTE_TOKENS,
    variants=tuple({"EACH": each} for each in (4, 8, 16)),
)

SORT_SLOTS = KernelSpec(
    source="sort_slots.cu",
    entry="sort_slots",
    args=("const i32* experts", "i32* places", "i32* owners", "u32* blocks", "i32 slots", "i32 count", "i32 block"),
    threads=1024,
)

SCATTER_ROWS = KernelSpec(
    source="expert_rows.cu",
    entry="scatter_rows",
    args=("const u16* h", "const i32* places", "u16* sorted", "i32 used", "i32 cols8"),
    threads=128,
)

COMBINE_ROWS = KernelSpec(
    source="expert_rows.cu",
    entry="combine_rows",
    args=(
        "const u16* y",
        "const i32* places",
        "const f32* weights",
        "const u16*? h",
        "const f32*? mix",
        "const u16*? shared",
        "f32* x",
        "i32 used",
        "i32 cols8",
    ),
    threads=128,
)
