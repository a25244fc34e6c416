"""Gated DeltaNet: prompts in chunks (convolution, chunk matrices, scan, gated norm), decoding in one launch."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

CHUNK = 64
CONV_RUN = 16  # tokens per run of `CAUSAL_CONV1D`
MOST_TOKENS = 16  # most tokens of one launch of `DELTA_RECURRENT`


def chunk_smem(defines: Defines) -> int:
    """Return the bytes of Q and K tiles, which A overwrites; G and b."""
    repeat = int(defines["REPEAT"])
    return max(2 * CHUNK * (int(defines["HEAD_DIM"]) + 8) * 2, repeat * CHUNK * 68 * 4) + 2 * repeat * CHUNK * 4


def scan_smem(defines: Defines) -> int:
    """Return the bytes of K, T, V, decay twice; Q and P twice, or once without ``WIDE``."""
    dim, columns, wide = int(defines["HEAD_DIM"]), 16 * int(defines["WARPS"]), int(defines["WIDE"])
    return 2 * (CHUNK * (dim + CHUNK + columns) * 2 + 512) + (1 + wide) * CHUNK * (dim + CHUNK) * 2


CAUSAL_CONV1D = KernelSpec(
    source="causal_conv1d.cu",
    entry="causal_conv1d",
    args=(
        "const u16* x", "const f32* weight", "const f32* history", "f16* q", "f16* k", "f16* v", "i32 tokens",
        "i32 key_heads", "i32 value_heads", "f32 eps",
    ),
    threads=256,
    variants=tuple({"HEAD_DIM": dim, "RUN": CONV_RUN} for dim in (128, 64)),
)  # fmt: skip

DELTA_CHUNK = KernelSpec(
    source="delta_chunk.cu",
    entry="delta_chunk",
    args=(
        "const f16* q", "const f16* k", "const f32* alpha", "const f32* beta", "const f32* a", "const f32* dt_bias",
        "f16* T", "f16* P", "f32* decay", "const u16* x", "f32* history", "i32 tokens", "i32 key_heads",
    ),
    threads=256,
    variants=({"HEAD_DIM": 128, "REPEAT": 3}, {"HEAD_DIM": 128, "REPEAT": 1}, {"HEAD_DIM": 64, "REPEAT": 2}),
    smem=chunk_smem,
)  # fmt: skip

DELTA_SCAN = KernelSpec(
    source="delta_scan.cu",
    entry="delta_scan",
    args=(
        "const f16* q", "const f16* k", "f16* values", "const f16* T", "const f16* P", "const f32* decay", "f32* state",
        "i32 tokens", "i32 key_heads", "i32 value_heads",
    ),
    threads=lambda defines: 32 * int(defines["WARPS"]),
    variants=tuple({"HEAD_DIM": dim, "WARPS": 4, "WIDE": wide} for dim in (128, 64) for wide in (1, 0)),
    smem=scan_smem,
)  # fmt: skip

DELTA_SCAN_SM90 = KernelSpec(
    source="delta_scan_sm90.cu",
    entry="delta_scan_sm90",
    args=(
        "map keys", "map queries", "map value_map", "map solver_map", "map within_map", "const f32* decay",
        "f32* state", "i32 tokens", "i32 key_heads",
    ),
    threads=160,
    variants=({"STAGES": 3},),
    arches="90a",
    smem=lambda defines: 2 * 8192 + int(defines["STAGES"]) * (7 * 8192 + 512 + 16),
)  # fmt: skip

GATED_NORM = KernelSpec(
    source="gated_norm.cu",
    entry="gated_norm",
    args=("const f16* o", "const u16* z", "const f32* weight", "u16* y", "i64 items", "f32 eps"),
    threads=256,
    variants=({"HEAD_DIM": 128}, {"HEAD_DIM": 64}),
)

DELTA_RECURRENT = KernelSpec(
    source="delta_recurrent.cu",
    entry="delta_recurrent",
    args=(
        "const u16* x", "const u16* z", "const f32* alpha", "const f32* beta", "const f32* taps", "const f32* a",
        "const f32* dt_bias", "const f32* norm", "f32* history", "f32* state", "u16* y", "u32* arrivals", "i32 tokens",
        "i32 rows", "i32 key_heads", "i32 value_heads", "f32 eps",
    ),
    threads=lambda defines: 4 * int(defines["HEAD_DIM"]),
    variants=({"HEAD_DIM": 128, "TOKENS": MOST_TOKENS}, {"HEAD_DIM": 64, "TOKENS": MOST_TOKENS}),
    pdl=True,
)  # fmt: skip
