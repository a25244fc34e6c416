"""The int8 / fp8 prefill matmul and the quantisation of its operands. Defines: KIND (0 int8, 1 e4m3), FORMAT or COLS,
and of the products TOKENS per tile, EPILOGUE, STAGES, CLUSTER, GROUP; see the sources."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU, Epilogue
from sp.quant import kernel_formats

GROUPED = 256  # inputs that share a scale, in both operands
LOUD = 64  # most outlier channels, which stay in BF16
INT8, E4M3 = 0, 1
MOST_LOUD_WIDTH = 32768  # most inputs for which outlier channels can be found
CAPACITY = 227 * 1024
WIDE = (STORE_F32, ADD)
SHAPES = ((192, 2), (128, 2))  # tokens per tile, and blocks per cluster, which share their inputs
MOST_OUTS = 3  # most weights of one launch
NEVER = 2**32 - 1  # a row tile that no weight has: the end of absent weights


def smem(defines: Defines) -> int:
    """Return the shared memory laid out by ``enum Shape`` in the source."""
    tokens, stages = int(defines["TOKENS"]), int(defines["STAGES"])
    ring = stages * (128 * (tokens + 128) + 4 * (tokens + 128))
    return -(-ring // 1024) * 1024 + 2 * 8192 + 16 * stages


def variant(kind: int, epilogue: Epilogue, tokens: int, cluster: int, group: int = 8) -> dict[str, int]:
    """Return the shipped defines, with as many stages as fit, up to eight."""
    defines = {"KIND": kind, "EPILOGUE": epilogue, "TOKENS": tokens, "STAGES": 1, "CLUSTER": cluster, "GROUP": group}
    while defines["STAGES"] < 8 and smem(defines | {"STAGES": defines["STAGES"] + 1}) <= CAPACITY:
        defines["STAGES"] += 1
    return defines


GEMM_BYTES_SM90 = KernelSpec(
    source="gemm_bytes_sm90.cu",
    entry="gemm_bytes_sm90",
    args=(
        "map x_map", "map w_map", "map xl_map", "map wl_map", "map y_map", "map y1_map", "map y2_map",
        "const f32* x_scales", "const f32* w_scales", "const u32* loud_count", "u32 token_blocks", "u32 out_blocks",
        "u32 row_tiles", "u32 second", "u32 end0", "u32 end1", "u32 groups", "u32 x_stride", "u32 w_stride",
        "u32*? peaks",
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
PORTABLE_ARGS = (
    "const u8* x", "const u8* w", "const u16* xl", "const u16* wl", "const f32* x_scales", "const f32* w_scales",
    "const u32* loud_count",
)  # fmt: skip
PORTABLE_SIZES = ("i32 tokens", "i32 rows", "i32 second", "i32 k", "i32 x_stride", "i32 w_stride")


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

ROUND_WEIGHT = KernelSpec(
    source="round_weight.cu",
    entry="round_weight",
    args=(
        "const u8* low", "const u8*? high", "const u8*? plane_scales", "const u8*? deltas", "u8* codes", "f32* scales",
        "u16*? loud", "const u32*? count", "const u32*? channels", "const u16*? mask", "i32 k_tiles", "i32 stride",
    ),
    threads=128,
    variants=tuple({"FORMAT": fmt.ggml_type, "KIND": INT8} for fmt in kernel_formats()),
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

WIDTHS = (1024, 2048, 3072, 4096, 5120, 6144, 17408)  # inputs of the products for which kernels are compiled ahead

ROUND_INPUTS = KernelSpec(
    source="round_inputs.cu",
    entry="round_inputs",
    args=(
        "const u16* x", "u8* codes", "f32* scales", "u16* loud", "const u32* count", "const u32* channels",
        "const u16* mask", "i32 tokens", "i32 stride", "i32 late",
    ),
    threads=256,
    variants=tuple({"COLS": width, "KIND": INT8} for width in WIDTHS),
    pdl=True,
)  # fmt: skip

LOUD_INPUTS = KernelSpec(
    source="loud_inputs.cu",
    entry="loud_inputs",
    args=(
        "const u16* x", "u32* peaks", "u32* done", "u32* count", "u32* channels", "u16* mask", "i32 tokens", "i32 each",
    ),
    threads=1024,
    variants=tuple({"COLS": width} for width in WIDTHS),
    pdl=True,
)  # fmt: skip

LOUD_CHANNELS = KernelSpec(
    source="loud_channels.cu",
    entry="loud_channels",
    args=("u32* peaks", "u32* count", "u32* channels", "u16* mask"),
    threads=1024,
    variants=tuple({"COLS": width} for width in WIDTHS),
    pdl=True,
)
