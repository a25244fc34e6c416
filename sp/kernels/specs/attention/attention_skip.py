"""Prefill attention that leaves out tiles of little weight, on Hopper and on any GPU. Defines: as those of
`attention_sm90` and `attention_portable`."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec
from sp.kernels.specs.attention import attention_portable
from sp.kernels.specs.attention.attention_portable import WARPS, queries
from sp.kernels.specs.attention.attention_portable import variant as wide_variant
from sp.kernels.specs.attention.attention_sm90 import HEAD_DIMS, smem, tile_keys, variant

__all__ = ["ATTENTION_SKIP", "ATTENTION_SKIP_PORTABLE", "WARPS", "portable_variant", "queries", "tile_keys", "variant"]


def portable_variant(head_dim: int) -> dict[str, int]:
    """Return the defines on any GPU: one slice of rows a warp for heads of 128, whose second one found no registers."""
    return wide_variant(head_dim) | ({"SLICES": 1} if head_dim == 128 else {})


ATTENTION_SKIP = KernelSpec(
    source="attention_skip.cu",
    entry="attention_skip",
    args=(
        "map q_map", "map k_map", "map v_map", "const i32* table", "u16* out", "i32* read", "i32* next_tile",
        "i32 tokens", "i32 n", "i32 heads", "i32 group", "i32 section", "f32 scale", "f32 share", "f32 budget",
    ),
    threads=384,
    variants=tuple(map(variant, HEAD_DIMS)),
    arches="90a",
    smem=smem,
)  # fmt: skip

ATTENTION_SKIP_PORTABLE = KernelSpec(
    source="attention_skip_portable.cu",
    entry="attention_skip_portable",
    args=(
        "const f16* q", "const u8* k_pages", "const u8* v_pages", "const i32* table", "u16* out", "i32* read",
        "i32 tokens", "i32 n", "i32 heads", "i32 kv_heads", "f32 scale", "f32 share", "f32 budget",
    ),
    threads=32 * WARPS,
    variants=tuple(map(portable_variant, HEAD_DIMS)),
    smem=attention_portable.ATTENTION_PORTABLE.smem,
)  # fmt: skip
