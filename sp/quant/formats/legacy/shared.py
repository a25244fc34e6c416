"""What the legacy quants share: one scale for 32 codes, around a middle or from a minimum, and where their bits lie.

Encoders repeat ggml's reference quantisers. Product and sum are rounded to float32 one after the other, as ggml's C
source is written; a compiler that fuses them into one multiply-add can move a value that lies within an ulp of a
rounding border by one code."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import fp16_scales, inverse_or_zero
from sp.quant.spread import SIGN, SPREAD, put_scale, rms


def encode_symmetric(name: str, values: Floats, middle: int, out: Bytes) -> Bytes:
    """Codes 0..2 `middle` - 1 of (blocks, 32) `values`; d goes to ``out[:, :2]``. ``d = m / -middle`` for the signed
    value m of largest magnitude, the first one on a tie, and
    ``code = min(2 middle - 1, trunc(x * (1 / d) + middle + 0.5))``."""
    largest = np.abs(values).argmax(axis=1, keepdims=True)
    peak = np.take_along_axis(values, largest, axis=1) + np.float32(0)  # -0.0 becomes 0.0, as in the reference
    d = peak / np.float32(-middle)
    out[:, :2] = fp16_scales(name, d).view(np.uint8)
    return _codes(values * inverse_or_zero(d), middle + 0.5, 2 * middle - 1)


def encode_affine(name: str, values: Floats, top: int, out: Bytes) -> Bytes:
    """Codes 0..`top` of (blocks, 32) `values`; d and m go to ``out[:, :4]``. ``m = min x``, ``d = (max x - m) / top``
    and ``code = min(top, trunc((x - m) * (1 / d) + 0.5))``."""
    minimum = values.min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # an infinite range is refused on the next line
        d = (values.max(axis=1, keepdims=True) - minimum) / np.float32(top)
    out[:, :2] = fp16_scales(name, d).view(np.uint8)
    out[:, 2:4] = fp16_scales(name, minimum).view(np.uint8)
    return _codes((values - minimum) * inverse_or_zero(d), 0.5, top)


def _codes(scaled: Floats, shift: float, top: int) -> Bytes:
    scaled += np.float32(shift)
    codes = scaled.astype(np.uint8)
    return np.minimum(codes, np.uint8(top), out=codes)


def decode_symmetric(blocks: Bytes, codes: Bytes, middle: int, out: Floats) -> None:
    """Write ``d * (code - middle)`` for (blocks, 32) `codes`; `blocks` open with d."""
    np.copyto(out, codes)
    out -= np.float32(middle)
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def decode_affine(blocks: Bytes, codes: Bytes, out: Floats) -> None:
    """Write ``d * code + m`` for (blocks, 32) `codes`; `blocks` open with d and m."""
    np.copyto(out, codes)
    out *= blocks[:, :2].view("<f2").astype(np.float32)
    out += blocks[:, 2:4].view("<f2").astype(np.float32)


def pack_low(codes: Bytes, out: Bytes) -> None:
    """Low nibbles of (blocks, 32) codes into (blocks, 16) bytes, of value j in the low and j + 16 in the high one."""
    np.left_shift(codes[:, 16:], 4, out=out)
    out |= codes[:, :16] & 15


def pack_fifth(codes: Bytes, out: Bytes) -> None:
    """Fifth bits of (blocks, 32) codes into (blocks, 4) bytes, the lowest bit first."""
    out[...] = np.packbits(codes >> 4, axis=1, bitorder="little")


def unpack_fifth(packed: Bytes) -> Bytes:
    """Inverse of `pack_fifth`, in place: 0 or 16 for each of 32 values."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def spread_symmetric(out: Bytes, std: float, middle: int) -> None:
    """`BlockFormat.spread` of codes -`middle`..`middle` - 1: they have a mean, so the scale takes either sign."""
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * SIGN / rms(-middle, middle - 1))


def spread_affine(out: Bytes, std: float, top: int) -> None:
    """`BlockFormat.spread` of codes 0..`top`: ``m = -d * top / 2``, so all means are 0."""
    pick = out[:, 0].copy()
    d = std * SPREAD / np.sqrt(((top + 1) ** 2 - 1) / 12)
    put_scale(out[:, :2], pick, d)
    put_scale(out[:, 2:4], pick, -d * top / 2)
