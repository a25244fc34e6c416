"""Prequantized weights, whose 8-bit codes stay on the device from one product to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp.ops.byte_rows.rows import ByteRows
from sp.quant.packing import TILE


@dataclass(frozen=True)
class KeptRows:
    """The codes of a weight among those of weights that were quantised together."""

    rows: ByteRows  # codes of all of these
    first: int  # first row of this weight, a multiple of 64


def kept_bytes(weights: Sequence[Any]) -> int:
    """Return the bytes of device memory that prequantized copies take for weights of one width.

    >>> from types import SimpleNamespace
    >>> kept_bytes([SimpleNamespace(shape=(60, 512), row_tiles=1)])  # 64 rows of 512 codes and a scale
    33024
    """
    width = int(weights[0].shape[1])
    return sum(TILE * int(w.row_tiles) for w in weights) * (width + 4)


def kept_together(weights: Sequence[Any]) -> ByteRows | None:
    """Return the prequantized rows of weights, as `round_weights` would make them; None unless
    all are prequantized and consecutive."""
    if not follow(weights):
        return None
    first: KeptRows = weights[0].kept
    return replace(first.rows, rows=sum(TILE * w.row_tiles for w in weights), first=first.first)


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
