"""Causal attention over pages on mma.sync tensor cores: many queries, or a few split over a long cache."""

from __future__ import annotations

from sp.kernels.launch import Defines, Kernel

KEYS = 64
"""Keys of a tile."""
TUNED = {64: (2, 3), 128: (2, 3), 256: (1, 2)}
"""16-row slices of a warp and tiles of the ring, by head size; two blocks fit a multiprocessor of 228 KiB."""
SHORTEST_SPLIT = 256
"""Fewest keys of a split, as in ``split_range.cuh``."""
COMBINE_ROWS = 4
"""Rows a block of attention_combine sums."""
PACKED_PITCH = {64: 48, 128: 80, 256: 144}
"""Bytes from row to row of a packed tile in shared memory."""


def variant(head_dim: int, packed: bool, split: bool = False) -> dict[str, int]:
    """Defines of a head size and page format; see ``attention_portable.cu``."""
    slices, slots = TUNED[head_dim]
    return {"HEAD_DIM": head_dim, "Q4": int(packed), "SLICES": slices, "SLOTS": slots, "SPLIT": int(split)}


def queries(defines: Defines) -> int:
    """Query rows of a block."""
    return 64 * int(defines["SLICES"])


def _shared_bytes(defines: Defines) -> int:
    d, slots = int(defines["HEAD_DIM"]), int(defines["SLOTS"])
    tile = KEYS * 2 * d
    tiles = tile + slots * KEYS * PACKED_PITCH[d] if defines["Q4"] else slots * tile
    return queries(defines) * 2 * d + tiles


ATTENTION_PORTABLE = Kernel(
    source="attention_portable.cu",
    entry="attention_portable",
    args=(
        "const f16* q",
        "const u8* k_pages",
        "const u8* v_pages",
        "const i32* table",
        "const i32*? counts",
        "const i32*? indices",
        "u16* out",
        "f32*? lse",
        "i32 n",
        "i32 tokens",
        "i32 heads",
        "i32 kv_heads",
        "i32 width",
        "f32 scale",
    ),
    threads=128,
    variants=tuple(variant(d, packed) for d in (128, 256) for packed in (False, True)),
    smem=_shared_bytes,
)

ATTENTION_SPLIT = Kernel(
    source="attention_portable.cu",
    entry="attention_split",
    args=(
        "const f16* q",
        "const u8* k_pages",
        "const u8* v_pages",
        "const i32* table",
        "const i32*? tokens_at",
        "i32 tokens",
        "f32* partial",
        "i32 n",
        "i32 heads",
        "i32 kv_heads",
        "f32 scale",
    ),
    threads=128,
    variants=tuple(variant(d, packed, split=True) for d in (128, 256) for packed in (False, True)),
    smem=_shared_bytes,
)

ATTENTION_COMBINE = Kernel(
    source="attention_combine.cu",
    entry="attention_combine",
    args=(
        "const f32* partial",
        "const u16*? wide",
        "u16* out",
        "const i32*? tokens_at",
        "i32 tokens",
        "i32 splits",
        "i32 rows",
        "i32 n",
        "i32 heads",
        "i32 kv_heads",
    ),
    threads=32 * COMBINE_ROWS,
    variants=({"HEAD_DIM": 256, "ROTATE": 1, "FINISH": 1}, {"HEAD_DIM": 128, "ROTATE": 0, "FINISH": 0}),
)
