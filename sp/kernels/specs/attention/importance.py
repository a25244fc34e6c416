"""Importance of cached tokens to a few query rows, and the inverse of rotary embedding."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

HEAD_WARPS = 4  # warps per block, one per row, in importance_norms and unrotate
FOLD_THREADS = 256
LONGEST_POOL = 193  # widest moving average, with which a block of importance_fold still writes 64 tokens
_SHIPPED = {"WIDTH": 13, "ZERO_EDGES": 0, "QUERIES_FIRST": 0, "POOL_AT": 1, "HEADS_MAX": 1, "QUERIES_MAX": 0}
_POOLED_LAST = _SHIPPED | {"WIDTH": 1, "POOL_AT": 0}

IMPORTANCE_SCORES = KernelSpec(
    source="importance.cu",
    entry="importance_scores",
    args=(
        "const f16* q", "const u8* k_pages", "const i32* table", "f32* scores", "f32* parts", "i32 n", "i32 tokens",
        "i32 before", "i32 heads", "i32 kv_heads", "i32 pitch", "f32 scale",
    ),
    threads=128,
    variants=({"HEAD_DIM": 128}, {"HEAD_DIM": 256}, {"HEAD_DIM": 64}, {"HEAD_DIM": 512}),
)  # fmt: skip

IMPORTANCE_NORMS = KernelSpec(
    source="importance.cu",
    entry="importance_norms",
    args=("const f32* parts", "f32* norms", "i32 rows", "i32 splits"),
    threads=32 * HEAD_WARPS,
    variants=({"HEAD_DIM": 128}, {"HEAD_DIM": 256}, {"HEAD_DIM": 64}),
)

IMPORTANCE_FOLD = KernelSpec(
    source="importance_fold.cu",
    entry="importance_fold",
    args=(
        "const f32* scores", "const f32*? norms", "f32* running", "i32 n", "i32 tokens", "i32 heads", "i32 pitch",
        "i32 first",
    ),
    threads=FOLD_THREADS,
    variants=(
        _SHIPPED, _POOLED_LAST, _SHIPPED | {"QUERIES_FIRST": 1, "POOL_AT": 2},
        _SHIPPED | {"WIDTH": 7, "QUERIES_FIRST": 1, "POOL_AT": 2, "GIVEN": 1},
    ),
)  # fmt: skip

IMPORTANCE_HEAT = KernelSpec(
    source="importance_fold.cu",
    entry="importance_heat",
    args=(
        "const f32* scores", "const f32*? norms", "f32* by_layer", "f32*? by_head", "i32 n", "i32 tokens", "i32 heads",
        "i32 pitch",
    ),
    threads=FOLD_THREADS,
    variants=(_SHIPPED, _SHIPPED | {"GIVEN": 1}),
)  # fmt: skip

UNROTATE = KernelSpec(
    source="unrotate.cu",
    entry="unrotate",
    args=("f16* x", "const i64* positions", "const i64* turns", "i64 rows", "i32 heads", "i32 half", "f32 magnitude"),
    threads=32 * HEAD_WARPS,
    variants=(
        {"HEAD_DIM": 128}, {"HEAD_DIM": 256}, {"HEAD_DIM": 128, "INTERLEAVED": 1}, {"HEAD_DIM": 64},
        {"HEAD_DIM": 64, "INTERLEAVED": 1}, {"HEAD_DIM": 512},
    ),
)  # fmt: skip
