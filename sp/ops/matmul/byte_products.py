"""What surrounds the kernels that multiply bytes: inputs and weights are rounded, then multiplied."""

from __future__ import annotations

from collections.abc import Callable

from sp.kernels.specs.matmul.epilogue import SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import GROUPED, MOST_LOUD_WIDTH
from sp.ops.byte_rows.loud import PeakedInputs, loud_channels
from sp.ops.byte_rows.rows import BYTE_KINDS, ROUNDED_TOKENS, round_inputs, round_weights
from sp.ops.matmul.registry import Fusion, MatmulKernel, Product, register_matmul
from sp.quant import Math
from sp.quant.packing import TILE

Gemm = Callable[..., None]
"""See `sp.ops.matmul.gemm_bytes_sm90.gemm`."""


def byte_kernel(name: str, gemm: Gemm, path: str, maths: tuple[Math, ...], *, peaks: bool) -> MatmulKernel:
    """Register a kernel that multiplies `ByteRows`; weights are rounded again for every product, in room of its own.

    With `peaks` it finds those of what SWIGLU makes.
    """

    def run(p: Product) -> None:
        kind = BYTE_KINDS[p.weights[0].math]
        loud = loud_channels(p.x)
        x = round_inputs(p.x.values if isinstance(p.x, PeakedInputs) else p.x, kind, loud)
        if p.epilogue is SWIGLU:
            out, rows = p.outs[0], p.weights[0].shape[0]
            into, found = (out.values, out.peaks) if isinstance(out, PeakedInputs) else (out, None)
            gemm(x, round_weights(p.weights, kind, loud), 0, rows, loud, into, SWIGLU, found)
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
            fusions=frozenset({Fusion.PEAKED} | ({Fusion.PEAKS} if peaks else set())),
        )
    )


def workspace_bytes(tokens: int, rows: int, width: int) -> int:
    """Room that a product of bytes takes besides its operands: both, rounded."""
    padded = -(-rows // TILE) * TILE
    return (tokens + padded) * (width + 4 * -(-width // GROUPED) + 128)


def _room(tokens: int, width: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue) -> int:
    fits = tokens >= ROUNDED_TOKENS and width % GROUPED == 0 and width <= MOST_LOUD_WIDTH
    return tokens if fits else 0
