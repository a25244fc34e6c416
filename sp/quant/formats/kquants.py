"""K-quants: 256 values in sub-blocks, whose scales are small integers under one fp16.

Both searches reproduce ggml's reference quantisers step by step in float32, including the order of sums: values are
laid out ``(values of a sub-block, sub-blocks)``, and NumPy adds along the first axis row by row, in the order of a
scalar loop. The packed bytes are therefore identical, with one sub-block per lane instead of one at a time. Source: I.
Kawrakow, "k-quants", https://github.com/ggml-org/llama.cpp/pull/1684, with the weighted search that ggml's reference
quantisers adopted later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sp.arrays import Bytes, Floats, Int8s
from sp.quant.base import BlockFormat, fp16_scales, no_encoder, slab_decoder, slab_encoder
from sp.quant.formats.codes import scale_groups, split_nibbles
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.random_scales import FACTORS, OUTER_RMS, SIGN, equal_bits, put_scale, rms
from sp.quant.registry import register_format

GROUP_MAX_EPS = np.float32(1e-15)  # a sub-block whose largest magnitude is below this is stored as zeros


def unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack eight 6-bit scales and eight 6-bit minima, each (blocks, 8), from (blocks, 12) bytes of Q4_K or Q5_K.
    Scales 0-3 and minima 0-3 are the low six bits of bytes 0-3 and 4-7; the low nibbles of scales and minima 4-7 share
    bytes 8-11, and their upper two bits are the top bits of bytes 0-3 and 4-7."""
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
    """Write ``d * scale * code - dmin * minimum`` for (blocks, 256) `codes`; `blocks` start with d and dmin."""
    scales, minima = unpack_scales(blocks[:, 4:16])
    step = blocks[:, :2].view("<f2").astype(np.float32) * scales
    offset = blocks[:, 2:4].view("<f2").astype(np.float32) * minima
    np.copyto(out, codes)
    groups = out.reshape(-1, 8, 32)
    groups *= step[:, :, None]
    groups -= offset[:, :, None]


@dataclass(frozen=True)
class ScaleFit:
    """The fit of each sub-block, arrays of shape (sub-blocks,). ``code = clip(rint((x - offset) * inverse))`` are the
    best codes, ``scale`` and ``minimum >= 0`` the least-squares fit ``x = scale * code - minimum`` to them."""

    scale: Floats
    minimum: Floats
    inverse: Floats
    offset: Floats


def search_affine(x: Floats, top: int, first: float, steps: int) -> ScaleFit:
    """Fit ``scale * code - minimum`` with codes 0..`top` to each column of `x` (32, sub-blocks). Try the plain range
    ``(max - min) / top``, then ``steps + 1`` stretched ones with ``top + first + 0.1 * step`` codes to the range. For
    each, a weighted least-squares fit to the rounded codes (weights ``rms(x) + |x|``) replaces the best so far if its
    weighted error is smaller. The range of later steps starts at the best minimum so far."""
    low = np.minimum(x.min(axis=0), np.float32(0))
    high = x.max(axis=0)
    flat = high == low
    high[flat] += 1  # any range will do: these columns get scale 0
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
            # Normal equations of min sum w (fit * code + fit_low - x)^2; a minimum above 0 is clamped to 0.
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
    return ScaleFit(scale, -low, inverse, offset)


def search_symmetric(x: Floats, top: int) -> ScaleFit:
    """Fit ``scale * code`` with codes -`top`..`top` - 1 to each column of `x` (values, sub-blocks). Try ``-(top + 0.1 *
    step) / m`` for steps 0, -9..-1, 1..9, ``m`` the signed value of largest magnitude, and take the codes whose
    ``x**2``-weighted least-squares scale explains most. ``minimum`` and ``offset`` are zero."""
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
                # (sum w x l)^2 / sum w l^2 is the explained error; compared without the division, as ggml does.
                better &= sum_lx * sum_lx > best * sum_ll
            fit = sum_lx / sum_ll
            np.copyto(scale, fit, where=better)
            np.copyto(best, fit * sum_lx, where=better)
            np.copyto(inverse, trial, where=better if step else ~tiny)
    scale[tiny] = 0
    zero = np.zeros_like(scale)
    return ScaleFit(scale, zero, inverse, zero)


def encode_affine(name: str, values: Floats, top: int, first: float, steps: int, out: Bytes) -> Bytes:
    """Encode (blocks, 256) `values`: write d, dmin and scales to ``out[:, :16]`` and return the (blocks, 256) codes."""
    columns = values.reshape(-1, 32)
    fit = search_affine(np.ascontiguousarray(columns.T), top, first, steps)
    d, scales = _six_bit(name, fit.scale.reshape(-1, 8))
    dmin, minima = _six_bit(name, fit.minimum.reshape(-1, 8))
    out[:, 0:2] = d.view(np.uint8)
    out[:, 2:4] = dmin.view(np.uint8)
    pack_scales(scales, minima, out[:, 4:16])
    # The codes are recomputed for the scales as stored, which are rounded.
    step = (d.astype(np.float32) * scales).reshape(-1, 1)
    shifted = columns + (dmin.astype(np.float32) * minima).reshape(-1, 1)
    lost = np.flatnonzero(step == 0)
    step[lost] = 1
    shifted /= step
    with np.errstate(invalid="ignore"):  # the search of a column of denormals can end in NaN, code 0
        shifted[lost] = (columns[lost] - fit.offset[lost, None]) * fit.inverse[lost, None]
    codes = np.rint(shifted, out=shifted)
    np.fmax(codes, 0, out=codes)
    return np.fmin(codes, top, out=codes).astype(np.uint8).reshape(-1, 256)


def _six_bit(name: str, parts: Floats) -> tuple[npt.NDArray[np.float16], Bytes]:
    """Return the fp16 scale (blocks, 1) and codes 0-63 (blocks, 8) of non-negative sub-block scales or minima."""
    largest = np.maximum(parts.max(axis=1, keepdims=True), np.float32(0))
    d = fp16_scales(name, largest / np.float32(63))
    inverse = np.zeros_like(largest)
    np.divide(np.float32(63), largest, out=inverse, where=largest > np.float32(2.0**-120))
    codes = np.minimum(np.rint(parts * inverse), np.float32(63)).astype(np.uint8)
    return d, codes


def fit_affine(out: Bytes, std: float, top: int) -> None:
    """Fit the scales of random blocks with codes 0..`top`: minima equal scales, and ``dmin = d * top / 2`` makes all
    means 0."""
    words = out[:, :16].view("<u4")
    words[:, 1] |= 0xA0A0A0A0  # bits 5 and 7 of bytes 4-7: all eight scales at least 32
    words[:, 2] = words[:, 1]
    words[:, 3] &= 0x0F0F0F0F
    words[:, 3] |= words[:, 3] << 4
    pick = out[:, 0].copy()
    d = std * FACTORS / (np.sqrt(((top + 1) ** 2 - 1) / 12) * rms(32, 63))
    put_scale(out[:, 0:2], pick, d)
    put_scale(out[:, 2:4], pick, d * top / 2)


_PAIR = np.array([0, 2, 4, 6], np.uint8)[:, None]  # _PAIR and _BIT: shifts of two-bit and one-bit fields in a byte
_BIT = np.arange(8, dtype=np.uint8)[:, None]


def _decode_q2_k(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    codes = blocks[:, 16:80].reshape(n, 2, 1, 32) >> _PAIR
    codes &= 3
    step = blocks[:, 80:82].view("<f2").astype(np.float32) * (blocks[:, :16] & 15)
    offset = blocks[:, 82:].view("<f2").astype(np.float32) * (blocks[:, :16] >> 4)
    scale_groups(codes.reshape(n, 256), step, out)
    groups = out.reshape(n, 16, 16)
    groups -= offset[:, :, None]


def _fit_q2_k(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range, with equal minima and ``dmin = 1.5 d``, so that all means are 0."""
    scales = out[:, :16]
    scales &= 7
    scales |= 8
    scales |= scales << 4
    pick = out[:, 80].copy()
    d = std * FACTORS / (np.sqrt(1.25) * rms(8, 15))
    put_scale(out[:, 80:82], pick, d)
    put_scale(out[:, 82:], pick, 1.5 * d)


Q2_K = register_format(
    BlockFormat(
        "Q2_K", 10, 256, 84, no_encoder("Q2_K"), slab_decoder("Q2_K", 256, 84, _decode_q2_k), fit_scales=_fit_q2_k
    )
)
"""Q2_K: 256 two-bit codes in sixteen affine sub-blocks; 2.625 bits a value.

Layout (84 bytes): ``u1 scales[16]; u1 q[64]; f2 d; f2 dmin``. Value ``128 h + 32 k + l`` has bits ``2 k`` and the next
of ``q[32 h + l]``. A byte of ``scales`` serves 16 values, its low nibble as scale and its high one as minimum:
``x = d * scale * code - dmin * minimum``."""


def _steps_q3_k(blocks: Bytes) -> Int8s:
    """Return the scales minus 32, int8 (blocks, 16)."""
    scales = np.empty((len(blocks), 16), np.uint8)
    split_nibbles(blocks[:, 96:104], scales)
    top = blocks[:, None, 104:108] >> _PAIR
    top &= 3
    top <<= 4
    scales |= top.reshape(scales.shape)
    scales -= np.uint8(32)
    return scales.view(np.int8)


def _decode_q3_k(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    codes = blocks[:, 32:96].reshape(n, 2, 1, 32) >> _PAIR
    codes &= 3
    high = blocks[:, None, :32] >> _BIT
    high &= 1
    high <<= 2
    codes |= high.reshape(codes.shape)
    codes -= np.uint8(4)  # wraps to the two's complement of the signed code
    step = blocks[:, 108:].view("<f2").astype(np.float32) * _steps_q3_k(blocks)
    scale_groups(codes.view(np.int8).reshape(n, 256), step, out)


def _fit_q3_k(out: Bytes, std: float) -> None:
    """Give scales a magnitude of 16 or more; their mean and that of the codes are not 0, so d takes either sign."""
    equal_bits(out[:, 104:108])
    put_scale(out[:, 108:], out[:, 108].copy(), std * FACTORS * SIGN / (rms(-4, 3) * OUTER_RMS))


Q3_K = register_format(
    BlockFormat(
        "Q3_K",
        11,
        256,
        110,
        no_encoder("Q3_K"),
        slab_decoder("Q3_K", 256, 110, _decode_q3_k),
        Packing(
            256,
            Plane(2, 32, 32),
            Plane(1, 0, 32),
            scales=Scales(96, 12, _steps_q3_k, 16),
            delta=Scales(108, 2),
            group=16,
        ),
        _fit_q3_k,
    )
)
"""Q3_K: 256 three-bit codes in sixteen symmetric sub-blocks; 3.4375 bits a value.

Layout (110 bytes): ``u1 high[32]; u1 low[64]; u1 scales[12]; f2 d``. Value ``l`` of run ``j`` of 32 values has bits
``2 (j % 4)`` and the next of ``low[32 (j // 4) + l]`` and bit ``j`` of ``high[l]``, and
``x = d * (scale - 32) * (code - 4)`` with one scale for 16 values. Six bits of scale ``i``: a nibble of
``scales[i % 8]``, the low one for the first eight, and bits ``2 (i // 4)`` and the next of ``scales[8 + i % 4]``."""


def _encode_q4_k(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q4_K", values, 15, -1.0, 20, out).reshape(-1, 4, 2, 32)
    out[:, 16:] = (codes[:, :, 0] | (codes[:, :, 1] << 4)).reshape(-1, 128)


def _decode_q4_k(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 16:].reshape(-1, 4, 32)
    codes = np.empty((len(blocks), 4, 2, 32), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    decode_affine(blocks, codes.reshape(-1, 256), out)


Q4_K = register_format(
    BlockFormat(
        "Q4_K",
        12,
        256,
        144,
        slab_encoder("Q4_K", 256, 144, _encode_q4_k),
        slab_decoder("Q4_K", 256, 144, _decode_q4_k),
        Packing(256, Plane(4, 16, 32), scales=Scales(0, 16), group=32, minima=True),
        lambda out, std: fit_affine(out, std, 15),
    )
)
"""Q4_K: 256 four-bit codes in eight affine sub-blocks; 4.5 bits a value, about 7.2 % relative RMS error on normal
weights.

Layout (144 bytes): ``f2 d; f2 dmin; u1 scales[12]; u1 q[128]``. Each group of 32 bytes of ``q`` holds sub-block ``2c``
in its low and ``2c + 1`` in its high nibbles, and ``x = d * scale_j * code - dmin * minimum_j``."""


def _encode_q5_k(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q5_K", values, 31, -0.5, 15, out)
    out[:, 16:48] = np.bitwise_or.reduce(codes.reshape(-1, 8, 32) >> 4 << _BIT, axis=1)
    low = codes.reshape(-1, 4, 2, 32) & 15
    out[:, 48:] = (low[:, :, 0] | (low[:, :, 1] << 4)).reshape(-1, 128)


def _decode_q5_k(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 48:].reshape(-1, 4, 32)
    codes = np.empty((len(blocks), 4, 2, 32), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    high = blocks[:, None, 16:48] >> _BIT
    high &= 1
    high <<= 4
    codes |= high.reshape(codes.shape)
    decode_affine(blocks, codes.reshape(-1, 256), out)


Q5_K = register_format(
    BlockFormat(
        "Q5_K",
        13,
        256,
        176,
        slab_encoder("Q5_K", 256, 176, _encode_q5_k),
        slab_decoder("Q5_K", 256, 176, _decode_q5_k),
        Packing(256, Plane(4, 48, 32), Plane(1, 16, 32), scales=Scales(0, 16), group=32, minima=True),
        lambda out, std: fit_affine(out, std, 31),
    )
)
"""Q5_K: 256 five-bit codes in eight affine sub-blocks; 5.5 bits a value, about 3.6 % relative RMS error on normal
weights.

Layout (176 bytes): ``f2 d; f2 dmin; u1 scales[12]; u1 high[32]; u1 q[128]``. As Q4_K, with the fifth bit of value ``l``
of sub-block ``j`` in bit ``j`` of ``high[l]``."""


def _encode_q6_k(values: Floats, out: Bytes) -> None:
    columns = values.reshape(-1, 16)
    fit = search_symmetric(np.ascontiguousarray(columns.T), 32)
    parts = fit.scale.reshape(-1, 16)
    largest = np.take_along_axis(parts, np.abs(parts).argmax(axis=1)[:, None], axis=1)
    zero = np.abs(largest[:, 0]) < GROUP_MAX_EPS
    largest[zero] = 1
    with np.errstate(all="ignore"):  # an infinite scale is rejected by fp16_scales below
        inverse = np.float32(-128) / largest
        reciprocal = np.float32(1) / inverse
    d = fp16_scales("Q6_K", reciprocal)
    scales = np.minimum(np.rint(parts * inverse), np.float32(127)).astype(np.int8)
    # The codes are recomputed for the scales as stored, which are rounded.
    step = (d.astype(np.float32) * scales).reshape(-1, 1)
    lost = np.flatnonzero(step == 0)
    step[lost] = 1
    ratio = columns / step
    ratio[lost] = np.where(fit.inverse[lost, None] == 0, np.float32(-32), columns[lost] * fit.inverse[lost, None])
    codes = (np.clip(np.rint(ratio), -32, 31) + np.float32(32)).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = codes & 15
    out[:, :128] = (low[:, :, :2] | (low[:, :, 2:] << 4)).reshape(-1, 128)
    out[:, 128:192] = np.bitwise_or.reduce(codes >> 4 << _PAIR, axis=2).reshape(-1, 64)
    out[:, 192:208] = scales.view(np.uint8)
    out[:, 208:] = d.view(np.uint8)
    out[zero] = 0


def _decode_q6_k(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 64)
    codes = np.empty((n, 2, 2, 64), np.uint8)
    np.bitwise_and(low, 15, out=codes[:, :, 0])
    np.right_shift(low, 4, out=codes[:, :, 1])
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> _PAIR
    high &= 3
    high <<= 4
    codes |= high.reshape(codes.shape)
    codes -= np.uint8(32)  # wraps to the two's complement of the signed code
    step = blocks[:, 208:].view("<f2").astype(np.float32) * blocks[:, 192:208].view(np.int8)
    scale_groups(codes.view(np.int8).reshape(n, 256), step, out)


def _fit_q6_k(out: Bytes, std: float) -> None:
    """Give scales either sign and a magnitude of 64 or more."""
    scales = out[:, 192:208]
    scales &= 0xBF
    scales |= ~scales >> 1 & 0x40
    mean_square = (rms(64, 127) ** 2 + rms(65, 128) ** 2) / 2
    put_scale(out[:, 208:], out[:, 208].copy(), std * FACTORS / (rms(-32, 31) * np.sqrt(mean_square)))


Q6_K = register_format(
    BlockFormat(
        "Q6_K",
        14,
        256,
        210,
        slab_encoder("Q6_K", 256, 210, _encode_q6_k),
        slab_decoder("Q6_K", 256, 210, _decode_q6_k),
        Packing(256, Plane(4, 0, 64), Plane(2, 128, 32), scales=Scales(192, 16), delta=Scales(208, 2), group=16),
        _fit_q6_k,
    )
)
"""Q6_K: 256 six-bit codes in sixteen symmetric sub-blocks; 6.5625 bits a value, about 1.8 % relative RMS error on
normal weights.

Layout (210 bytes): ``u1 low[128]; u1 high[64]; i1 scales[16]; f2 d``. Each half of 128 values takes 64 bytes of ``low``
and 32 of ``high``. Its quarter ``k`` of 32 values reads bytes ``32 * (k % 2) + l`` of ``low``, the low nibble for the
first two quarters and the high one for the others, and bits ``2k, 2k + 1`` of ``high[l]``;
``x = d * scale * (code - 32)`` with one scale for 16 values."""
