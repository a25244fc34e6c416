"""Quantise packed weights, for one product or to be kept, and gather what outlier channels are multiplied by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.specs.matmul.gemm_bytes import LOUD, LOUD_BLOCKS, LOUD_PARTS, LOUD_WEIGHT, MOST_OUTS, NEVER
from sp.ops.byte_rows.kept import KeptRows
from sp.ops.byte_rows.loud import LoudChannels
from sp.ops.byte_rows.rows import ByteKind, ByteRows, round_into
from sp.ops.matmul.packed import PackedWeight, unpack_slabs
from sp.quant.packing import TILE

SLAB = 32 << 20  # most bytes of a weight's BF16 values at a time: they stay in L2 until they are rounded


def round_weights(weights: Sequence[PackedWeight], kind: ByteKind) -> ByteRows:
    """`round_rows` of weights of one width, stacked in whole tiles of 64 rows, without outlier channels."""
    cupy, width = import_cupy(), weights[0].shape[1]
    tiles = sum(w.row_tiles for w in weights)
    codes, scales = cupy.empty((tiles * TILE, width), np.uint8), cupy.empty(tiles * TILE, np.float32)
    first = 0
    for w in weights:
        for at, slab in unpack_slabs(w, SLAB):
            past = first + at + -(-len(slab) // TILE) * TILE
            round_into(slab, codes[first + at : past], scales[first + at : past], kind)
        del slab  # of which the next weight allocates its own
        first += TILE * w.row_tiles
    return ByteRows(tiles * TILE, width, kind, codes, scales)


def keep(weights: Sequence[PackedWeight], kind: ByteKind) -> list[KeptRows]:
    """Prequantize weights of one width, stacked along the rows, so that products with several are one launch."""
    rows, first, found = round_weights(weights, kind), 0, []
    for w in weights:
        found.append(KeptRows(rows, first))
        first += TILE * w.row_tiles
    return found


def loud_columns(weights: Sequence[PackedWeight], loud: LoudChannels) -> Any:
    """Return the columns of weights for outlier channels of their inputs, uint16 (rows of whole 64, 64), BF16; not
    written if there are none."""
    beside = import_cupy().empty((sum(TILE * w.row_tiles for w in weights), LOUD), np.uint16)
    at = 0
    for some in _alike(weights):
        tiles, absent = [w.row_tiles for w in some], MOST_OUTS - len(some)
        ends = [sum(tiles[: i + 1]) for i in range(len(some) - 1)]
        LOUD_WEIGHT.launch(
            (min(sum(tiles) * LOUD_PARTS, LOUD_BLOCKS * multiprocessors(current_device())),),
            *(w.plane(name) for w in some for name in ("low", "high", "scales", "deltas")),
            *(None,) * 4 * absent,
            beside[at:],
            loud.count,
            loud.channels,
            some[0].k_tiles,
            sum(tiles),
            *ends,
            *(NEVER,) * absent,
            defines={"FORMAT": some[0].format.ggml_type},
        )
        at += TILE * sum(tiles)
    return beside


def _alike(weights: Sequence[PackedWeight]) -> Iterator[list[PackedWeight]]:
    """Yield groups of up to three consecutive weights of one format."""
    for _, group in groupby(weights, key=lambda w: w.format):
        some = list(group)
        yield from (some[at : at + MOST_OUTS] for at in range(0, len(some), MOST_OUTS))
