"""What the K-quants share: the packing of 6-bit scales and minima, and the searches for a sub-block's scale.

Both searches repeat ggml's reference quantisers step for step in float32, sums included: values are laid out
``(values of a sub-block, sub-blocks)``, and NumPy adds along the first axis row by row, in the order of a scalar loop.
So the packed bytes come out the same, with one sub-block per lane instead of one at a time. Source: I. Kawrakow,
"k-quants", https://github.com/ggml-org/llama.cpp/pull/1684, with the weighted search that ggml's reference quantisers
later took up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sp.arrays import Bytes, Floats
from sp.quant.base import fp16_scales
from sp.quant.spread import SPREAD, put_scale, rms

GROUP_MAX_EPS = np.float32(1e-15)  # a sub-block whose largest magnitude is below this is stored as zeros


def unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minima, each (blocks, 8), from (blocks, 12) bytes of Q4_K or Q5_K. Scales 0-3
    and minima 0-3 lie in the low six bits of bytes 0-3 and 4-7; the low nibbles of scales and minima 4-7 share bytes
    8-11, and their upper two bits fill the tops of bytes 0-3 and 4-7."""
    low = packed[:, :8]
    top = (low >> 6) << 4
    scales = np.empty((len(packed), 8), np.uint8)
    minima = np.empty((len(packed), 8), np.uint8)
    np.bitwise_and(low[:, :4], 63, out=scales[:, :4])
    np.bitwise_and(low[:, 4:], 63, out=minima[:, :4])
    np.bitwise_or(packed[:, 8:] & 15, top[:, :4], out=scales[:, 4:])
    np.bitwise_or(packed[:, 8:] >> 4, top[:, 4:], out=minima[:, 4:])
    return scales, minima


def pack_scales(scales: Bytes, minima: Bytes, out: Bytes) -> None:
    """Inverse of `unpack_scales`: two (blocks, 8) arrays of codes 0-63 into (blocks, 12) bytes."""
    out[:, :4] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    out[:, 4:8] = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    out[:, 8:] = (scales[:, 4:] & 15) | (minima[:, 4:] << 4)


def decode_affine(blocks: Bytes, codes: Bytes, out: Floats) -> None:
    """Write ``d * scale * code - dmin * minimum`` for (blocks, 256) `codes`; `blocks` open with d and dmin."""
    scales, minima = unpack_scales(blocks[:, 4:16])
    step = blocks[:, :2].view("<f2").astype(np.float32) * scales
    offset = blocks[:, 2:4].view("<f2").astype(np.float32) * minima
    np.copyto(out, codes)
    groups = out.reshape(-1, 8, 32)
    groups *= step[:, :, None]
    groups -= offset[:, :, None]


@dataclass(frozen=True)
class Search:
    """What a search found for each sub-block, all of shape (sub-blocks,). ``code = clip(rint((x - offset) * inverse))``
    are the codes it ended with, ``scale`` and ``minimum >= 0`` the least-squares fit ``x = scale * code - minimum`` to
    them."""

    scale: Floats
    minimum: Floats
    inverse: Floats
    offset: Floats


def search_affine(x: Floats, top: int, first: float, steps: int) -> Search:
    """Fit ``scale * code - minimum`` with codes 0..`top` to each column of `x` (32, sub-blocks). Tries the plain range
    ``(max - min) / top``, then ``steps + 1`` stretched ones with ``top + first + 0.1 * step`` codes to the range. For
    each, a weighted least-squares fit to the rounded codes (weights ``rms(x) + |x|``) replaces the best so far if its
    weighted error is less. The range of later steps starts at the best minimum so far."""
    low = np.minimum(x.min(axis=0), np.float32(0))
    high = x.max(axis=0)
    flat = high == low
    high[flat] += 1  # any range will do: these columns end with scale 0
    codes, wl, buffer = np.empty_like(x), np.empty_like(x), np.empty_like(x)

    def quantise(inverse: Floats) -> None:
        np.subtract(x, low, out=codes)
        np.multiply(codes, inverse, out=codes)
        np.rint(codes, out=codes)
        np.clip(codes, 0, top, out=codes)

    def error(scale: Floats, offset: Floats) -> Floats:
        np.multiply(codes, scale, out=buffer)
        np.add(buffer, offset, out=buffer)
        np.subtract(buffer, x, out=buffer)
        np.multiply(buffer, buffer, out=buffer)
        np.multiply(buffer, w, out=buffer)
        total: Floats = np.add.reduce(buffer, axis=0)
        return total

    # Denormal or huge columns overflow or divide by zero here; NaN and Inf win no comparison, so they drop out.
    with np.errstate(all="ignore"):
        w = np.sqrt(np.add.reduce(x * x, axis=0) / np.float32(len(x))) + np.abs(x)
        sum_w, sum_x = np.add.reduce(w, axis=0), np.add.reduce(w * x, axis=0)
        inverse = np.float32(top) / (high - low)
        scale = np.float32(1) / inverse
        offset = low.copy()
        quantise(inverse)
        best = error(scale, low)
        for step in range(steps + 1):
            stretch = np.float32(first) + np.float32(0.1) * np.float32(step) + np.float32(top)
            trial = stretch / (high - low)
            quantise(trial)
            sum_l = np.add.reduce(np.multiply(w, codes, out=wl), axis=0)
            sum_ll = np.add.reduce(np.multiply(wl, codes, out=buffer), axis=0)
            sum_xl = np.add.reduce(np.multiply(wl, x, out=buffer), axis=0)
            determinant = sum_w * sum_ll - sum_l * sum_l
            fit = (sum_w * sum_xl - sum_x * sum_l) / determinant
            fit_low = (sum_ll * sum_x - sum_l * sum_xl) / determinant
            positive = fit_low > 0
            fit = np.where(positive, sum_xl / sum_ll, fit)
            fit_low = np.where(positive, np.float32(0), fit_low)
            trial_error = error(fit, fit_low)
            better = (determinant > 0) & (trial_error < best)
            np.copyto(best, trial_error, where=better)
            np.copyto(scale, fit, where=better)
            np.copyto(inverse, trial, where=better)
            np.copyto(offset, low, where=better)
            np.copyto(low, fit_low, where=better)
    scale[flat] = inverse[flat] = 0
    return Search(scale, -low, inverse, offset)


def search_symmetric(x: Floats, top: int) -> Search:
    """Fit ``scale * code`` with codes -`top`..`top` - 1 to each column of `x` (values, sub-blocks). Tries
    ``-(top + 0.1 * step) / m`` for steps 0, -9..-1, 1..9, ``m`` the signed value of largest magnitude, and keeps the
    codes whose ``x**2``-weighted least-squares scale explains the most. ``minimum`` and ``offset`` are zero."""
    magnitude = np.abs(x)
    row = magnitude.argmax(axis=0)[None]
    tiny = np.take_along_axis(magnitude, row, axis=0)[0] < GROUP_MAX_EPS
    peak = np.where(tiny, np.float32(1), np.take_along_axis(x, row, axis=0)[0])
    codes, buffer = np.empty_like(x), np.empty_like(x)
    scale, inverse, best = np.zeros_like(peak), np.zeros_like(peak), np.zeros_like(peak)
    with np.errstate(all="ignore"):
        w = x * x
        wx = w * x
        for step in (0, *range(-9, 0), *range(1, 10)):
            trial = -(np.float32(top) + np.float32(0.1) * np.float32(step)) / peak
            np.multiply(x, trial, out=codes)
            np.rint(codes, out=codes)
            np.clip(codes, -top, top - 1, out=codes)
            sum_lx = np.add.reduce(np.multiply(wx, codes, out=buffer), axis=0)
            np.multiply(w, codes, out=buffer)
            sum_ll = np.add.reduce(np.multiply(buffer, codes, out=buffer), axis=0)
            better = sum_ll > 0
            if step:
                better &= sum_lx * sum_lx > best * sum_ll
            fit = sum_lx / sum_ll
            np.copyto(scale, fit, where=better)
            np.copyto(best, fit * sum_lx, where=better)
            np.copyto(inverse, trial, where=better if step else ~tiny)
    scale[tiny] = 0
    zero = np.zeros_like(scale)
    return Search(scale, zero, inverse, zero)


def encode_affine(name: str, values: Floats, top: int, first: float, steps: int, out: Bytes) -> Bytes:
    """Encode (blocks, 256) `values`: d, dmin and scales go to ``out[:, :16]``; returns the (blocks, 256) codes."""
    columns = values.reshape(-1, 32)
    found = search_affine(np.ascontiguousarray(columns.T), top, first, steps)
    d, scales = _six_bit(name, found.scale.reshape(-1, 8))
    dmin, minima = _six_bit(name, found.minimum.reshape(-1, 8))
    out[:, 0:2] = d.view(np.uint8)
    out[:, 2:4] = dmin.view(np.uint8)
    pack_scales(scales, minima, out[:, 4:16])
    # The codes are found again for the scales as they were stored.
    step = (d.astype(np.float32) * scales).reshape(-1, 1)
    shifted = columns + (dmin.astype(np.float32) * minima).reshape(-1, 1)
    lost = np.flatnonzero(step == 0)
    step[lost] = 1
    shifted /= step
    with np.errstate(invalid="ignore"):  # the search of a column of denormals can end in NaN, code 0
        shifted[lost] = (columns[lost] - found.offset[lost, None]) * found.inverse[lost, None]
    codes = np.rint(shifted, out=shifted)
    np.fmax(codes, 0, out=codes)
    return np.fmin(codes, top, out=codes).astype(np.uint8).reshape(-1, 256)


def _six_bit(name: str, parts: Floats) -> tuple[npt.NDArray[np.float16], Bytes]:
    """The fp16 scale (blocks, 1) and codes 0-63 (blocks, 8) of non-negative sub-block scales or minima."""
    largest = np.maximum(parts.max(axis=1, keepdims=True), np.float32(0))
    d = fp16_scales(name, largest / np.float32(63))
    inverse = np.zeros_like(largest)
    np.divide(np.float32(63), largest, out=inverse, where=largest > np.float32(2.0**-120))
    codes = np.minimum(np.rint(parts * inverse), np.float32(63)).astype(np.uint8)
    return d, codes


def spread_affine(out: Bytes, std: float, top: int) -> None:
    """`BlockFormat.spread` of codes 0..`top`: minima equal the scales, ``dmin = d * top / 2``, so all means are 0."""
    words = out[:, :16].view("<u4")
    words[:, 1] |= 0xA0A0A0A0  # bits 5 and 7 of bytes 4-7: all eight scales at least 32
    words[:, 2] = words[:, 1]
    words[:, 3] &= 0x0F0F0F0F
    words[:, 3] |= words[:, 3] << 4
    pick = out[:, 0].copy()
    d = std * SPREAD / (np.sqrt(((top + 1) ** 2 - 1) / 12) * rms(32, 63))
    put_scale(out[:, 0:2], pick, d)
    put_scale(out[:, 2:4], pick, d * top / 2)
