"""Attention of few query rows over a long paged cache, split over the cache (split-KV)."""

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
    is_packed,
    row_bytes,
)

RING = {  # (head_dim, bits of the wider of keys and values): warps, and ring slots of 16 keys or values per warp
    (64, 16): (8, 4),
    (64, 8): (8, 4),
    (64, 5): (8, 4),
    (128, 16): (8, 3),
    (128, 8): (8, 4),
    (128, 5): (8, 4),
    (256, 16): (4, 3),
    (256, 8): (4, 4),
    (256, 5): (8, 4),
}  # chosen so that states and ring fit 99 KiB, the shared memory of a block on sm_86, sm_89 and sm_120
ROOMY_RING = {(256, 16): (8, 3), (256, 8): (8, 4)}  # where a block may have 224 KiB, as on sm_90 and sm_100
SPLIT_TOKENS = 256


def variant(
    head_dim: int, formats: Formats, rows: int, rotate: bool, finish: bool, roomy: bool = False, recent: bool = False
) -> dict[str, int]:
    """Return the defines for `rows` query rows per kv head; see ``attention_decode.cu``. `recent`: the cache has exact
    rows of the newest tokens."""
    key = head_dim, next((wide for wide in (F16_ROWS, Q8_ROWS) if wide in formats), 5)
    warps, slots = ROOMY_RING[key] if roomy and key in ROOMY_RING else RING[key]
    found = {
        "HEAD_DIM": head_dim,
        "K_FORMAT": formats[0],
        "V_FORMAT": formats[1],
        "TILES": 1 if rows <= 8 else 2,
        "WARPS": warps,
        "SLOTS": slots,
        "SPLIT_TOKENS": SPLIT_TOKENS,
        "ROTATE": int(rotate),
        "FINISH": int(finish),
    }
    if _shared_bytes(found) > (ROOMY if roomy else ROOM):  # float16 values need the ring of float16 keys
        found["SLOTS"] -= 1
    return found | ({"RECENT": 1} if recent else {})


def ring_variant(head_dim: int, rows: int, roomy: bool = False) -> dict[str, int]:
    """Return the defines for the exact rows of the newest tokens, which come before `variant` with `recent`."""
    return variant(head_dim, (F16_ROWS, F16_ROWS), rows, False, False, roomy) | {"RECENT": 2}


def state_floats(defines: Defines) -> int:
    """Return the floats of a split's state: outputs, references and totals."""
    return 128 * (int(defines["HEAD_DIM"]) // 16 + 1) * int(defines["TILES"])


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
        "const u16*? wide", "u16* out", "f32* partial", "u32* counters", "i32 n", "i32 heads", "i32 kv_heads",
        "f32 scale", "i32 all_parts",
    ),
    threads=lambda defines: 32 * int(defines["WARPS"]),
    variants=(
        *(
            variant(d, formats, rows, is_packed(formats), True)
            for d in (64, 128, 256)
            for formats in PAIRS
            for rows in (8, 16)
        ),
        *(variant(256, formats, rows, is_packed(formats), True, roomy=True) for formats in (PAIRS[0], PAIRS[3])
          for rows in (8, 16)),
        *(one for d in (64, 128, 256) for rows in (8, 16)
          for one in (variant(d, RECENT, rows, True, True, recent=True), ring_variant(d, rows))),
        *(ring_variant(256, rows, roomy=True) for rows in (8, 16)),
    ),
    smem=_shared_bytes,
    pdl=True,
)  # fmt: skip
