"""Gate and up in int8 with few inputs on Hopper (compute capability 9.0), for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sp.kernels.device import current_device, multiprocessors_to_fill
from sp.kernels.specs.matmul.epilogue import SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import GROUPED, LOUD
from sp.kernels.specs.matmul.gemm_bytes_narrow import GEMM_BYTES_NARROW_SM90, MOST_GROUPS, TOKENS, variant
from sp.kernels.tensor_map import tensor_map
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteRows
from sp.ops.matmul import gemm_bytes_sm90 as _before  # noqa: F401 - imported first, because the kernel registered last takes products that both support
from sp.ops.matmul.byte_products import byte_kernel, check_operands
from sp.quant import Math
from sp.quant.packing import TILE

MOST_INPUTS = MOST_GROUPS * GROUPED  # most inputs with which a block can hold its tokens entirely
LOADING = 3  # time to load a block's tokens, in tiles: 128 KiB at 40 bytes per cycle, predicted. Only chooses jobs


def gemm(
    x: ByteRows,
    w: ByteRows,
    loud: LoudChannels,
    outs: Sequence[Any],
    epilogue: Epilogue,
    peaks: Any = None,
) -> None:
    """``out = silu(x Gᵀ) * (x Uᵀ)`` in int8; see `gemm_bytes_sm90.gemm`, whose results are equal to the bit. x is at
    most `MOST_INPUTS` wide; `epilogue` is SWIGLU, `peaks` are not computed."""
    assert epilogue is SWIGLU, f"gemm_bytes_narrow_sm90 makes no {epilogue.name}"
    check_operands(x, w, outs, epilogue)
    if x.rows == 0:
        return
    (y,) = outs
    row_tiles, clusters = -(-y.shape[1] // TILE), multiprocessors_to_fill(current_device()) // 2
    token_blocks, jobs, each = plan_of(x.rows, 2 * row_tiles, clusters)

    def in_turn(array: Any, row_bytes: int, box: int) -> Any:
        """Return a map of eight rows of gate and eight of up in turn."""
        strides = (row_bytes, row_tiles * TILE * row_bytes, 8 * row_bytes)
        return tensor_map(array, (array.shape[1], 8, 2, row_tiles * TILE // 8), strides, (box, 8, 2, 2))

    GEMM_BYTES_NARROW_SM90.launch(
        (2 * min(jobs, clusters),),
        tensor_map(x.codes, (x.width, x.rows), (x.width,), (128, TOKENS)),
        in_turn(w.codes[w.first :], x.width, 128),
        tensor_map(x.loud, (LOUD, x.rows), (2 * LOUD,), (LOUD, TOKENS)),
        in_turn(w.loud, 2 * LOUD, LOUD),
        tensor_map(y, (y.shape[1], x.rows), (2 * y.shape[1],), (TILE // 2, TOKENS), 64),
        x.scales,
        w.scales.reshape(-1)[w.first :],
        loud.count,
        token_blocks,
        jobs,
        each,
        2 * row_tiles,
        row_tiles,
        x.scales.shape[1],
        w.scales.shape[1],
        defines=variant(x.width // GROUPED),
    )


@lru_cache(4096)
def plan_of(tokens: int, tiles: int, clusters: int) -> tuple[int, int, int]:
    """Return blocks of 256 tokens, jobs, and tiles per job: the division whose rounds of jobs take the least time.

    >>> plan_of(16384, 64, 66), plan_of(1024, 64, 66)
    ((64, 64, 64), (4, 64, 4))
    """
    blocks = -(-tokens // (2 * TOKENS))

    def time_of(each: int) -> int:
        return -(-blocks * -(-tiles // each) // clusters) * (each + LOADING)

    each = min({-(-tiles // parts) for parts in range(1, tiles + 1)}, key=lambda each: (time_of(each), -each))
    return blocks, blocks * -(-tiles // each), each


byte_kernel(
    "gemm_bytes_narrow_sm90", gemm, "sm_90a", (Math.INT8,), peaks=False, epilogues=(SWIGLU,), most_inputs=MOST_INPUTS
)
