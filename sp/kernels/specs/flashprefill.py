"""FlashPrefill: means of key blocks, the selection of blocks for each query block, and the correction by means."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec

MEAN_THREADS = 128
CORRECTION_ROWS = 64  # query rows per block of mean_correction
FEWEST = 1024  # shared memory is sized for at least so many key blocks, 128 K tokens
RULES = (0, 1, 2)
"""Rules of block_select: a threshold or a share of the blocks; the root of their number; a share of the energy."""


def threads(defines: Defines) -> int:
    """Return the threads of warps of 32 query rows; of 16 for long rows, since queries stay in registers."""
    return 256 if int(defines["HEAD_DIM"]) > 128 else 128


def energy_bytes(defines: Defines) -> int:
    """Return the bytes of a float per block, and two per 32 blocks."""
    blocks = int(defines["MOST_BLOCKS"])
    return 4 * blocks + blocks // 4


def smem(defines: Defines) -> int:
    """Return the bytes of queries, later overwritten by tiles of mean keys, and energies."""
    return 256 * int(defines["HEAD_DIM"]) + energy_bytes(defines)


def smem_sm90(defines: Defines) -> int:
    """Return the bytes of 128 queries, two tiles of 64 mean keys, or 32 for larger heads, and energies."""
    d = int(defines["HEAD_DIM"])
    return (128 + 2 * (32 if d > 128 else 64)) * 2 * d + energy_bytes(defines)


def correction_smem(defines: Defines) -> int:
    """Return the bytes of 64 queries, tiles of mean keys and values, and a bit per block."""
    d, blocks = int(defines["HEAD_DIM"]), int(defines["MOST_BLOCKS"])
    return 128 * d + 4 * d * (32 if d > 128 else 64) + blocks // 8 + 4


def variant(head_dim: int, blocks: int, rule: int = 0) -> dict[str, int]:
    """Return the defines for so many key blocks, rounded up so that there are few variants, and for block_select's
    rule."""
    sizes = {"HEAD_DIM": head_dim, "MOST_BLOCKS": max(FEWEST, 1 << (blocks - 1).bit_length())}
    return sizes | ({"RULE": rule} if rule else {})


BLOCK_MEANS = KernelSpec(
    source="block_means.cu",
    entry="block_means",
    args=("const u8* pages", "const i32* table", "f16* means", "i32 tokens", "i32 kv_heads"),
    threads=MEAN_THREADS,
    variants=(
        *({"HEAD_DIM": d, "FORMAT": 16} for d in (128, 256, 64)),
        *({"HEAD_DIM": 256, "FORMAT": fmt} for fmt in (4, 5, 8, 14)),
    ),
)  # fmt: skip

SELECT_ARGUMENTS = (
    "const f16* q", "const f16* means", "i32* counts", "i32* indices", "i32 n", "i32 tokens", "i32 heads",
    "i32 kv_heads", "i32 together", "i32 width", "i32 sink", "i32 window", "i32 last_n", "i32 least", "i32 late",
    "i32 unforced", "f32 alpha", "f32 share", "f32 scale", "i32 most_blocks",
)  # fmt: skip

BLOCK_SELECT = KernelSpec(
    source="block_select.cu",
    entry="block_select",
    args=SELECT_ARGUMENTS,
    threads=threads,
    variants=tuple(variant(d, 1, rule) for rule in RULES for d in (64, 128, 256)),
    smem=smem,
)

BLOCK_SELECT_SM90 = KernelSpec(
    source="block_select_sm90.cu",
    entry="block_select_sm90",
    args=SELECT_ARGUMENTS,
    threads=128,
    variants=BLOCK_SELECT.variants,
    arches="90a",
    smem=smem_sm90,
)

MEAN_CORRECTION = KernelSpec(
    source="mean_correction.cu",
    entry="mean_correction",
    args=(
        "const f16* q", "const f16* mean_k", "const f16* mean_v", "const i32* counts", "const i32* indices",
        "const f32* lse", "u16* out", "i32 n", "i32 tokens", "i32 heads", "i32 kv_heads", "i32 width", "f32 scale",
    ),
    threads=128,
    variants=(variant(64, 1), variant(128, 1), variant(256, 1)),
    smem=correction_smem,
)  # fmt: skip
