"""Rows of attention: norm, rotary embedding, rotation, gate, and loads and stores of pages.

Formats of pages are numbers of ``page_rows.cuh``: 16 f16, 8 Q8_0, 4 Q4_0, 5 K5, 14 K4 and V4."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

ROWS_A_BLOCK = 4  # warps per block, one per row, in all kernels here except kv_gather
HEADS_A_WARP = 8
"""Rows per warp of `attention_heads` if there are enough: heads of a token share its angles."""
GATHER_THREADS = 256
HEAD_DIMS = (64, 128, 256, 512)

F16_PAGES, Q4_PAGES, FIVE_BITS, FOUR_BITS = (
    {"K_FORMAT": k, "V_FORMAT": v} for k, v in ((16, 16), (4, 4), (5, 14), (14, 14))
)

HEAD_NORM_ROPE = KernelSpec(
    source="head_norm_rope.cu",
    entry="head_norm_rope",
    args=(
        "const u16* x", "const f32*? weight", "const i64* positions", "const i64* turns", "f16* y", "i64 rows",
        "i32 heads", "i32 stride", "i32 half", "f32 eps", "f32 magnitude",
    ),
    threads=32 * ROWS_A_BLOCK,
    variants=(
        {"HEAD_DIM": 256}, {"HEAD_DIM": 128}, {"HEAD_DIM": 128, "INTERLEAVED": 1, "NORM": 0},
        {"HEAD_DIM": 64, "INTERLEAVED": 1, "NORM": 0}, {"HEAD_DIM": 64, "NORM": 0}, {"HEAD_DIM": 512},
    ),
)  # fmt: skip

HEADS_ARGS = (
    "const u16*? q", "const u16* k", "const u16* v", "const f32*? q_weight", "const f32*? k_weight",
    "const i64* positions", "const i64* turns", "f16*? q_out", "u8* k_pages", "u8* v_pages", "const i32* table",
    "const i32*? start", "i32 offset", "i32 tokens", "i32 heads", "i32 kv_heads", "i32 stride",
)  # fmt: skip

ATTENTION_HEADS = KernelSpec(
    source="head_norm_rope.cu",
    entry="attention_heads",
    args=(
        *HEADS_ARGS, "i32 half", "f32 eps", "f32 magnitude", "const i32*? order", "const f32*? shift",
        "const f32*? inverse", "u16*? ring_k", "u16*? ring_v", "u16*? run_k", "u16*? run_v",
    ),
    threads=32 * ROWS_A_BLOCK,
    variants=tuple(
        {**variant, "ROWS": rows}
        for rows in (1, HEADS_A_WARP)
        for variant in (
            {"HEAD_DIM": 256, **Q4_PAGES, "ROTATE": 1},
            {"HEAD_DIM": 128, **F16_PAGES, "ROTATE": 0},
            {"HEAD_DIM": 128, "INTERLEAVED": 1, "NORM": 0, **F16_PAGES, "ROTATE": 0},
            {"HEAD_DIM": 128, "NORM": 0, **F16_PAGES, "ROTATE": 0},
            {"HEAD_DIM": 64, "INTERLEAVED": 1, "NORM": 0, **Q4_PAGES, "ROTATE": 1},
            {"HEAD_DIM": 64, "NORM": 0, **F16_PAGES, "ROTATE": 0},
            {"HEAD_DIM": 512, **F16_PAGES, "ROTATE": 0, "VALUE_NORM": 1},
            {"HEAD_DIM": 512, **Q4_PAGES, "ROTATE": 1, "VALUE_NORM": 1},
            {"HEAD_DIM": 256, **FIVE_BITS, "ROTATE": 1},
            {"HEAD_DIM": 128, "K_FORMAT": 8, "V_FORMAT": 4, "ROTATE": 1},
            {"HEAD_DIM": 64, "NORM": 0, **FIVE_BITS, "ROTATE": 1},
            {"HEAD_DIM": 256, **FOUR_BITS, "ROTATE": 1},
            {"HEAD_DIM": 128, "NORM": 0, **FOUR_BITS, "ROTATE": 1},
            {"HEAD_DIM": 64, "NORM": 0, **FOUR_BITS, "ROTATE": 1},
        )
    ),
    pdl=True,
)  # fmt: skip

PROMPT_HEADS = KernelSpec(
    source="prompt_heads.cu",
    entry="prompt_heads",
    args=(*HEADS_ARGS, "f32 eps", "f32 magnitude"),
    threads=32 * ROWS_A_BLOCK,
    variants=(
        {"HEAD_DIM": 128}, {"HEAD_DIM": 128, "INTERLEAVED": 1, "NORM": 0}, {"HEAD_DIM": 128, "NORM": 0},
        {"HEAD_DIM": 64, "NORM": 0},
    ),
    pdl=True,
)  # fmt: skip

KV_APPEND = KernelSpec(
    source="kv_pages.cu",
    entry="kv_append",
    args=(
        "const u16* values",  # bf16, or f16 seen as its bits
        "u8* pages",
        "const i32* table",
        "const i32*? start",
        "i32 offset",
        "i64 rows",
        "i32 kv_heads",
        "const i32*? order",
        "const f32*? shift",
        "const f32*? inverse",
    ),
    threads=32 * ROWS_A_BLOCK,
    variants=(
        *({"HEAD_DIM": d, "FORMAT": fmt, "BF16": bf16, "ROTATE": rotate} for d, fmt, bf16, rotate in (
            (256, 4, 1, 64), (256, 4, 0, 256), (128, 16, 0, 0), (64, 16, 0, 0), (64, 4, 1, 64), (512, 16, 0, 0),
            (512, 4, 0, 512), (128, 8, 0, 128),
        )),
        *({"HEAD_DIM": d, "FORMAT": fmt, "BF16": 0, "ROTATE": 0} for d in (64, 512) for fmt in (5, 14)),
        *({"HEAD_DIM": d, "FORMAT": fmt, "BF16": 0, "ROTATE": 0, "BASIS": 1} for d in (64, 256) for fmt in (14, 16)),
    ),
)  # fmt: skip

KV_GATHER = KernelSpec(
    source="kv_pages.cu",
    entry="kv_gather",
    args=("const u8* pages", "const i32* table", "f16* out", "i64 rows", "i64 tokens", "i32 kv_heads"),
    threads=GATHER_THREADS,
    variants=tuple({"HEAD_DIM": d, "FORMAT": fmt} for d in HEAD_DIMS for fmt in (16, 8, 4, 5, 14)),
)

GATE_OUTPUT = KernelSpec(
    source="gate_output.cu",
    entry="gate_output",
    args=("const u16* out", "const u16*? wide", "u16* y", "i64 rows"),
    threads=32 * ROWS_A_BLOCK,
    variants=(
        {"HEAD_DIM": 256, "GATED": 1, "UNROTATE": 1}, {"HEAD_DIM": 128, "GATED": 0, "UNROTATE": 1},
        {"HEAD_DIM": 64, "GATED": 0, "UNROTATE": 1}, {"HEAD_DIM": 512, "GATED": 0, "UNROTATE": 1},
    ),
)  # fmt: skip

ROTATE_ROWS = KernelSpec(
    source="gate_output.cu",
    entry="rotate_rows",
    args=("const f16* x", "f16* y", "i64 rows"),
    threads=32 * ROWS_A_BLOCK,
    variants=tuple({"HEAD_DIM": d, "ROTATE": block} for d in (512, 256, 128, 64) for block in sorted({64, d})),
)

TURN_KEYS = KernelSpec(
    source="gate_output.cu",
    entry="turn_keys",
    args=(
        "const f16* x", "const i32* order", "const f32* offset", "const f32* scale", "f16* y", "i64 rows", "i32 heads",
        "i32 group",
    ),
    threads=32 * ROWS_A_BLOCK,
    variants=tuple({"HEAD_DIM": d, "TO_KEYS": back} for d in HEAD_DIMS for back in (0, 1)),
)  # fmt: skip

MOVE_THREADS = 128

KV_COMMIT = KernelSpec(
    source="kv_commit.cu",
    entry="kv_commit",
    args=(
        "u32* k_pages", "u32* v_pages", "const i32* tables", "i32 blocks", "const i32* total", "i32 offset",
        "const i32* path", "const i32* kept", "i32 k_words", "i32 v_words",
    ),
    threads=MOVE_THREADS,
    pdl=True,
)  # fmt: skip
