"""8-bit products on Hopper (compute capability 9.0), for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sp.kernels.device import current_device, multiprocessors_to_fill
from sp.kernels.launch import Defines
from sp.kernels.specs.matmul.epilogue import SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import GEMM_BYTES_SM90, LOUD, MOST_OUTS, NEVER, SHAPES, variant
from sp.kernels.tensor_map import tensor_map
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteRows
from sp.ops.matmul.byte_products import byte_kernel, check_operands
from sp.quant import Math
from sp.quant.packing import TILE


def gemm(x: ByteRows, w: ByteRows, loud: LoudChannels, outs: Sequence[Any], epilogue: Epilogue) -> None:
    """``out = x Wᵀ``, ``out += x Wᵀ``, or for SWIGLU ``out = silu(x Gᵀ) * (x Uᵀ)``. `x`: ByteRows of inputs; `w`:
    ByteRows of weights, as many as `outs`, stacked in whole tiles of 64 rows; for SWIGLU gate and up; `loud`: the
    outlier channels that both have; `outs`: sequence of (tokens, rows), bf16 as uint16 for STORE and SWIGLU, float32
    for STORE_F32 and ADD. Up to three, one for ADD and SWIGLU; rows are multiples of 8."""
    check_operands(x, w, outs, epilogue)
    if x.rows == 0:
        return
    tiles = [-(-out.shape[1] // TILE) for out in outs]
    row_tiles = sum(tiles)
    defines, token_blocks, out_blocks, grid = plan_of(
        int(x.kind), epilogue, x.rows, row_tiles, multiprocessors_to_fill(current_device())
    )
    part, height = int(defines["TOKENS"]) // int(defines["CLUSTER"]), len(w.codes) - w.first
    stored = [tensor_map(y, (y.shape[1], x.rows), (y.shape[1] * y.itemsize,), (128 // y.itemsize, 32)) for y in outs]
    # Row tiles at which the next output begins.
    ends = [sum(tiles[: i + 1]) for i in range(len(outs) - 1)]
    GEMM_BYTES_SM90.launch(
        grid,
        tensor_map(x.codes, (x.width, x.rows), (x.width,), (128, part)),
        tensor_map(w.codes[w.first :], (x.width, height), (x.width,), (128, TILE)),
        tensor_map(x.loud, (LOUD, x.rows), (2 * LOUD,), (LOUD, part)),
        tensor_map(w.loud, (LOUD, len(w.loud)), (2 * LOUD,), (LOUD, TILE)),
        *stored,
        # the kernel has maps for three outputs: the last one is repeated
        *stored[-1:] * (MOST_OUTS - len(stored)),
        x.scales,
        w.scales[w.first :],
        loud.count,
        token_blocks,
        out_blocks,
        row_tiles,
        row_tiles,
        *ends,
        *(NEVER,) * (MOST_OUTS - 1 - len(ends)),
        x.width // 128,
        defines=defines,
    )


FIXED = 250  # cost of a tile besides its tokens, in tokens; measured on an H200. Only chooses between shapes


@lru_cache(4096)
def plan_of(
    kind: int, epilogue: Epilogue, tokens: int, row_tiles: int, processors: int
) -> tuple[Defines, int, int, tuple[int]]:
    """Return defines, blocks of tokens and of outputs, and the grid: the tiles whose rounds have the fewest tokens in
    total.

    >>> from sp.kernels.specs.matmul.epilogue import ADD
    >>> plan_of(0, ADD, 8192, 80, 132)[0]["TOKENS"]
    256
    """
    best: tuple[float, Defines, int, int, tuple[int]] | None = None
    for size, cluster in SHAPES:
        defines = variant(kind, epilogue, size, cluster)
        blocks, outs = -(-tokens // size), -(-row_tiles // (cluster * (1 if epilogue == SWIGLU else 2)))
        tiles, most = blocks * outs, processors // cluster
        work = -(-tiles // most) * (size + FIXED)
        if best is None or work < best[0]:
            best = work, defines, blocks, outs, (min(tiles, most) * cluster,)
    assert best is not None, "no shapes"
    return best[1:]


byte_kernel("gemm_bytes_sm90", gemm, "sm_90a", (Math.INT8, Math.FP8))
