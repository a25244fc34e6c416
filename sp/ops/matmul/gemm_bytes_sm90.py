"""gemm_bytes_sm90: products of bytes on Hopper (compute capability 9.0), for prompts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sp.errors import DeviceError
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.launch import Defines
from sp.kernels.specs.matmul.epilogue import SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import GEMM_BYTES_SM90, GROUPED, LOUD, TOKENS, WIDE, variant
from sp.kernels.tensor_map import tensor_map
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteRows
from sp.ops.matmul.byte_products import byte_kernel
from sp.quant import Math
from sp.quant.packing import TILE


def gemm(
    x: ByteRows,
    w: ByteRows,
    first: int,
    rows: int,
    loud: LoudChannels,
    out: Any,
    epilogue: Epilogue,
    peaks: Any = None,
) -> None:
    """``out = x Wᵀ``, ``out += x Wᵀ``, or of SWIGLU ``out = silu(x Gᵀ) * (x Uᵀ)``.

    Parameters
    ----------
    x : ByteRows of inputs
    w : ByteRows of weights
        Of SWIGLU gate and up, as many rows each.
    first, rows : int
        Which rows of w, from a whole tile of 64 on; of SWIGLU those of gate. A multiple of 8.
    loud : LoudChannels that both were rounded with
    out : (tokens, rows)
        bf16 as uint16 for STORE and SWIGLU, float32 for STORE_F32 and ADD.
    epilogue : Epilogue
    peaks : uint32 (rows of whole 64), optional
        Of SWIGLU: raised to the largest absolute values of the outputs.
    """
    wanted = "float32" if epilogue in WIDE else "uint16"
    if (x.width, x.kind) != (w.width, w.kind) or out.shape != (x.rows, rows) or out.dtype != wanted:
        raise DeviceError(f"bytes: inputs {x.rows, x.width}, weights {rows, w.width}, out {out.dtype} {out.shape}")
    if rows % 8 or first % TILE or not out.flags.c_contiguous:
        raise DeviceError(f"bytes: {rows} outputs from {first} on: multiples of 8 and of {TILE}; out C-contiguous")
    if x.rows == 0:
        return
    row_tiles = -(-rows // TILE)
    defines, token_blocks, out_blocks, grid = plan_of(
        int(x.kind), epilogue, x.rows, row_tiles, multiprocessors(current_device())
    )
    part, height = int(defines["TOKENS"]) // int(defines["CLUSTER"]), len(w.codes) - first
    GEMM_BYTES_SM90.launch(
        grid,
        tensor_map(x.codes, (x.width, x.rows), (x.width,), (128, part)),
        tensor_map(w.codes[first:], (x.width, height), (x.width,), (128, TILE)),
        tensor_map(x.loud, (LOUD, x.rows), (2 * LOUD,), (LOUD, part)),
        tensor_map(w.loud[first:], (LOUD, height), (2 * LOUD,), (LOUD, TILE)),
        tensor_map(out, (rows, x.rows), (rows * out.itemsize,), (128 // out.itemsize, 32)),
        x.scales,
        w.scales.reshape(-1)[first:],
        loud.count,
        token_blocks,
        out_blocks,
        row_tiles,
        row_tiles,
        x.width // GROUPED,
        x.scales.shape[1],
        w.scales.shape[1],
        peaks,
        defines=defines,
    )


FIXED = 250
"""What a tile costs besides its tokens, in tokens; measured on an H200. Only chooses between shapes."""


@lru_cache(4096)
def plan_of(
    kind: int, epilogue: Epilogue, tokens: int, row_tiles: int, processors: int
) -> tuple[Defines, int, int, tuple[int]]:
    """Defines, blocks of tokens and of outputs, and the grid: the tiles whose rounds have the least tokens in all.

    Examples
    --------
    >>> from sp.kernels.specs.matmul.epilogue import ADD
    >>> plan_of(0, ADD, 8192, 80, 132)[0]["TOKENS"]
    192
    """
    best: tuple[float, Defines, int, int, tuple[int]] | None = None
    for size in TOKENS:
        defines = variant(kind, epilogue, size)
        cluster = defines["CLUSTER"]
        blocks, outs = -(-tokens // size), -(-row_tiles // (cluster * (1 if epilogue == SWIGLU else 2)))
        tiles, most = blocks * outs, processors // cluster
        work = -(-tiles // most) * (size + FIXED)
        if best is None or work < best[0]:
            best = work, defines, blocks, outs, (min(tiles, most) * cluster,)
    assert best is not None, "no shapes"
    return best[1:]


byte_kernel("gemm_bytes_sm90", gemm, "sm_90a", (Math.INT8, Math.FP8), peaks=True)
