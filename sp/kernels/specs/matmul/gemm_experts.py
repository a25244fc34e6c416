"""The prefill matmuls over tokens sorted by expert (grouped GEMM): the plain sources with the define EXPERTS."""

from __future__ import annotations

from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul import gemm_portable as portable
from sp.kernels.specs.matmul import gemm_sm90 as sm90
from sp.kernels.specs.matmul.epilogue import STORE, SWIGLU, Epilogue
from sp.quant import Q4_K, Q6_K

BLOCK_SM90, TOKENS_SM90 = 128, 256  # an expert's tokens are padded to the first; the second is the largest tile
OWNERS = ("const i32* owners", "const u32* count", "u32 held", "u32 pitch", "u32 first", "u32 second_first")
COMMON = (Q4_K, Q6_K)  # formats that are compiled ahead


def variant_sm90(kind: int, epilogue: Epilogue) -> Defines:
    """Return the defines for a ggml type id, STORE or SWIGLU."""
    return {**sm90.variant(kind, epilogue, TOKENS_SM90, cluster=1), "EXPERTS": 1}


def variant_portable(kind: int, epilogue: Epilogue, shape: portable.Shape) -> Defines:
    """Return the defines for a ggml type id, an epilogue and a tile shape."""
    return {**portable.variant(kind, epilogue, shape), "EXPERTS": 1}


def _shipped(epilogue: Epilogue) -> tuple[Defines, ...]:
    shapes = (portable.SMALL, portable.THIN)
    return tuple(variant_portable(fmt.ggml_type, epilogue, shape) for fmt in COMMON for shape in shapes)


SM90 = KernelSpec(
    source="gemm_sm90.cu",
    entry="gemm_sm90_experts",
    args=(*sm90.GEMM_SM90.args, *OWNERS),
    threads=384,
    variants=tuple(variant_sm90(fmt.ggml_type, epilogue) for fmt in COMMON for epilogue in (STORE, SWIGLU)),
    arches="90a",
    smem=sm90.smem,
)

PORTABLE = KernelSpec(
    source="gemm_portable.cu",
    entry="gemm_portable_experts",
    args=(*portable.BF16.args, *OWNERS),
    threads=portable.threads,
    variants=_shipped(STORE),
    smem=portable.smem,
)

PORTABLE_GATED = KernelSpec(
    source="gemm_portable.cu",
    entry="gemm_portable_experts_gated",
    args=(*portable.GATED.args, *OWNERS),
    threads=portable.threads,
    variants=_shipped(SWIGLU),
    smem=portable.smem,
)
