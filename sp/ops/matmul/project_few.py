"""The products of `sp.ops.matmul.project` with 2 to 64 tokens on Hopper, as checking drafts makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.ops.input_tiles import InputTiles, empty_tiles
from sp.ops.matmul.dispatch import choose
from sp.ops.matmul.gemm_few import alike, gemm_few
from sp.ops.matmul.gemm_few_sm90 import ADD, HELD, STORE, SWIGLU, gemm_few_sm90, held_for
from sp.ops.norms import Norm, Ready, rms_norm

MOST = 4
"""Weights of one launch."""


def multiply_few(
    x: Any,
    weights: Sequence[Any],
    outs: Sequence[Any],
    epilogue: int,
    norm: Norm | Ready | None = None,
    then: Ready | None = None,
) -> None:
    """Products as `gemm_few_sm90` makes them; with STORE weights that are no K-quants take the kernel of all cards.

    Parameters
    ----------
    x, weights, outs, epilogue, norm, then :
        See `gemm_few_sm90`; x of at most 64 tokens.
    """
    if isinstance(x, InputTiles):
        gemm_few_sm90(x, weights, outs, epilogue, then=then)
        return
    others = [i for i, w in enumerate(weights) if not w.format.packing.super]
    quants = [i for i in range(len(weights)) if i not in others]
    given, first_norm = (norm.tiles, None) if isinstance(norm, Ready) else (x, norm)
    for first in range(0, len(quants), MOST):
        some = quants[first : first + MOST]
        into = outs if epilogue == SWIGLU else [outs[i] for i in some]
        gemm_few_sm90(given, [weights[i] for i in some], into, epilogue, first_norm, then)
    if not others:
        return
    norm = norm.norm if isinstance(norm, Ready) else norm
    h = x if norm is None else rms_norm(x, *norm)
    for group in alike([weights[i].format.ggml_type for i in others], MOST):
        gemm_few(h, [weights[others[i]] for i in group], [outs[others[i]] for i in group], STORE)


def tiles_for(reader: Any, tokens: int) -> InputTiles | None:
    """Room for what the `project_add` with the weight `reader` takes as tiles; None where it takes BF16."""
    if reader is None or tokens > HELD[-1] or choose(tokens, (reader,), False, ADD) != "gemm_few_sm90":
        return None
    return empty_tiles(tokens, reader.shape[1], held_for(tokens))


def add_ready(x: Any, h: Any, w: Any, norm: Norm) -> Ready | None:
    """`x += h Wᵀ` and with it the inputs of the product whose norm comes next; None, nothing done, if that cannot be.

    w is one that `multiply_few` takes.
    """
    tokens, rows = x.shape
    if tokens > HELD[-1] or rows % 256:
        return None
    ready = Ready.empty(x, norm, held_for(tokens))
    multiply_few(h, (w,), (x,), ADD, then=ready)
    return ready


def gated_few(x: Any, gate: Any, up: Any, norm: Norm | Ready, reader: Any) -> Any:
    """See `sp.ops.matmul.project.gated_project`; gate and up are K-quants of one format."""
    tokens, rows = len(x), gate.shape[0]
    chained = reader is not None and reader.format.packing.super and tokens <= HELD[-1] and rows % 256 == 0
    out = empty_tiles(tokens, rows, held_for(tokens)) if chained else import_cupy().empty((tokens, rows), np.uint16)
    multiply_few(x, (gate, up), (out,), SWIGLU, norm)
    return out
