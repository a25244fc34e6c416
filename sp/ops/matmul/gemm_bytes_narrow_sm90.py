"""gemm_bytes_narrow_sm90: products of bytes with up to 1,024 inputs on Hopper (compute capability 9.0), for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sp.kernels.device import current_device, multiprocessors_to_fill
from sp.kernels.specs.matmul.epilogue import SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import GROUPED, LOUD, MOST_OUTS, NEVER
from sp.kernels.specs.matmul.gemm_bytes_narrow import EPILOGUES, GEMM_BYTES_NARROW_SM90, MOST_GROUPS, TOKENS, variant
from sp.kernels.tensor_map import tensor_map
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteRows
from sp.ops.matmul import gemm_bytes_sm90
from sp.ops.matmul.byte_products import byte_kernel, check_operands
from sp.quant import Math
from sp.quant.packing import TILE

MOST_INPUTS = MOST_GROUPS * GROUPED
"""Inputs of a product whose tokens a block keeps whole."""
LOADING = 3
"""Tiles of 64 rows in whose time a block loads its tokens: 128 KiB at 40 bytes a cycle, predicted. Chooses jobs."""


def gemm(
    x: ByteRows,
    w: ByteRows,
    loud: LoudChannels,
    outs: Sequence[Any],
    epilogue: Epilogue,
    peaks: Any = None,
) -> None:
    """``out = x Wᵀ``, or of SWIGLU ``out = silu(x Gᵀ) * (x Uᵀ)``; see `gemm_bytes_sm90.gemm`.

    Bytes are int8, x is at most `MOST_INPUTS` wide. Results in float32 are made by that kernel; `peaks` are not found.
    """
    if epilogue not in EPILOGUES:
        gemm_bytes_sm90.gemm(x, w, loud, outs, epilogue, peaks)
        return
    check_operands(x, w, outs, epilogue)
    if x.rows == 0:
        return
    gated = epilogue == SWIGLU
    tiles = [-(-out.shape[1] // TILE) for out in outs]
    row_tiles = sum(tiles)
    token_blocks, jobs, each = plan_of(
        x.rows, row_tiles * (2 if gated else 1), multiprocessors_to_fill(current_device()) // 2
    )

    def weight_map(array: Any, row_bytes: int, box: int) -> Any:
        """Half of a tile; of SWIGLU eight rows of gate and of up in turn."""
        if not gated:
            return tensor_map(array, (array.shape[1], len(array)), (row_bytes,), (box, TILE // 2))
        strides = (row_bytes, row_tiles * TILE * row_bytes, 8 * row_bytes)
        return tensor_map(array, (array.shape[1], 8, 2, row_tiles * TILE // 8), strides, (box, 8, 2, 2))

    box, swizzle = ((TILE // 2, TOKENS), 64) if gated else ((TILE, TOKENS // 2), 128)
    stored = [tensor_map(y, (y.shape[1], x.rows), (2 * y.shape[1],), box, swizzle) for y in outs]
    ends = [sum(tiles[: i + 1]) for i in range(len(outs) - 1)]
    GEMM_BYTES_NARROW_SM90.launch(
        (2 * min(jobs, multiprocessors_to_fill(current_device()) // 2),),
        tensor_map(x.codes, (x.width, x.rows), (x.width,), (128, TOKENS)),
        weight_map(w.codes[w.first :], x.width, 128),
        tensor_map(x.loud, (LOUD, x.rows), (2 * LOUD,), (LOUD, TOKENS)),
        weight_map(w.loud, 2 * LOUD, LOUD),
        *stored,
        *stored[-1:] * (MOST_OUTS - len(stored)),
        x.scales,
        w.scales.reshape(-1)[w.first :],
        loud.count,
        token_blocks,
        jobs,
        each,
        row_tiles * (2 if gated else 1),
        row_tiles,
        *ends,
        *(NEVER,) * (MOST_OUTS - 1 - len(ends)),
        x.scales.shape[1],
        w.scales.shape[1],
        defines=variant(x.width // GROUPED, epilogue),
    )


@lru_cache(4096)
def plan_of(tokens: int, tiles: int, clusters: int) -> tuple[int, int, int]:
    """Blocks of 256 tokens, jobs, and tiles of 64 rows of a job: the rounds of jobs that take the least time.

    Examples
    --------
    >>> plan_of(16384, 64, 66), plan_of(1024, 64, 66)
    ((64, 64, 64), (4, 64, 4))
    """
    blocks = -(-tokens // (2 * TOKENS))

    def time_of(each: int) -> int:
        return -(-blocks * -(-tiles // each) // clusters) * (each + LOADING)

    each = min({-(-tiles // parts) for parts in range(1, tiles + 1)}, key=lambda each: (time_of(each), -each))
    return blocks, blocks * -(-tiles // each), each


byte_kernel(
    "gemm_bytes_narrow_sm90", gemm, "sm_90a", (Math.INT8,), peaks=False, epilogues=EPILOGUES, most_inputs=MOST_INPUTS
)
