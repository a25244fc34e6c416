"""Project a text into the embedding space of a trained head, and score its parts against a query."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

MOST_RANK = 128  # columns per block of space_rows; a wider space takes several blocks per token
ALIKE_SIDE = 64  # tokens, and rows, per block of space_alike
WORTH_WARPS = 8  # ranges per block of space_worth
SCORED = 1024  # tokens per block of space_parts and of space_scores
_DEPTH = 64  # rows of weights per step of space_rows


def block_tokens(head_dim: int) -> int:
    """Return the tokens per block of space_rows.

    >>> block_tokens(64), block_tokens(256)
    (128, 32)
    """
    return 8192 // head_dim


def _threads(defines: Defines) -> int:
    return 2 * block_tokens(int(defines["HEAD_DIM"]))


def _shared(defines: Defines) -> int:
    head_dim, rank = int(defines["HEAD_DIM"]), int(defines["RANK"])
    return 2 * (block_tokens(head_dim) * (2 * head_dim + 16) + _DEPTH * (2 * rank + 16))


SPACE_ROWS = KernelSpec(
    source="space_rows.cu",
    entry="space_rows",
    args=(
        "const u8* k_pages", "const u8* v_pages", "const i32*? table", "const i64* positions", "const i64* turns",
        "const f16* weights", "f32* document", "i64 tokens", "i32 kv_heads", "i32 half", "i32 pitch", "i32 first",
        "f32 magnitude",
    ),
    threads=_threads,
    variants=(
        {"HEAD_DIM": 64, "RANK": 96}, {"HEAD_DIM": 64, "RANK": 96, "INTERLEAVED": 1}, {"HEAD_DIM": 64, "RANK": 16},
        {"HEAD_DIM": 128, "RANK": 96}, {"HEAD_DIM": 128, "RANK": 128}, {"HEAD_DIM": 256, "RANK": 128},
        {"HEAD_DIM": 512, "RANK": 16},
    ),
    smem=_shared,
)  # fmt: skip

SPACE_ALIKE = KernelSpec(
    source="space_worth.cu",
    entry="space_alike",
    args=(
        "const f32* document", "const f32* asking", "f32* alike", "i64 tokens", "i32 rank", "i32 stride", "i32 rows",
    ),
    threads=256,
)  # fmt: skip

SPACE_WORTH = KernelSpec(
    source="space_worth.cu",
    entry="space_worth",
    args=(
        "const f32* alike", "const f32* asking", "const i32*? bounds", "f32* worth", "i32 units", "i32 tokens",
        "i32 rank", "i32 stride", "i32 rows", "i32 step", "i32 width",
    ),
    threads=32 * WORTH_WARPS,
)  # fmt: skip

SPACE_PARTS = KernelSpec(
    source="space_scores.cu",
    entry="space_parts",
    args=(
        "const f32* units", "const i32* bounds", "const f32* windows", "const f32* looked", "f32* x", "u64* sums",
        "i32 count", "i32 tokens", "i32 step", "i32 inside", "i32 half",
    ),
    threads=256,
)  # fmt: skip

SPACE_SCORES = KernelSpec(
    source="space_scores.cu",
    entry="space_scores",
    args=(
        "const f32* x", "const u64* sums", "f32* scores", "i32 tokens", "i32 blocks", "f32 of_unit", "f32 of_window",
        "f32 of_look",
    ),
    threads=256,
)  # fmt: skip
