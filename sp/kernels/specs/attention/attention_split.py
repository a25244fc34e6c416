"""Attention of few queries under a mask over a long paged cache on mma.sync tensor cores, split over the cache."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.attention.page_rows import F16_ROWS, PAIRS, RECENT, ROOM, ROOMY, Formats, is_packed, row_bytes

P_PITCH = 128  # bytes between rows of probabilities
KEYS = 64  # least keys per split, and keys per tile, except for heads of 512


def variant(head_dim: int, formats: Formats, rows: int, roomy: bool = False) -> dict[str, int]:
    """Return the defines for `rows` query rows per kv head; see ``attention_split.cu``. `roomy`: a block may have 224
    KiB of shared memory, as on sm_90 and sm_100; otherwise 99 KiB must do."""
    tiles, packed = -(-rows // 16), is_packed(formats)
    wide, widest = head_dim == 256, head_dim == 512
    if widest:  # by the shared memory of a multiprocessor, which has one such block
        most, slots = 4 if roomy else 2 if packed else 1, 4 if roomy else 3 if packed else 2
    else:
        most = 9 if roomy else 8 if not wide else 4 if packed else 3
        if roomy and wide and not packed:  # nothing is unpacked repeatedly, so small blocks are faster
            most = 5 if tiles <= 5 else 4
        deep = roomy and (packed or not wide or _pairs(tiles, most) > 4)
        slots = 4 if deep else 2 if wide else 3
    sizes = {"HEAD_DIM": head_dim, "K_FORMAT": formats[0], "V_FORMAT": formats[1]}
    room = ROOMY if roomy else ROOM
    while True:
        pairs = _pairs(tiles, most)
        crowded = widest or (packed and F16_ROWS in formats)
        ahead, blocks = int(packed and roomy), 1 if crowded else max(1, 8 // pairs)
        found = {**sizes, "WARPS": 2 * pairs, "SLOTS": slots, "BLOCKS": blocks, "AHEAD": ahead}
        if _shared_bytes(found) <= room:
            return found
        if slots > 2 or (packed and most == 1):
            slots -= 1
        else:
            most -= 1


def ring_variant(defines: dict[str, int]) -> dict[str, int]:
    """Return the defines for the exact rows of the newest tokens, beside those for the packed ones: as many rows of
    queries in a block."""
    plain = {"K_FORMAT": F16_ROWS, "V_FORMAT": F16_ROWS, "AHEAD": 0, "SLOTS": 2, "RECENT": 2}
    return {**defines, **plain}


def _pairs(tiles: int, most: int) -> int:
    """Return the pairs of warps of a block, one pair per 16 rows, at most `most`."""
    pairs = -(-tiles // -(-tiles // most))
    return next(size for size in (1, 2, 3, 4, 5, 6, 8, 9) if size >= pairs)  # few variants to compile


def queries(defines: Defines) -> int:
    """Return the query rows of a block."""
    return 8 * int(defines["WARPS"])


def _shared_bytes(defines: Defines) -> int:
    """Return the bytes of queries, probabilities, unpacked tiles of packed formats, and the ring."""
    d, rows, slots = int(defines["HEAD_DIM"]), queries(defines), int(defines["SLOTS"])
    formats, keys = (int(defines["K_FORMAT"]), int(defines["V_FORMAT"])), 32 if d == 512 else KEYS
    tile = keys * 2 * d
    unit = keys * max(-(-row_bytes(fmt, d) // 16) * 16 for fmt in formats)
    unpacked = (1 + int(defines["AHEAD"])) * tile if is_packed(formats) else 0
    return rows * (2 * d + P_PITCH) + unpacked + slots * unit


def _recent(head_dim: int, rows: int, roomy: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Return both variants for a cache with exact rows of the newest tokens."""
    packed = {**variant(head_dim, RECENT, rows, roomy), "RECENT": 1}
    return packed, ring_variant(packed)


ATTENTION_SPLIT = KernelSpec(
    source="attention_split.cu",
    entry="attention_split",
    args=(
        "const f16* q", "const u8* k_pages", "const u8* v_pages", "const i32* table", "i32 blocks",
        "const i32*? tokens_at", "i32 tokens", "const u64*? seen", "i32 window", "f16* partial", "f32* states", "i32 n",
        "i32 heads", "i32 kv_heads", "f32 scale", "f32 cap", "const i32*? reach",
        "i32 all_parts",
    ),
    threads=lambda defines: 32 * int(defines["WARPS"]),
    variants=(
        *(one for sizes in ((256, 96, True), (256, 96, False), (128, 96, True), (64, 112, True), (512, 64, True),
                            (512, 64, False)) for one in _recent(*sizes)),
        *(variant(256, formats, rows, True) for rows in (96, 138, 384) for formats in PAIRS[:2]),
        *(variant(256, formats, 96, True) for formats in PAIRS[2:]),
        *(variant(256, formats, 96) for formats in PAIRS),
        *(variant(128, PAIRS[0], 64, roomy) for roomy in (False, True)),  # 16 queries, 32 heads on 8
        *(variant(128, formats, 96, True) for formats in PAIRS),
        *(variant(64, formats, 112, True) for formats in PAIRS),
        {**variant(256, PAIRS[0], 16, True), "SOFTCAP": 1},
        *(variant(512, formats, rows, roomy) for rows, roomy in ((16, True), (64, True), (64, False))
          for formats in PAIRS[:2]),
        *(variant(512, formats, 64, roomy) for roomy in (True, False) for formats in PAIRS[2:]),
    ),
    smem=_shared_bytes,
    pdl=True,
)  # fmt: skip

ATTENTION_COMBINE = KernelSpec(
    source="attention_combine.cu",
    entry="attention_combine",
    args=(
        "const f16* partial", "const f32* states", "const u16*? wide", "u16*? out", "u8*? tiles", "i32 held",
        "const i32*? tokens_at", "i32 tokens", "i32 window", "i32 splits", "i32 rows", "i32 n", "i32 heads",
        "i32 kv_heads", "const f32*? sinks", "const i32*? reach",
    ),
    threads=lambda defines: 256 if defines["HEAD_DIM"] == 512 else 128,
    variants=(
        {"HEAD_DIM": 256, "ROTATE": 1, "FINISH": 1}, {"HEAD_DIM": 128, "ROTATE": 0, "FINISH": 0},
        {"HEAD_DIM": 64, "ROTATE": 1, "FINISH": 1}, {"HEAD_DIM": 64, "ROTATE": 0, "FINISH": 1, "SINKS": 1},
        {"HEAD_DIM": 512, "ROTATE": 0, "FINISH": 1}, {"HEAD_DIM": 512, "ROTATE": 1, "FINISH": 1},
        *({"HEAD_DIM": d, "ROTATE": 1, "FINISH": 1, "RECENT": 1} for d in (64, 128, 256, 512)),
    ),
    pdl=True,
)  # fmt: skip
