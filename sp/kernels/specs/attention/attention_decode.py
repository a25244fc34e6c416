"""Attention of few query rows over a long paged cache, split over the cache."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

RING = {  # (head_dim, packed pages): warps, units a warp has at work or on their way
    (64, 0): (8, 4),
    (64, 1): (8, 4),
    (128, 0): (8, 3),
    (128, 1): (8, 4),
    (256, 0): (4, 3),
    (256, 1): (8, 4),
}  # chosen so that states and ring fit 99 KiB, the shared memory of a block on sm_86, sm_89 and sm_120
ROOMY_RING = {(256, 0): (8, 3)}  # where a block may have 224 KiB, as on sm_90 and sm_100
SPLIT_TOKENS = 256


def variant(head_dim: int, packed: bool, rows: int, rotate: bool, finish: bool, roomy: bool = False) -> dict[str, int]:
    """Defines for `rows` query rows of a kv head; see ``attention_decode.cu``."""
    key = head_dim, int(packed)
    warps, slots = ROOMY_RING[key] if roomy and key in ROOMY_RING else RING[key]
    return {
        "HEAD_DIM": head_dim,
        "Q4": int(packed),
        "TILES": 1 if rows <= 8 else 2,
        "WARPS": warps,
        "SLOTS": slots,
        "SPLIT_TOKENS": SPLIT_TOKENS,
        "ROTATE": int(rotate),
        "FINISH": int(finish),
    }


def state_floats(defines: Defines) -> int:
    """Floats of the state of a split: outputs, references and totals."""
    return 128 * (int(defines["HEAD_DIM"]) // 16 + 1) * int(defines["TILES"])


def _shared_bytes(defines: Defines) -> int:
    d, tiles, warps = (int(defines[name]) for name in ("HEAD_DIM", "TILES", "WARPS"))
    packed = bool(defines["Q4"])
    pitch = {64: 48, 128: 80, 256: 144}[d] if packed else 2 * d
    queries = tiles * d // 16 * 264 if packed else 0
    ring = warps * int(defines["SLOTS"]) * 16 * pitch
    states = warps * 32 * d // 16 * 16 + 8 * tiles * (d + 8) * 4
    return max(ring + queries, states)


ATTENTION_DECODE = KernelSpec(
    source="attention_decode.cu",
    entry="attention_decode",
    args=(
        "const f16* q", "const u8* k_pages", "const u8* v_pages", "const i32* table", "const i32*? tokens", "i32 more",
        "const u16*? wide", "u16* out", "f32* partial", "u32* counters", "i32 n", "i32 heads", "i32 kv_heads",
        "f32 scale",
    ),
    threads=lambda defines: 32 * int(defines["WARPS"]),
    variants=(
        *(
            variant(d, packed, rows, packed, True)
            for d in (64, 128, 256)
            for packed in (False, True)
            for rows in (8, 16)
        ),
        *(variant(256, False, rows, False, True, roomy=True) for rows in (8, 16)),
    ),
    smem=_shared_bytes,
    pdl=True,
)  # fmt: skip
