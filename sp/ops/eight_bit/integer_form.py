"""integer_form: a packed weight as integers of a byte, a scale for each group and what is added to every value."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sp.arrays import Bytes, Floats, Int8s
from sp.errors import ModelError
from sp.kernels.specs.matmul.gemm_int8 import GROUP, is_native
from sp.ops.matmul.fragment_order import pack_numpy, tiled_packing, unpack_numpy
from sp.quant import Packing, Weight
from sp.quant.formats.kquants.shared import pack_scales, unpack_scales
from sp.quant.packing import TILE


class IntegerForm(NamedTuple):
    """``w = scales * codes + shifts``.

    Attributes
    ----------
    codes : int8 (out, in)
        Counted from the middle of their range, or the numbers that are looked up.
    scales : float32 (out, in / group)
        `group` is 32, of Q6_K and Q3_K 16.
    shifts : float32 (out, in / 32), optional
        Minima, and what the middle code stands for; None where that is 0.
    """

    codes: Int8s
    scales: Floats
    shifts: Floats | None


def integer_form(w: Weight) -> IntegerForm:
    """Nothing of the weight is lost: scales are exact in float32, shifts are rounded once.

    Parameters
    ----------
    w : Weight (out, in)
        Of a format whose codes are integers, in a multiple of 64.

    Raises
    ------
    ModelError
        For plain numbers, and formats without a packing.

    Examples
    --------
    >>> from sp.quant import Q8_0
    >>> w = Weight.from_floats("w", np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64), Q8_0)
    >>> form = integer_form(w)
    >>> bool((form.codes * np.repeat(form.scales, 32, axis=1) == w.dense()).all())
    True
    """
    p = tiled_packing(w.name, w.format)
    if not is_native(p):
        raise ModelError(f"{w.name}: {w.format.name} has no integer codes of up to a byte")
    rows, width = w.shape
    numbers = unpack_numpy(w.format, {**pack_numpy(w.format, w.data), **_unit_scales(p, w)}, (rows, width))
    centre = 0 if p.lookup else p.centre
    codes = ((numbers - centre) / (1 if p.lookup else p.stride)).astype(np.int8)
    step, least = _steps(p, w.data.reshape(-1, w.format.block_bytes))
    scales = (np.float32(p.stride) * step).reshape(rows, -1)
    if centre == 0:
        return IntegerForm(codes, scales, None)
    return IntegerForm(codes, scales, (np.float32(centre) * step + least).reshape(rows, -1))


def scale_words(w: Weight) -> Floats:
    """Scales as the kernel reads them: float32 (row tiles, in / 64, 64 rows, 4), rows past the end zero.

    Of each 64 inputs the scale and the shift of two groups, or four scales where these cover 16 inputs. Codes of fewer
    than eight bits are multiplied at the top of a byte, so their scales are over what a code grows by there.
    `integer_scales.cu` makes the same on the device.
    """
    form, p, (rows, width) = integer_form(w), tiled_packing(w.name, w.format), w.shape
    scales = form.scales / np.float32(1 if p.lookup else 1 << (8 - p.bits))
    if scales.shape[1] == width // GROUP:
        shifts = np.zeros_like(scales) if form.shifts is None else form.shifts
        scales = np.stack([scales, shifts], axis=-1)
    words = np.zeros((-(-rows // TILE) * TILE, width // TILE, 4), np.float32)
    words[:rows] = scales.reshape(rows, -1, 4)
    return words.reshape(-1, TILE, width // TILE, 4).swapaxes(1, 2)


def _steps(p: Packing, blocks: Bytes) -> tuple[Floats, Floats | np.float32]:
    """What codes are times, and what is added besides, (blocks, groups) of file blocks (blocks, block_bytes)."""
    assert p.scales is not None
    zero, held = np.float32(0), blocks[:, p.scales.at : p.scales.at + p.scales.nbytes]
    if p.delta:
        counts = p.scales.steps(blocks) if p.scales.steps else np.ascontiguousarray(held).view(np.int8)
        return _halves(blocks[:, p.delta.at : p.delta.at + 2]) * counts, zero
    if p.scales.nbytes == 1:
        return np.ldexp(np.float32(1), held.astype(np.int32) - 128), zero
    both = _halves(held[:, :4])
    if not p.super:
        return both[:, :1], both[:, 1:] if p.minima else zero
    scales, minima = unpack_scales(held[:, 4:])
    return both[:, :1] * scales, -both[:, 1:] * minima


def _unit_scales(p: Packing, w: Weight) -> dict[str, Bytes]:
    """Planes of scales with which values are the codes, or the numbers they stand for."""
    assert p.scales is not None
    one = np.array([1, 0], np.float16).view(np.uint8)
    if p.delta:
        unit = np.ones(p.scales.held, np.uint8)
    elif p.scales.nbytes == 1:
        unit = np.array([128], np.uint8)
    elif p.super:
        packed, ones = np.empty((1, 12), np.uint8), np.ones((1, 8), np.uint8)
        pack_scales(ones, 0 * ones, packed)
        unit = np.concatenate([one, packed[0]])
    else:
        unit = one[: p.scales.nbytes]
    blocks = -(-w.shape[0] // TILE) * TILE * w.shape[1] // p.block
    planes = {"scales": np.tile(unit, blocks)}
    return planes | ({"deltas": np.tile(one[:2], blocks)} if p.delta else {})


def _halves(stored: Bytes) -> Floats:
    return np.ascontiguousarray(stored).view("<f2").astype(np.float32)
