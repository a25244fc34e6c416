"""What surrounds the kernels that multiply bytes: inputs and weights are rounded, then multiplied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sp.kernels.specs.matmul.epilogue import SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import GROUPED, MOST_LOUD_WIDTH
from sp.ops.byte_rows.loud import LoudChannels, loud_channels
from sp.ops.byte_rows.rows import BYTE_KINDS, ROUNDED_TOKENS, ByteRows, round_inputs, round_weights
from sp.ops.matmul.registry import MatmulKernel, Product, register_matmul
from sp.quant import Math
from sp.quant.packing import TILE

Gemm = Callable[[ByteRows, ByteRows, int, int, LoudChannels, Any, Epilogue], None]
"""See `sp.ops.matmul.gemm_bytes_sm90.gemm`."""


def byte_kernel(name: str, gemm: Gemm, path: str, maths: tuple[Math, ...]) -> MatmulKernel:
    """Register a kernel that multiplies `ByteRows`; weights are rounded again for every product, in room of its own."""

    def run(p: Product) -> None:
        kind = BYTE_KINDS[p.weights[0].math]
        loud = loud_channels(p.x)
        x = round_inputs(p.x, kind, loud)
        if p.epilogue is SWIGLU:
            gemm(x, round_weights(p.weights, kind, loud), 0, p.weights[0].shape[0], loud, p.outs[0], SWIGLU)
            return
        for w, out in zip(p.weights, p.outs, strict=True):
            epilogue = p.epilogue.typed(out.dtype.char == "f")
            gemm(x, round_weights((w,), kind, loud), 0, w.shape[0], loud, out, epilogue)

    return register_matmul(
        MatmulKernel(
            name=name,
            run=run,
            paths=(path,),
            max_weights=8,
            mixed_swiglu=True,
            multiple=8,
            room=_room,
            maths=maths,
        )
    )


def workspace_bytes(tokens: int, rows: int, width: int) -> int:
    """Room that a product of bytes takes besides its operands: both, rounded."""
    padded = -(-rows // TILE) * TILE
    return (tokens + padded) * (width + 4 * -(-width // GROUPED) + 128)


def _room(tokens: int, width: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue) -> int:
    fits = tokens >= ROUNDED_TOKENS and width % GROUPED == 0 and width <= MOST_LOUD_WIDTH
    return tokens if fits else 0
