"""The work around 8-bit matmul kernels: quantising inputs, and weights that are not prequantized."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sp.errors import DeviceError
from sp.kernels.specs.matmul.epilogue import STORE, STORE_F32, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import LOUD, MOST_INPUTS, MOST_OUTS, MULTIPLE, WIDE
from sp.ops.byte_rows.kept import follow, kept_together
from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import BYTE_KINDS, ROUNDED_TOKENS, ByteRows, round_inputs
from sp.ops.matmul.byte_weights import SLAB, loud_columns, round_weights
from sp.ops.matmul.registry import MatmulKernel, Product, register_matmul
from sp.quant import Math
from sp.quant.packing import TILE

Gemm = Callable[..., None]  # see `sp.ops.matmul.gemm_bytes_sm90.gemm`
STORES = (STORE, STORE_F32)  # epilogues for several weights at once


def byte_kernel(
    name: str, gemm: Gemm, path: str, maths: tuple[Math, ...], *, most_inputs: int = MOST_INPUTS
) -> MatmulKernel:
    """Register a kernel that multiplies `ByteRows`. Weights that are not prequantized are quantised for every product,
    into a workspace. It takes products of up to `most_inputs` inputs."""

    def run(p: Product) -> None:
        kind = BYTE_KINDS[p.weights[0].math]
        loud = loud_channels(p.x)
        x = round_inputs(p.x, kind, loud)
        for some in [slice(None)] if p.epilogue is SWIGLU else list(in_launches(p.weights, p.outs)):
            weights, outs = p.weights[some], p.outs[some]
            w = kept_together(weights) or round_weights(weights, kind)
            w = replace(w, loud=loud_columns(weights, loud))
            gemm(x, w, loud, outs, p.epilogue.typed(outs[0].dtype.char == "f"))
            del w  # before the next one's codes are allocated

    return register_matmul(
        MatmulKernel(
            name=name,
            run=run,
            paths=(path,),
            max_weights=8,
            mixed_swiglu=True,
            multiple=8,
            room=partial(_room, most_inputs),
            maths=maths,
        )
    )


def in_launches(weights: Sequence[Any], outs: Sequence[Any]) -> Iterator[slice]:
    """Yield slices of the weights that share a launch: up to three that are prequantized in consecutive rows, with
    results of one type. Others take a launch each, so that their codes need no more memory than those of the
    largest."""
    first = 0
    for i in range(1, len(weights) + 1):
        together = i < len(weights) and i - first < MOST_OUTS and outs[i].dtype == outs[first].dtype
        if not together or not follow(weights[first : i + 1]):
            yield slice(first, i)
            first = i


def check_operands(x: ByteRows, w: ByteRows, outs: Sequence[Any], epilogue: Epilogue) -> None:
    """Raise DeviceError unless these are operands of a `Gemm`."""
    wanted, shapes = "float32" if epilogue in WIDE else "uint16", [(out.dtype, out.shape) for out in outs]
    rows = [out.shape[-1] for out in outs]
    padded = sum(-(-count // TILE) * TILE for count in rows) * (1 + (epilogue == SWIGLU))
    if (x.width, x.kind) != (w.width, w.kind) or padded > w.rows or w.first % TILE:
        raise DeviceError(f"bytes: inputs {x.rows, x.width}, weights {w.rows, w.width} from {w.first} on, out {shapes}")
    if any(out.shape != (x.rows, out.shape[-1]) or out.dtype != wanted or out.shape[-1] % 8 for out in outs):
        raise DeviceError(f"bytes: {x.rows} tokens, results {shapes}: {wanted}, multiples of 8 a token")
    most = MOST_OUTS if epilogue in STORES else 1
    if not all(out.flags.c_contiguous for out in outs) or not 1 <= len(outs) <= most:
        raise DeviceError(f"bytes: {len(outs)} results {shapes}: C-contiguous, up to {most} with {epilogue.name}")


def workspace_bytes(tokens: int, rows: int, width: int) -> int:
    """Return the workspace of an 8-bit product besides its operands: both of these, quantised, and a slab of the weight
    in BF16 with the weight's expanded scales."""
    padded = -(-rows // TILE) * TILE
    slab = min(2 * padded * width, SLAB) + padded * width // 8
    return (tokens + padded) * (width + 4 + 2 * LOUD) + slab


def _room(most: int, tokens: int, width: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue) -> int:
    fits = tokens >= ROUNDED_TOKENS and width % MULTIPLE == 0 and width <= most
    return tokens if fits else 0
