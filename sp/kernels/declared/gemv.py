"""The matrix products of decoding. Defines: K, TOKENS, FORMATS, NORM, EPILOGUE, WARPS, GROUPS, STAGES, see gemv.cu."""

from __future__ import annotations

from sp.kernels.launch import Defines, Kernel

STAGE_BYTES = {12: 2304, 13: 2816, 14: 3360, 8: 1088, 2: 576, 30: 2048, 1: 2048}
"""Bytes a warp fetches at once, by ggml type id: `Stage` in strip.cuh."""
SUPER = {12, 13, 14}
"""Formats with super-blocks of 256 values."""
CAPACITY = 227 * 1024
"""Shared memory a block can have on sm_90 and sm_100; 163 KiB on sm_80, 99 KiB on sm_86, sm_89 and sm_120."""
STORE, ADD, SWIGLU = 0, 1, 2


def kinds_of(formats: int) -> list[int]:
    """ggml type ids in the bit set FORMATS."""
    return [kind for kind in STAGE_BYTES if formats >> kind & 1]


def fixed_bytes(defines: Defines) -> int:
    """Shared memory without the ring, as laid out in the source."""
    k, tokens, formats = (int(defines[name]) for name in ("K", "TOKENS", "FORMATS"))
    kinds = kinds_of(formats)
    super_blocks, many = k // 256, tokens > 1
    total = tokens * (2 * k + 64 * many) if many or set(kinds) - SUPER else 0
    total += super_blocks * tokens * 32 if many and {12, 13} & set(kinds) else 0
    total += super_blocks * tokens * 64 if many and 14 in kinds else 0
    total += super_blocks * (528 + 32 + 64) + -(-super_blocks // 4) * 16 if not many and set(kinds) & SUPER else 0
    total += 2 * warps(defines) * tokens * 80
    total += tokens * -(-k // 128) * 4 if defines["NORM"] else 0
    return total + 4 * tokens


def warps(defines: Defines) -> int:
    """Warps of a block."""
    return int(defines["WARPS"]) * int(defines["GROUPS"])


def slot_bytes(formats: int) -> int:
    """Bytes of a ring slot."""
    return max(STAGE_BYTES[kind] for kind in kinds_of(formats))


def smem(defines: Defines) -> int:
    """Dynamic shared memory."""
    return fixed_bytes(defines) + warps(defines) * int(defines["STAGES"]) * slot_bytes(int(defines["FORMATS"]))


def variant(
    k: int,
    tokens: int,
    formats: int,
    norm: bool,
    epilogue: int,
    capacity: int = CAPACITY,
    warps: int = 8,
    groups: int = 2,
) -> dict[str, int]:
    """Defines with the deepest ring that fits in `capacity`, at most 12 slots; STAGES < 2 says that nothing fits."""
    defines = {
        "K": k,
        "TOKENS": tokens,
        "FORMATS": formats,
        "NORM": int(norm),
        "EPILOGUE": epilogue,
        "WARPS": warps,
        "GROUPS": groups,
    }
    return defines | {"STAGES": min((capacity - fixed_bytes(defines)) // (warps * groups * slot_bytes(formats)), 12)}


def bits(*kinds: int) -> int:
    """FORMATS of ggml type ids."""
    return sum({1 << kind for kind in kinds})


SMALL = 99 * 1024

GEMV = Kernel(
    source="gemv.cu",
    entry="gemv",
    args=(
        "const u16*? x",
        "const f32*? wide",
        "const f32*? norm",
        "f32 eps",
        "i32 tokens",
        "i32 count",
        *(
            text
            for i in range(4)
            for text in (f"const u8*? data{i}", f"i32 kind{i}", f"i32 rows{i}", f"u16*? y{i}", f"f32*? z{i}")
        ),
    ),
    threads=lambda defines: 32 * warps(defines),
    variants=(
        variant(5120, 1, bits(12, 14), True, STORE),
        variant(5120, 1, bits(12), True, SWIGLU),
        variant(17408, 1, bits(14), False, ADD),
        variant(6144, 1, bits(12), False, ADD),
        variant(5120, 8, bits(12), False, ADD),
        variant(1024, 8, bits(30), True, STORE, SMALL, groups=1),
        variant(1024, 16, bits(8), True, SWIGLU, SMALL, groups=1),
        variant(1024, 4, bits(13, 2, 1), False, STORE, SMALL, groups=1),
    ),
    smem=smem,
    early=True,
)
