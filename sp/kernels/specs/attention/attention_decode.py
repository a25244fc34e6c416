"""Attention of few query rows over a long paged cache of packed keys or values, split over the cache (split-KV)."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.attention.page_rows import (
    F16_ROWS,
    PAIRS,
    Q8_ROWS,
    RECENT,
    ROOM,
    ROOMY,
    Formats,
    row_bytes,
)

HEAD_DIMS = 64, 128, 256
GROUP_ROWS, MOST_GROUPS = 16, 2
"""Most query rows per kv head that a block takes, and groups of so many that are faster than ``attention_split.cu``."""
WARPS = {64: (16, 16), 128: (16, 12), 256: (12, 8)}
"""By head_dim: warps for up to 8 query rows and for up to 16, as many as have registers."""


def variant(head_dim: int, formats: Formats, rows: int, roomy: bool = False, recent: bool = False) -> dict[str, int]:
    """Return the defines for `rows` query rows per kv head; see ``attention_decode.cu``. `roomy`: a block may have 224
    KiB of shared memory, as on sm_90 and sm_100; otherwise 99 KiB must do. `recent`: the cache has exact rows of the
    newest tokens."""
    wide, tiles = head_dim == 256 and (F16_ROWS in formats or Q8_ROWS in formats), 1 if rows <= 8 else 2
    found = {
        "HEAD_DIM": head_dim,
        "K_FORMAT": formats[0],
        "V_FORMAT": formats[1],
        "TILES": tiles,
        "WARPS": WARPS[head_dim][tiles - 1] if roomy else 4 if wide else 8,
        "SLOTS": 4,
    }
    while _shared_bytes(found) > (ROOMY if roomy else ROOM):
        if found["SLOTS"] > 3 or found["WARPS"] <= 8:
            found["SLOTS"] -= 1
        else:
            found["WARPS"] -= 4
    return found | ({"RECENT": 1} if recent else {})


def _pitch(fmt: int, head_dim: int) -> int:
    """Return the bytes between rows of a slot: for packed rows an odd multiple of 16, which avoids bank conflicts."""
    if fmt == F16_ROWS:
        return 2 * head_dim
    return (-(-row_bytes(fmt, head_dim) // 16) | 1) * 16


def _shared_bytes(defines: Defines) -> int:
    d, tiles, warps = (int(defines[name]) for name in ("HEAD_DIM", "TILES", "WARPS"))
    formats = int(defines["K_FORMAT"]), int(defines["V_FORMAT"])
    queries = tiles * d // 16 * 264 if formats[0] != F16_ROWS else 0
    ring = warps * int(defines["SLOTS"]) * 16 * max(_pitch(fmt, d) for fmt in formats)
    states = warps * 32 * d // 16 * 16 + 8 * tiles * (d + 8) * 4
    return max(ring + queries, states)


ATTENTION_DECODE = KernelSpec(
    source="attention_decode.cu",
    entry="attention_decode",
    args=(
        "const f16* q", "const u8* k_pages", "const u8* v_pages", "const i32* table", "const i32*? tokens", "i32 more",
        "const u64*? seen", "f16* partial", "f32* states", "i32 n", "i32 heads", "i32 kv_heads", "f32 scale",
    ),
    threads=lambda defines: 32 * int(defines["WARPS"]),
    variants=tuple(
        variant(d, formats, rows, roomy, recent=formats == RECENT)
        for d in HEAD_DIMS
        for formats in (*PAIRS[1:], RECENT)
        for rows, roomy in ((8, False), (8, True), (GROUP_ROWS, True))
    ),
    smem=_shared_bytes,
    pdl=True,
)  # fmt: skip
