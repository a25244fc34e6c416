"""8-bit attention on Hopper: quantisation of keys and values, and the products; of heads of 256 keys only. Defines:
STAGES of the ring, WINDOW; WIDTH of a head."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.attention.attention_sm90 import CAPACITY, MOST_STAGES

HEAD_DIMS = (64, 128)  # head sizes of the kernels with values in 8 bits, too: rows of codes as wide as a swizzle
KEYS_ONLY = 256  # head size of the one with only keys in 8 bits
TILE = 128  # tokens of a tile, and of a page
SHARED_BYTES = 1024  # barriers and scales


def smem(defines: Defines) -> int:
    """Return the bytes of queries in f16 and as codes, ring, barriers and scales, as laid out in the source. Behind the
    tile of a stage are rows of ones, whose product is the sum of weights."""
    codes = TILE * int(defines["HEAD_DIM"])
    return 3 * codes + int(defines["STAGES"]) * (codes + 1024) + SHARED_BYTES


STAGES = MOST_STAGES

ATTENTION_BYTES = KernelSpec(
    source="attention_bytes.cu",
    entry="attention_bytes",
    args=(
        "map q_map", "map k_map", "map v_map", "const f32* key_scales", "const f32* value_peaks", "const i32*? counts",
        "const i32*? indices", "u16* out", "i32* next_tile", "i32 tokens", "i32 n", "i32 heads", "i32 group",
        "i32 section", "i32 early", "i32 width", "f32 scale", "const i32*? reach",
    ),
    threads=384,
    variants=tuple(
        {"HEAD_DIM": width, "STAGES": STAGES, **window} for width in HEAD_DIMS for window in ({}, {"WINDOW": 1})
    ),
    arches="90a",
    smem=smem,
)  # fmt: skip

KEY_TILE = 64  # keys of a tile of the kernel for heads of 256
KEY_STAGE_BYTES = 2 * KEY_TILE * KEYS_ONLY


def keys_smem(defines: Defines) -> int:
    """Return the bytes of queries in f16, ring, barriers and scales, as laid out in the source."""
    return TILE * KEYS_ONLY * 2 + int(defines["STAGES"]) * KEY_STAGE_BYTES + SHARED_BYTES


KEYS_STAGES = (CAPACITY - keys_smem({"STAGES": 0})) // KEY_STAGE_BYTES

ATTENTION_BYTE_KEYS = KernelSpec(
    source="attention_byte_keys.cu",
    entry="attention_byte_keys",
    args=(
        "map q_map", "map k_map", "map v_map", "const f32* key_scales", "const i32* table", "u16* out",
        "i32* next_tile", "i32 tokens", "i32 n", "i32 heads", "i32 group", "i32 section", "f32 scale",
    ),
    threads=384,
    variants=({"STAGES": KEYS_STAGES},),
    arches="90a",
    smem=keys_smem,
)  # fmt: skip

KEY_CENTRE = KernelSpec(
    source="key_bytes.cu",
    entry="key_centre",
    args=(
        "const u8* pages", "const i32* table", "f32* centre", "i32 sampled", "i32 step", "i32 kv_heads",
    ),
    threads=1024,
    variants=tuple({"WIDTH": width} for width in (*HEAD_DIMS, KEYS_ONLY)),
)  # fmt: skip

KEY_BYTES = KernelSpec(
    source="key_bytes.cu",
    entry="key_bytes",
    args=(
        "const u8* pages", "const i32* table", "const f32* centre", "u8* codes", "f32* key_scales", "i32 tokens",
        "i32 kv_heads",
    ),
    threads=256,
    variants=({"WIDTH": KEYS_ONLY},),
)  # fmt: skip

VALUE_PEAKS = KernelSpec(
    source="kv_bytes.cu",
    entry="value_peaks",
    args=("const u8* pages", "const i32* table", "u32* peaks", "i32 tokens", "i32 kv_heads"),
    threads=256,
    variants=tuple({"WIDTH": width} for width in HEAD_DIMS),
    arches="90a",
)

KV_BYTES = KernelSpec(
    source="kv_bytes.cu",
    entry="kv_bytes",
    args=(
        "const u8* k_pages", "const u8* v_pages", "const i32* table", "const f32* centre", "const f32* peaks",
        "u8* k_codes", "f32* key_scales", "u8* v_codes", "i32 tokens", "i32 kv_heads",
    ),
    threads=256,
    variants=tuple({"WIDTH": width} for width in HEAD_DIMS),
    arches="90a",
)  # fmt: skip
