"""Both operands of a matrix product in 8 bits: one scale for 256 inputs, outlier channels separately in BF16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.matmul.gemm_bytes import E4M3, GROUPED, INT8, LOUD, ROUND_INPUTS, ROUND_WEIGHT
from sp.ops.byte_rows.e4m3 import round_e4m3
from sp.ops.byte_rows.loud import FEW_TOKENS, LoudChannels
from sp.quant import Math
from sp.quant.packing import TILE

LEAST, MOST = np.float32(2.0**-100), np.float32(2.0**100)
"""A group whose absmax is below the first is treated as zeros, one whose absmax is at least the second as NaN."""
ROUNDED_TOKENS = 512
"""Products of fewer tokens use BF16: quantising the operands would cost more than 8-bit products gain. On an H100, 512
tokens took 0.84 times as long with prequantized weights, and 1.2 times with weights quantised for the product."""
PADDED = 256  # scales are allocated for so many tokens past the end, so that no copy of a tile exceeds them


class ByteKind(IntEnum):
    """The number type of an 8-bit code."""

    INT8 = INT8
    E4M3 = E4M3

    @property
    def largest(self) -> int:
        """The largest number."""
        return 127 if self is ByteKind.INT8 else 448


BYTE_KINDS = {Math.INT8: ByteKind.INT8, Math.FP8: ByteKind.E4M3}


class Rounded(NamedTuple):
    """Quantised rows: ``scales * codes`` for groups of 256, and the outlier channels separately."""

    codes: Floats  # float32 (rows, in), integers from -127 to 127, or e4m3 numbers
    scales: Floats  # float32 (rows, in / 256), 0 for a group of zeros, NaN for one with a non-finite number
    loud: Floats  # float32 (rows, count), BF16 values of the outlier channels, which are 0 in the codes of inputs


@dataclass(frozen=True)
class ByteRows:
    """`Rounded` on the device. `loud`: uint16 (rows, 64) or None, BF16; not written if there are no outlier channels.
    None for prequantized weights, for which each product gathers its own."""

    rows: int
    width: int
    kind: ByteKind
    codes: Any  # uint8 (rows and more, in), for weights whole tiles of 64 rows, in the order of round_weight.cu
    scales: Any  # float32 (in / 256, stride)
    loud: Any
    first: int = 0  # index of the first of these rows in `codes` and `scales`


def round_rows(values: Floats, kind: ByteKind, loud: Ints, apart: bool) -> Rounded:
    """Quantise rows to 8 bits, each group of 256 by its absmax. ``scale = max |x| / 127`` (448),
    ``code = rint(x * (1 / scale))``, halves to even, or the nearest e4m3 number. A group whose absmax is below 2^-100
    has scale and codes 0; one with a NaN, an infinity or a value of at least 2^100 has scale NaN and codes 0. `values`:
    float32 (rows, in), in a multiple of 256; they are first rounded to BF16; `loud`: int64 (count,), outlier channels;
    `apart`: True for inputs: codes of outlier channels are 0. Weights keep theirs, which are multiplied by these zeros.

    >>> x = np.zeros((1, 256), np.float32)
    >>> x[0, :4] = 127, -63.5, 0.625, 4096
    >>> r = round_rows(x, ByteKind.INT8, np.array([3]), True)
    >>> r.codes[0, :4], r.scales, r.loud
    (array([127., -64.,   1.,   0.], dtype=float32), array([[1.]], dtype=float32), array([[4096.]], dtype=float32))
    """
    if values.ndim != 2 or values.shape[1] % GROUPED:
        raise DeviceError(f"bytes: rows of a multiple of {GROUPED}, not {values.shape}")
    x = _nearest_bf16(values)
    beside = x[:, loud]
    if apart:
        x = x.copy()
        x[:, loud] = 0
    groups = x.reshape(len(x), -1, GROUPED)
    largest = np.abs(groups).max(axis=-1)  # NaN where one is
    usable = (largest >= LEAST) & (largest < MOST)
    scales = np.where(usable, largest, 1).astype(np.float32) / np.float32(kind.largest)
    with np.errstate(invalid="ignore"):
        scaled = np.where(usable[..., None], groups, 0) * (np.float32(1) / scales)[..., None]
    codes = np.rint(scaled) if kind is ByteKind.INT8 else round_e4m3(scaled)
    scales[~usable] = np.where(largest[~usable] < LEAST, 0, np.nan)
    return Rounded(codes.reshape(x.shape), scales, beside)


def _nearest_bf16(x: Floats) -> Floats:
    """Round to BF16, preserving NaN and infinity, which the format's encoder rejects."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    nearest: Floats = np.where(np.isnan(x), bits, rounded).astype(np.uint32).view(np.float32)
    return nearest


def byte_product(x: Rounded, w: Rounded) -> Floats:
    """``y = x Wᵀ`` of quantised rows, float32 (tokens, out), in the order of the kernels: groups, then outlier
    channels."""
    y = np.zeros((len(x.codes), len(w.codes)), np.float32)
    for group in range(x.scales.shape[1]):
        some = slice(group * GROUPED, (group + 1) * GROUPED)
        part = x.codes[:, some] @ w.codes[:, some].T  # for int8 integers below 2^24, so exact
        y += part * (w.scales[:, group] * x.scales[:, group, None])
    return y + x.loud @ w.loud.T


def round_inputs(x: Any, kind: ByteKind, loud: LoudChannels, *, late: bool = False) -> ByteRows:
    """`round_rows` of inputs, bf16 as uint16 (tokens, in), on the device. `late`: the previous launch was of
    loud_weight.cu, with which this one may overlap."""
    if not is_device(x) or x.ndim != 2 or x.dtype != "uint16" or x.shape[1] % GROUPED:
        raise DeviceError(f"bytes: bf16 rows of a multiple of {GROUPED} on a device, not {x.dtype} {x.shape}")
    cupy, (tokens, width) = import_cupy(), x.shape
    held = -(-tokens // PADDED) * PADDED + PADDED  # all scales are written: the padding's must not affect an absmax
    rows = ByteRows(
        tokens,
        width,
        kind,
        cupy.empty((tokens, width), np.uint8),
        cupy.empty((width // GROUPED, held), np.float32),
        cupy.empty((tokens, LOUD), np.uint16),
    )
    ROUND_INPUTS.launch(
        (held // 8, 4 if tokens <= FEW_TOKENS else 1),
        x,
        rows.codes,
        rows.scales,
        rows.loud,
        loud.count,
        loud.channels,
        loud.mask,
        tokens,
        held,
        int(late),
        defines={"COLS": width, "KIND": int(kind)},
    )
    return rows


def round_weights(weights: Sequence[Any], kind: ByteKind, loud: LoudChannels | None) -> ByteRows:
    """`round_rows` of PackedWeights of one width, stacked in whole tiles of 64 rows. Without `loud` no outlier channels
    are gathered; the codes are the same."""
    cupy, width = import_cupy(), weights[0].shape[1]
    tiles = sum(w.row_tiles for w in weights)
    rows = ByteRows(
        tiles * TILE,
        width,
        kind,
        cupy.empty((tiles * TILE, width), np.uint8),
        cupy.empty((width // GROUPED, tiles * TILE), np.float32),
        None if loud is None else cupy.empty((tiles * TILE, LOUD), np.uint16),
    )
    first = 0
    for w in weights:
        ROUND_WEIGHT.launch(
            (width // GROUPED, w.row_tiles),
            w.plane("low"),
            w.plane("high"),
            w.plane("scales"),
            w.plane("deltas"),
            rows.codes[first:],
            rows.scales.reshape(-1)[first:],
            *((None,) * 4 if loud is None else (rows.loud[first:], loud.count, loud.channels, loud.mask)),
            w.k_tiles,
            tiles * TILE,
            defines={"FORMAT": w.format.ggml_type, "KIND": int(kind)},
        )
        first += TILE * w.row_tiles
    return rows
