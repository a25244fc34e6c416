"""quantise: inputs of a matrix product as int8, a scale for each group of 32, and their layout on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats, Int8s, Ints
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.matmul.gemm_int8 import GROUP, HELD, MOST_NORMED, QUANTISE
from sp.ops.norms import Norm, rms_norm
from sp.quant.packing import TILE

LEAST, MOST = np.float32(2.0**-100), np.float32(2.0**100)
"""A group without a larger value than the first counts as zeros, one with a larger one than the second as no number:
scales, their inverses and 1.5 * 2^23 times them stay normal numbers.
"""
ORDER = np.arange(16).reshape(2, 4, 2).transpose(1, 2, 0).reshape(16)
"""Which of 16 inputs lies in each byte on the device: the order in which codes of weights become operands."""


class Quantised(NamedTuple):
    """Inputs as integers: ``x = scales * codes``, groups of 32 along a row.

    Attributes
    ----------
    codes : int8 (tokens, in)
        From -127 to 127.
    scales : float32 (tokens, in / 32)
        0 of a group of zeros, NaN of one that holds what is no finite number.
    sums : int32 (tokens, in / 32)
        Of the codes of each group, for what weights add to every input.
    """

    codes: Int8s
    scales: Floats
    sums: Ints


@dataclass(frozen=True)
class Int8Tiles:
    """Quantised inputs as the device holds them; tokens are padded to `held`, what is there does not matter.

    Attributes
    ----------
    tokens, width : int
    codes : int8 (in / 64, held, 64)
        Inside 16 inputs in `ORDER`.
    pairs : float32 (in / 32, held, 2)
        The scale of a group, and scale times sum.
    """

    tokens: int
    width: int
    codes: Any
    pairs: Any


def quantise(x: Any, norm: Norm | None = None) -> Any:
    """Round inputs to int8, each group of 32 by its largest.

    ``scale = max |x| / 127`` with the two lowest bits of its fraction cleared, so that 1.5 * 2^23 times it is exact;
    ``code = rint(x * (1 / scale))``, halves to even. A group whose largest value is below 2^-100 has scale and codes 0.
    One with a NaN, an infinity or a value of 2^100 and more has the scale NaN and codes 0, so that all outputs of its
    token are NaN.

    Parameters
    ----------
    x : float32 (tokens, in), or on the device also bf16 as uint16
        in a multiple of 64.
    norm : Norm, optional
        RMS norm that comes first, of float32; on the device of rows of up to 8192.

    Returns
    -------
    Quantised, or on the device Int8Tiles

    References
    ----------
    Dettmers, Lewis, Belkada, Zettlemoyer, "LLM.int8()", 2022 (rounding by the largest value); groups of 32 as in
    llama.cpp's Q8_1.

    Examples
    --------
    >>> x = np.zeros((1, 64), np.float32)
    >>> x[0, :3] = 127, -63.5, 0.6
    >>> q = quantise(x)
    >>> q.codes[0, :3], q.scales, q.sums
    (array([127, -64,   1], dtype=int8), array([[1., 0.]], dtype=float32), array([[64,  0]], dtype=int32))
    """
    if x.ndim != 2 or x.shape[1] % TILE:
        raise DeviceError(f"quantise: inputs must be rows of a multiple of {TILE}, got {x.shape}")
    if is_device(x):
        return _quantise_device(x, norm)
    values = x if norm is None else rms_norm(x, *norm)
    groups = values.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(axis=-1)  # NaN where one is
    usable = (largest >= LEAST) & (largest < MOST)
    scales = (np.where(usable, largest / np.float32(127), 1).view(np.uint32) & np.uint32(0xFFFFFFFC)).view(np.float32)
    codes = np.rint(np.where(usable[..., None], groups, 0) * (np.float32(1) / scales)[..., None]).astype(np.int8)
    scales[~usable] = np.where(largest[~usable] < LEAST, 0, np.nan)
    return Quantised(codes.reshape(x.shape), scales, codes.sum(axis=-1, dtype=np.int32))


def _quantise_device(x: Any, norm: Norm | None) -> Int8Tiles:
    tokens, width = x.shape
    wide = x.dtype.char == "f"
    if norm is not None and (not wide or width > MOST_NORMED):
        raise DeviceError(f"quantise: a norm is of float32 rows of up to {MOST_NORMED}, not {x.dtype} {x.shape}")
    tiles = empty_int8_tiles(tokens, width)
    weight, eps = (None, 0.0) if norm is None else norm
    defines = {"COLS": width, "WIDE": int(wide), "NORM": int(norm is not None)}
    held = tiles.codes.shape[1]
    given = (x, None) if wide else (None, x)
    QUANTISE.launch((tokens,), *given, weight, tiles.codes, tiles.pairs, float(eps), held, defines=defines)
    return tiles


def empty_int8_tiles(tokens: int, width: int) -> Int8Tiles:
    """Room on the current device."""
    cupy, held = import_cupy(), -(-tokens // HELD) * HELD
    codes = cupy.empty((width // TILE, held, TILE), np.int8)
    return Int8Tiles(tokens, width, codes, cupy.empty((width // GROUP, held, 2), np.float32))


def tiled(q: Quantised) -> Int8Tiles:
    """The layout of the device in NumPy, which defines it; the padding is zero.

    Examples
    --------
    >>> none = np.zeros((1, 2), np.float32)
    >>> q = Quantised(np.arange(64, dtype=np.int8).reshape(1, 64), none, none.astype(np.int32))
    >>> tiled(q).codes.shape, tiled(q).codes[0, 0, :8]
    ((1, 128, 64), array([ 0,  8,  1,  9,  2, 10,  3, 11], dtype=int8))
    """
    tokens, width = q.codes.shape
    tiles, held = width // TILE, -(-tokens // HELD) * HELD
    codes = np.zeros((tiles, held, TILE), np.int8)
    ordered = q.codes.reshape(tokens, tiles, 4, 16)[..., ORDER]
    codes[:, :tokens] = ordered.reshape(tokens, tiles, TILE).swapaxes(0, 1)
    pairs = np.zeros((width // GROUP, held, 2), np.float32)
    pairs[:, :tokens] = np.stack([q.scales, q.scales * q.sums.astype(np.float32)], axis=-1).swapaxes(0, 1)
    return Int8Tiles(tokens, width, codes, pairs)
