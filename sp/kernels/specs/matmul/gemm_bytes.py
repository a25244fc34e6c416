"""The int8 / fp8 prefill matmul and the quantisation of its operands. Defines: KIND (0 int8, 1 e4m3), COLS or
FORMAT, and of the products TOKENS per tile, EPILOGUE, STAGES, CLUSTER, GROUP; see the sources."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU, Epilogue
from sp.quant import kernel_formats

MULTIPLE = 256  # inputs come in a multiple of this
LOUD = 64  # most outlier channels, which stay in BF16
CHUNK = 1024  # inputs of a warp that quantises a row, and the most that are rotated together
INT8, E4M3 = 0, 1
MOST_INPUTS = 32768  # inputs of a row that one block quantises
CAPACITY = 227 * 1024
WIDE = (STORE_F32, ADD)
SHAPES = ((256, 2), (128, 2))  # tokens per tile, and blocks per cluster, which share their inputs
SCALE_SLOTS = 4
MOST_OUTS = 3  # most weights of one launch
NEVER = 2**32 - 1  # a row tile that no weight has: the end of absent weights


def smem(defines: Defines) -> int:
    """Return the shared memory laid out by ``enum Shape`` in the source."""
    tokens, stages = int(defines["TOKENS"]), int(defines["STAGES"])
    before = stages * 128 * (tokens + 128) + 4 * SCALE_SLOTS * tokens
    return -(-before // 1024) * 1024 + 2 * 8192 + 16 * stages


def variant(kind: int, epilogue: Epilogue, tokens: int, cluster: int, group: int = 8) -> dict[str, int]:
    """Return the shipped defines, with as many stages as fit, up to seven."""
    defines = {"KIND": kind, "EPILOGUE": epilogue, "TOKENS": tokens, "STAGES": 1, "CLUSTER": cluster, "GROUP": group}
    while defines["STAGES"] < 7 and smem(defines | {"STAGES": defines["STAGES"] + 1}) <= CAPACITY:
        defines["STAGES"] += 1
    return defines


GEMM_BYTES_SM90 = KernelSpec(
    source="gemm_bytes_sm90.cu",
    entry="gemm_bytes_sm90",
    args=(
        "map x_map", "map w_map", "map xl_map", "map wl_map", "map y_map", "map y1_map", "map y2_map",
        "const f32* x_scales", "const f32* w_scales", "const u32* loud_count", "u32 token_blocks", "u32 out_blocks",
        "u32 row_tiles", "u32 second", "u32 end0", "u32 end1", "u32 steps",
    ),
    threads=384,
    variants=tuple(
        variant(kind, epilogue, *shape) for kind in (INT8, E4M3) for epilogue in Epilogue for shape in SHAPES
    ),
    arches="90a",
    smem=smem,
    pdl=True,
)  # fmt: skip

PORTABLE_BLOCK = 128  # tokens and weight rows per block of the portable kernel
PORTABLE_STAGES = 3  # tiles of 32 KiB in its ring, which fill the 99 KiB of a multiprocessor of sm_86
PORTABLE_MOST_INPUTS = 24 * CHUNK  # whose quantisation fills the 99 KiB of a multiprocessor of sm_86
MOST_BY_PATH = {"sm_90a": MOST_INPUTS, "portable": PORTABLE_MOST_INPUTS}
PORTABLE_ARGS = (
    "const u8* x", "const u8* w", "const u16* xl", "const u16* wl", "const f32* x_scales", "const f32* w_scales",
    "const u32* loud_count",
)  # fmt: skip
PORTABLE_SIZES = ("i32 tokens", "i32 rows", "i32 second", "i32 k")


def portable_smem(defines: Defines) -> int:
    """Return the bytes of the ring."""
    return int(defines["STAGES"]) * 2 * PORTABLE_BLOCK * 128


GEMM_BYTES_PORTABLE = KernelSpec(
    source="gemm_bytes_portable.cu",
    entry="gemm_bytes_portable",
    args=(*PORTABLE_ARGS, "u16* y", *PORTABLE_SIZES),
    threads=256,
    variants=tuple({"EPILOGUE": epilogue, "STAGES": PORTABLE_STAGES} for epilogue in (STORE, SWIGLU)),
    smem=portable_smem,
)

GEMM_BYTES_PORTABLE_F32 = KernelSpec(
    source="gemm_bytes_portable.cu",
    entry="gemm_bytes_portable_f32",
    args=(*PORTABLE_ARGS, "f32* y", *PORTABLE_SIZES, "i32 add"),
    threads=256,
    variants=({"EPILOGUE": STORE_F32, "STAGES": PORTABLE_STAGES},),
    smem=portable_smem,
)

WIDTHS = (1024, 2048, 3072, 4096, 5120, 6144, 17408)  # inputs of the products for which kernels are compiled ahead


def round_warps(defines: Defines) -> int:
    """Return the warps of a block, which quantises a row."""
    return -(-int(defines["COLS"]) // CHUNK)


ROUND_ROWS = KernelSpec(
    source="round_rows.cu",
    entry="round_rows",
    args=(
        "const u16* x", "u8* codes", "f32* scales", "u16*? loud", "const u32*? count", "const u32*? channels",
        "const u32*? mask", "i32 rows",
    ),
    threads=lambda defines: 32 * round_warps(defines),
    variants=tuple({"COLS": width, "KIND": INT8} for width in (*WIDTHS, 256, 768, 1536)),
    smem=lambda defines: 4 * CHUNK * round_warps(defines),
    pdl=True,
)  # fmt: skip

LOUD_INPUTS = KernelSpec(
    source="loud_inputs.cu",
    entry="loud_inputs",
    args=(
        "const u16* x", "u32* peaks", "u32* done", "u32* count", "u32* channels", "u32* mask", "i32 tokens",
        "i32 stride", "i32 each",
    ),
    threads=1024,
    variants=tuple({"COLS": width} for width in WIDTHS),
    pdl=True,
)  # fmt: skip

LOUD_PARTS = 16  # work tiles of a row tile's outlier channels
LOUD_BLOCKS = 8  # blocks per multiprocessor that gather the weights of outlier channels: all run at once

LOUD_WEIGHT = KernelSpec(
    source="loud_weight.cu",
    entry="loud_weight",
    args=(
        *(f"const u8*? {plane}{i}" for i in range(MOST_OUTS) for plane in ("low", "high", "scales", "deltas")),
        "u16* loud", "const u32* count", "const u32* channels", "i32 k_tiles", "u32 row_tiles", "u32 end0", "u32 end1",
    ),
    threads=128,
    variants=tuple({"FORMAT": fmt.ggml_type} for fmt in kernel_formats()),
    pdl=True,
)  # fmt: skip
