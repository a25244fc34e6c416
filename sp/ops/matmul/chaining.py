"""Prepare the result of one product in the form of its consumer's kernel: InputTiles, and a deferred RMSNorm."""

from __future__ import annotations

from typing import Any

from sp.kernels.specs.matmul.epilogue import ADD
from sp.ops.input_tiles import InputTiles, empty_tiles
from sp.ops.matmul.dispatch import choose
from sp.ops.matmul.registry import Fusion, MatmulKernel
from sp.ops.matmul.split_weight import SplitWeight
from sp.ops.norms import Norm, Ready


def tiles_for(reader: Any, tokens: int) -> InputTiles | None:
    """Allocate the input of the `project_add` with the weight `reader`, if it takes tiles; None if it takes BF16."""
    if reader is None or isinstance(reader, SplitWeight):
        return None
    kernel = choose(tokens, (reader,), False, ADD)
    if Fusion.TILES not in kernel.fusions:
        return None
    assert kernel.tile_rows is not None, kernel.name
    return empty_tiles(tokens, reader.shape[1], kernel.tile_rows(tokens))


def begun_by(kernel: MatmulKernel, x: Any, norm: Norm) -> Ready | None:
    """Allocate the deferred norm that `kernel` can start while it adds to x (tokens, hidden); None if it cannot."""
    tokens, rows = x.shape
    if Fusion.READY not in kernel.fusions or rows % 256:
        return None
    assert kernel.tile_rows is not None, kernel.name
    return Ready.empty(x, norm, kernel.tile_rows(tokens))
