"""Attention of few queries under a mask over a long paged cache on mma.sync tensor cores, split over the cache."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.attention.attention_portable import KEYS, shared_bytes

COMBINE_WARPS = 4


def variant(head_dim: int, packed: bool, rows: int, rotate: bool, roomy: bool = False) -> dict[str, int]:
    """Defines for `rows` query rows of a kv head; see ``attention_split.cu``. `roomy` is where a block may have 224 KiB
    of shared memory, as on sm_90 and sm_100; elsewhere 99 KiB must do."""
    wide, tiles = head_dim == 256, -(-rows // 16)
    most = 9 if roomy else 8 if not wide else 4 if packed else 3
    if roomy and wide and not packed:  # nothing is unpacked, and so nothing twice: small blocks are faster
        most = 5 if tiles <= 5 else 4
    pairs = -(-tiles // -(-tiles // most))
    pairs = next(size for size in (1, 2, 3, 4, 5, 6, 8, 9) if size >= pairs)  # few variants to compile
    return {
        "HEAD_DIM": head_dim,
        "Q4": int(packed),
        "ROTATE": int(rotate),
        "WARPS": 2 * pairs,
        "SLOTS": 4 if roomy and (packed or not wide or pairs > 4) else 2 if wide else 3,
        "BLOCKS": max(1, 8 // pairs),
        "AHEAD": int(packed and roomy),
    }


def queries(defines: Defines) -> int:
    """Query rows of a block."""
    return 8 * int(defines["WARPS"])


def _shared_bytes(defines: Defines) -> int:
    probabilities, tile = queries(defines) * 2 * KEYS, KEYS * 2 * int(defines["HEAD_DIM"])
    return shared_bytes(defines, queries(defines)) + probabilities + int(defines["AHEAD"]) * tile


ATTENTION_SPLIT = KernelSpec(
    source="attention_split.cu",
    entry="attention_split",
    args=(
        "const f16* q", "const u8* k_pages", "const u8* v_pages", "const i32* table", "i32 blocks",
        "const i32*? tokens_at", "i32 tokens", "const u64*? seen", "i32 window", "f16* partial", "f32* states", "i32 n",
        "i32 heads", "i32 kv_heads", "f32 scale", "f32 cap", "const i32*? reach",
    ),
    threads=lambda defines: 32 * int(defines["WARPS"]),
    variants=(
        *(variant(256, packed, rows, packed, True) for rows in (96, 138, 384) for packed in (False, True)),
        *(variant(256, packed, 96, packed) for packed in (False, True)),
        *(variant(128, False, 64, False, roomy) for roomy in (False, True)),  # 16 queries, 32 heads on 8
        *(variant(128, packed, 96, packed, True) for packed in (False, True)),
        *(variant(64, packed, 112, packed, True) for packed in (False, True)),
        {**variant(256, False, 16, False, True), "SOFTCAP": 1},
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
    threads=32 * COMBINE_WARPS,
    variants=(
        {"HEAD_DIM": 256, "ROTATE": 1, "FINISH": 1}, {"HEAD_DIM": 128, "ROTATE": 0, "FINISH": 0},
        {"HEAD_DIM": 64, "ROTATE": 1, "FINISH": 1}, {"HEAD_DIM": 64, "ROTATE": 0, "FINISH": 1, "SINKS": 1},
    ),
    pdl=True,
)  # fmt: skip
