"""Prequantized weights, whose 8-bit codes stay on the device from one product to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.specs.matmul.gemm_bytes import (
    GROUPED,
    LOUD,
    LOUD_BLOCKS,
    LOUD_PARTS,
    LOUD_WEIGHT,
    MOST_OUTS,
    NEVER,
)
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteKind, ByteRows, round_weights
from sp.quant.packing import TILE


@dataclass(frozen=True)
class KeptRows:
    """The codes of a weight among those of weights that were quantised together."""

    rows: ByteRows  # codes of all of these, without outlier channels, which each product determines
    first: int  # first row of this weight, a multiple of 64


def kept_bytes(weights: Sequence[Any]) -> int:
    """Return the bytes of device memory that `keep` takes for weights of one width.

    >>> from types import SimpleNamespace
    >>> kept_bytes([SimpleNamespace(shape=(60, 512), row_tiles=1)])  # 64 rows of 512 codes and 2 scales
    33280
    """
    width = int(weights[0].shape[1])
    return sum(TILE * int(w.row_tiles) for w in weights) * (width + 4 * (width // GROUPED))


def keep(weights: Sequence[Any], kind: ByteKind) -> list[KeptRows]:
    """Prequantize PackedWeights of one width, stacked along the rows, so that products with several are one launch."""
    rows, first, found = round_weights(weights, kind, None), 0, []
    for w in weights:
        found.append(KeptRows(rows, first))
        first += TILE * w.row_tiles
    return found


def kept_together(weights: Sequence[Any], loud: LoudChannels) -> ByteRows | None:
    """Return the prequantized rows of weights, as `round_weights` would make them; None unless all are prequantized and
    consecutive. `loud`: outlier channels of the inputs; the weights' values for them are gathered."""
    if not follow(weights):
        return None
    first: KeptRows = weights[0].kept
    height = sum(TILE * w.row_tiles for w in weights)
    beside, at = import_cupy().empty((height, LOUD), np.uint16), 0
    for some in _alike(weights):
        _gather(some, loud, beside[at:])
        at += sum(TILE * w.row_tiles for w in some)
    return replace(first.rows, rows=height, loud=beside, first=first.first)


def _alike(weights: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield groups of up to three consecutive weights of one format."""
    for _, group in groupby(weights, key=lambda w: w.format):
        some = list(group)
        yield from (some[at : at + MOST_OUTS] for at in range(0, len(some), MOST_OUTS))


def _gather(weights: list[Any], loud: LoudChannels, beside: Any) -> None:
    absent, tiles = MOST_OUTS - len(weights), [w.row_tiles for w in weights]
    ends = [sum(tiles[: i + 1]) for i in range(len(weights) - 1)]
    LOUD_WEIGHT.launch(
        (min(sum(tiles) * LOUD_PARTS, LOUD_BLOCKS * multiprocessors(current_device())),),
        *(w.plane(name) for w in weights for name in ("low", "high", "scales", "deltas")),
        *(None,) * 4 * absent,
        beside,
        loud.count,
        loud.channels,
        weights[0].k_tiles,
        sum(tiles),
        *ends,
        *(NEVER,) * absent,
        defines={"FORMAT": weights[0].format.ggml_type},
    )


def follow(weights: Sequence[Any]) -> bool:
    """Return True if weights are prequantized in consecutive rows."""
    if any(w.kept is None for w in weights):
        return False
    at = weights[0].kept.first
    for w in weights:
        if w.kept.rows is not weights[0].kept.rows or w.kept.first != at:
            return False
        at += TILE * w.row_tiles
    return True
