"""Both operands of a matrix product in 8 bits: outlier channels separately in BF16, the rest rotated, so that outliers
of single tokens are spread, with one scale for a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.matmul.gemm_bytes import CHUNK, E4M3, INT8, LOUD, MOST_INPUTS, MULTIPLE, ROUND_ROWS
from sp.ops.byte_rows.e4m3 import round_e4m3
from sp.ops.byte_rows.loud import LoudChannels
from sp.quant import Math

LEAST, MOST = np.float32(2.0**-100), np.float32(2.0**100)
"""A row whose absmax is below the first is treated as zeros, one whose absmax is at least the second as NaN."""
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
    """Quantised rows: ``scales * codes`` in the rotated basis, and the outlier channels separately."""

    codes: Floats  # float32 (rows, in), integers from -127 to 127, or e4m3 numbers
    scales: Floats  # float32 (rows,), 0 for a row of zeros, NaN for one with a non-finite number
    loud: Floats  # float32 (rows, count), BF16 values of the outlier channels, which are 0 in the codes of inputs


@dataclass(frozen=True)
class ByteRows:
    """`Rounded` on the device. Weights have no outlier channels until a product gathers those of its inputs."""

    rows: int
    width: int
    kind: ByteKind
    codes: Any  # uint8 (rows and more, in), for weights whole tiles of 64 rows, in the order of round_rows.cu
    scales: Any  # float32 (rows and more,)
    loud: Any = None  # uint16 (rows, 64), BF16; not written if there are no outlier channels
    first: int = 0  # index of the first of these rows in `codes` and `scales`


def block_of(width: int) -> int:
    """Return how many of `width` inputs are rotated together.

    >>> block_of(5120), block_of(2560), block_of(768)
    (1024, 512, 256)
    """
    return next(block for block in (1024, 512, MULTIPLE) if width % block == 0)


@lru_cache(maxsize=1)
def signs() -> Floats:
    """Return the signs of `CHUNK` inputs, float32 1 and -1: without them a rotation would gather what all inputs share
    in one value."""
    word = np.arange(1, CHUNK // 32 + 1, dtype=np.uint32) * np.uint32(0x9E3779B1)
    word = (word ^ word >> np.uint32(15)) * np.uint32(0x85EBCA77)
    word = (word ^ word >> np.uint32(13)) * np.uint32(0xC2B2AE3D)
    word ^= word >> np.uint32(16)
    bits = word[:, None] >> np.arange(32, dtype=np.uint32) & 1
    return (1 - 2 * bits.astype(np.float32)).ravel()


def rotated(x: Floats) -> Floats:
    """Rotate rows, times the square root of `block_of`: ``H (signs * x)`` of each block, with
    ``H[i, j] = (-1) ** popcount(i & j)``. Outliers are spread over a block, and rows rotated alike keep their products,
    times `block_of`. `x`: float32 (rows, in), in a multiple of 256. Source: Ashkboos et al., "QuaRot: Outlier-Free
    4-Bit Inference in Rotated LLMs", 2024.

    >>> x = np.zeros((1, 256), np.float32)
    >>> x[0, 7] = 3
    >>> sorted(set(rotated(x).ravel().tolist()))
    [-3.0, 3.0]
    """
    rows, width = x.shape
    block, distance = block_of(width), 1
    y = x * np.resize(signs(), width)
    while distance < block:
        pairs = y.reshape(rows, -1, 2, distance)
        y = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2)
        distance *= 2
    return y.reshape(rows, width)


def round_rows(values: Floats, kind: ByteKind, loud: Ints, apart: bool) -> Rounded:
    """Quantise rows to 8 bits: rotated, each by its absmax. ``scale = max |y| / 127`` (448),
    ``code = rint(y * (1 / scale))``, halves to even, or the nearest e4m3 number. A row whose absmax is below 2^-100 has
    scale and codes 0; one with a NaN, an infinity or a value of at least 2^100 has scale NaN and codes 0. `values`:
    float32 (rows, in), in a multiple of 256; they are first rounded to BF16; `loud`: int64 (count,), outlier channels;
    `apart`: True for inputs, in which outlier channels are 0. Weights keep theirs, which are multiplied by these zeros.

    >>> x = np.zeros((1, 256), np.float32)
    >>> x[0, 3] = 127
    >>> x[0, 9] = 4096
    >>> r = round_rows(x, ByteKind.INT8, np.array([9]), True)
    >>> np.unique(r.codes), r.scales * 16, r.loud
    (array([-127.,  127.], dtype=float32), array([1.], dtype=float32), array([[4096.]], dtype=float32))
    """
    if values.ndim != 2 or values.shape[1] % MULTIPLE:
        raise DeviceError(f"bytes: rows of a multiple of {MULTIPLE}, not {values.shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        x = _nearest_bf16(values)
        beside = x[:, loud]
        if apart:
            x[:, loud] = 0
        y = rotated(x)
    largest = np.abs(y).max(axis=1)  # NaN where one is
    usable = (largest >= LEAST) & (largest < MOST)
    scales = np.where(usable, largest, 1).astype(np.float32) / np.float32(kind.largest)
    scaled = np.where(usable[:, None], y, 0) * (np.float32(1) / scales)[:, None]
    codes = np.rint(scaled) if kind is ByteKind.INT8 else round_e4m3(scaled)
    scales *= np.float32(block_of(values.shape[1]) ** -0.5)
    scales[~usable] = np.where(largest[~usable] < LEAST, 0, np.nan)
    return Rounded(codes, scales, beside)


def _nearest_bf16(x: Floats) -> Floats:
    """Round to BF16, preserving NaN and infinity, which the format's encoder rejects."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    nearest: Floats = np.where(np.isnan(x), bits, rounded).astype(np.uint32).view(np.float32)
    return nearest


def byte_product(x: Rounded, w: Rounded) -> Floats:
    """``y = x Wᵀ`` of quantised rows, float32 (tokens, out): as in the kernels, the sum of whole numbers is exact, and
    outlier channels are added to it."""
    total = np.zeros((len(x.codes), len(w.codes)))
    for first in range(0, x.codes.shape[1], CHUNK):
        some = slice(first, first + CHUNK)
        total += x.codes[:, some] @ w.codes[:, some].T  # for int8 integers below 2^24
    y: Floats = total.astype(np.float32) * (w.scales * x.scales[:, None])
    return y + x.loud @ w.loud.T


def round_inputs(x: Any, kind: ByteKind, loud: LoudChannels) -> ByteRows:
    """`round_rows` of inputs, bf16 as uint16 (tokens, in), on the device."""
    _check(x)
    cupy, (tokens, width) = import_cupy(), x.shape
    held = -(-tokens // PADDED) * PADDED + PADDED  # all scales are written: the padding's must not be NaN
    codes, scales = cupy.empty((tokens, width), np.uint8), cupy.empty(held, np.float32)
    apart = cupy.empty((tokens, LOUD), np.uint16)
    _launch(x, codes, scales, kind, (apart, loud.count, loud.channels, loud.mask))
    return ByteRows(tokens, width, kind, codes, scales, apart)


def round_into(x: Any, codes: Any, scales: Any, kind: ByteKind) -> None:
    """`round_rows` of rows of a weight, bf16 as uint16 (rows, in), on the device, into `codes` and `scales`, whose
    further values become 0."""
    _check(x)
    _launch(x, codes, scales, kind, (None,) * 4)


def _check(x: Any) -> None:
    if not is_device(x) or x.ndim != 2 or x.dtype != "uint16" or x.shape[1] % MULTIPLE or x.shape[1] > MOST_INPUTS:
        wanted = f"bf16 rows on a device, of a multiple of {MULTIPLE}, up to {MOST_INPUTS}"
        raise DeviceError(f"bytes: {wanted}, not {x.dtype} {x.shape}")


def _launch(x: Any, codes: Any, scales: Any, kind: ByteKind, loud: tuple[Any, ...]) -> None:
    defines = {"COLS": x.shape[1], "KIND": int(kind)}
    ROUND_ROWS.launch((len(scales),), x, codes, scales, *loud, len(x), defines=defines)
