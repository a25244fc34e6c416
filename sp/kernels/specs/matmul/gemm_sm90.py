"""The Hopper prefill matmul.

Defines: FORMAT (ggml type id), TOKENS of a tile, EPILOGUE, STREAM, STAGES, SLOTS, CLUSTER, GROUP; see the source."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, Epilogue
from sp.quant import BF16, Q4_1, Q4_K, Q6_K, kernel_formats, packing_of

MOST_PAIRED = 2560
"""Most bytes of a tile of codes for which pairs of blocks share X tiles: measured faster for Q4_K, slower for Q6_K and
BF16 (larger W)."""
COMMON = (Q4_K, Q6_K, BF16)  # formats that are compiled ahead with every epilogue
WIDE = (STORE_F32, ADD)  # epilogues with float32 results
CAPACITY = 227 * 1024  # most shared memory of a block on sm_90


def stage_bytes(defines: Defines) -> int:
    """Return the bytes of X and W of one K-chunk."""
    return int(defines["TOKENS"]) * 128 + 2 * (tile_bytes(int(defines["FORMAT"])) + scale_bytes(int(defines["FORMAT"])))


def tile_bytes(kind: int) -> int:
    """Return the bytes of the codes of a 64 x 64 tile, by ggml type id."""
    packing = packing_of(kind)
    return packing.low_bytes + packing.high_bytes


def scale_bytes(kind: int) -> int:
    """Return the bytes of the expanded scales of a tile."""
    return 0 if packing_of(kind).plain else 512


def staging_bytes(defines: Defines) -> int:
    """Return the bytes in which both warpgroups stage results for the store."""
    return 2 * int(defines["SLOTS"]) * 8192 * (2 if defines["EPILOGUE"] in WIDE else 1)


def smem(defines: Defines) -> int:
    """Return the shared memory laid out by ``enum Shape`` in the source."""
    stages = int(defines["STAGES"])
    return -(-stages * stage_bytes(defines) // 1024) * 1024 + staging_bytes(defines) + 16 * stages


def variant(
    kind: int,
    epilogue: Epilogue,
    tokens: int,
    stream: int = 0,
    cluster: int | None = None,
    group: int = 4,
    slots: int | None = None,
    most: int = 8,
) -> dict[str, int]:
    """Return the shipped defines, with as many stages as fit, up to `most`; the others as measured on an H200."""
    slots = slots or (1 if epilogue in WIDE else 2)
    cluster = cluster or (2 if tokens == 256 and tile_bytes(kind) <= MOST_PAIRED else 1)
    defines = {"FORMAT": kind, "TOKENS": tokens, "EPILOGUE": epilogue, "STREAM": stream}
    defines |= {"STAGES": 1, "SLOTS": slots, "CLUSTER": cluster, "GROUP": group}
    while defines["STAGES"] < most and smem(defines | {"STAGES": defines["STAGES"] + 1}) <= CAPACITY:
        defines["STAGES"] += 1
    return defines


GEMM_SM90 = KernelSpec(
    source="gemm_sm90.cu",
    entry="gemm_sm90",
    args=(
        "map x_map", "map y_map", "const u8* weight", "const u8*? second", "u32 token_blocks", "u32 out_blocks",
        "u32 row_tiles", "u32 k_tiles", "u32 streamed", "f32*? partials", "u32*? flags",
    ),
    threads=384,
    variants=(
        *(
            variant(fmt.ggml_type, epilogue, tokens, stream)
            for fmt in kernel_formats()
            for epilogue in (Epilogue if fmt in COMMON else (STORE,))
            for tokens, stream in ((256, 0), (256, 1), (128, 1))
        ),
        # for weights of a multiple of three row tiles
        *(variant(Q4_1.ggml_type, epilogue, 256, cluster=1) for epilogue in (STORE, ADD)),
    ),
    arches="90a",
    smem=smem,
)  # fmt: skip

GEMM_SM90_BESIDE = KernelSpec(
    source="gemm_sm90.cu",
    entry="gemm_sm90_beside",
    args=(*GEMM_SM90.args, "map beside_map"),
    threads=384,
    variants=tuple(
        variant(fmt.ggml_type, epilogue, tokens, stream) | {"BESIDE": 1}
        for fmt in COMMON
        for epilogue in (STORE, STORE_F32)
        for tokens, stream in ((256, 0), (256, 1), (128, 1))
    ),
    arches="90a",
    smem=smem,
)
