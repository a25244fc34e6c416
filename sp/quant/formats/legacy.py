"""ggml's first formats, called legacy quants: 32 codes with one scale, around a middle or above a minimum.

Encoders reproduce ggml's reference quantisers. Product and sum are rounded to float32 separately, as in ggml's C
source; a compiler that fuses them into one multiply-add can change a value within an ulp of a rounding border by one
code."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, fp16_scales, inverse_or_zero, slab_decoder, slab_encoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.random_scales import FACTORS, SIGN, put_scale, rms
from sp.quant.registry import register_format


def encode_symmetric(name: str, values: Floats, middle: int, out: Bytes) -> Bytes:
    """Return codes 0..2 `middle` - 1 of (blocks, 32) `values` and write d to ``out[:, :2]``. ``d = m / -middle`` for
    the signed value m of largest magnitude, the first one on a tie, and ``code = min(2 middle - 1, trunc(x * (1 / d) +
    middle + 0.5))``."""
    largest = np.abs(values).argmax(axis=1, keepdims=True)
    peak = np.take_along_axis(values, largest, axis=1) + np.float32(0)  # -0.0 becomes 0.0, as in the reference
    d = peak / np.float32(-middle)
    out[:, :2] = fp16_scales(name, d).view(np.uint8)
    return _codes(values * inverse_or_zero(d), middle + 0.5, 2 * middle - 1)


def encode_affine(name: str, values: Floats, top: int, out: Bytes) -> Bytes:
    """Return codes 0..`top` of (blocks, 32) `values` and write d and m to ``out[:, :4]``. ``m = min x``, ``d = (max x -
    m) / top`` and ``code = min(top, trunc((x - m) * (1 / d) + 0.5))``."""
    minimum = values.min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # an infinite range is rejected by fp16_scales below
        d = (values.max(axis=1, keepdims=True) - minimum) / np.float32(top)
    out[:, :2] = fp16_scales(name, d).view(np.uint8)
    out[:, 2:4] = fp16_scales(name, minimum).view(np.uint8)
    return _codes((values - minimum) * inverse_or_zero(d), 0.5, top)


def _codes(scaled: Floats, shift: float, top: int) -> Bytes:
    scaled += np.float32(shift)
    codes = scaled.astype(np.uint8)
    return np.minimum(codes, np.uint8(top), out=codes)


def decode_symmetric(blocks: Bytes, codes: Bytes, middle: int, out: Floats) -> None:
    """Write ``d * (code - middle)`` for (blocks, 32) `codes`; `blocks` start with d."""
    np.copyto(out, codes)
    out -= np.float32(middle)
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def decode_affine(blocks: Bytes, codes: Bytes, out: Floats) -> None:
    """Write ``d * code + m`` for (blocks, 32) `codes`; `blocks` start with d and m."""
    np.copyto(out, codes)
    out *= blocks[:, :2].view("<f2").astype(np.float32)
    out += blocks[:, 2:4].view("<f2").astype(np.float32)


def pack_low(codes: Bytes, out: Bytes) -> None:
    """Pack the low nibbles of (blocks, 32) codes into (blocks, 16) bytes: value j is the low nibble, j + 16 the high
    one."""
    np.left_shift(codes[:, 16:], 4, out=out)
    out |= codes[:, :16] & 15


def pack_fifth(codes: Bytes, out: Bytes) -> None:
    """Pack the fifth bits of (blocks, 32) codes into (blocks, 4) bytes, the lowest bit first."""
    out[...] = np.packbits(codes >> 4, axis=1, bitorder="little")


def unpack_fifth(packed: Bytes) -> Bytes:
    """Undo `pack_fifth`: return 0 or 16 for each of 32 values, so that it can be or-ed to the low bits."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def fit_symmetric(out: Bytes, std: float, middle: int) -> None:
    """Fit the scales of random codes -`middle`..`middle` - 1: their mean is not 0, so the scale takes either sign."""
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * SIGN / rms(-middle, middle - 1))


def fit_affine(out: Bytes, std: float, top: int) -> None:
    """Fit the scales of random codes 0..`top`: ``m = -d * top / 2`` makes all means 0."""
    pick = out[:, 0].copy()
    d = std * FACTORS / np.sqrt(((top + 1) ** 2 - 1) / 12)
    put_scale(out[:, :2], pick, d)
    put_scale(out[:, 2:4], pick, -d * top / 2)


def _encode_q4_0(values: Floats, out: Bytes) -> None:
    codes = encode_symmetric("Q4_0", values, 8, out)
    pack_low(codes, out[:, 2:])


def _decode_q4_0(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 2:], codes)
    decode_symmetric(blocks, codes, 8, out)


Q4_0 = register_format(
    BlockFormat(
        "Q4_0",
        2,
        32,
        18,
        slab_encoder("Q4_0", 32, 18, _encode_q4_0),
        slab_decoder("Q4_0", 32, 18, _decode_q4_0),
        Packing(32, Plane(4, 2, 16), scales=Scales(0, 2), group=32),
        lambda out, std: fit_symmetric(out, std, 8),
    )
)
"""Q4_0: 32 four-bit codes and one fp16 scale; 4.5 bits a value, about 8.6 % relative RMS error on normal weights.

Layout (18 bytes): ``f2 d; u1 q[16]``; byte ``j`` holds value ``j`` in its low and ``j + 16`` in its high nibble, and
``x = d * (code - 8)``. How it is encoded is said in `encode_symmetric`."""


def _encode_q4_1(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q4_1", values, 15, out)
    pack_low(codes, out[:, 4:])


def _decode_q4_1(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 4:], codes)
    decode_affine(blocks, codes, out)


Q4_1 = register_format(
    BlockFormat(
        "Q4_1",
        3,
        32,
        20,
        slab_encoder("Q4_1", 32, 20, _encode_q4_1),
        slab_decoder("Q4_1", 32, 20, _decode_q4_1),
        Packing(32, Plane(4, 4, 16), scales=Scales(0, 4), group=32, minima=True),
        lambda out, std: fit_affine(out, std, 15),
    )
)
"""Q4_1: 32 four-bit codes, one fp16 scale and one fp16 minimum; 5 bits a value, about 7.8 % relative RMS error on
normal weights.

Layout (20 bytes): ``f2 d; f2 m; u1 q[16]``; nibbles as in Q4_0, and ``x = d * code + m``. How it is encoded is said in
`encode_affine`."""


def _encode_q5_0(values: Floats, out: Bytes) -> None:
    codes = encode_symmetric("Q5_0", values, 16, out)
    pack_fifth(codes, out[:, 2:6])
    pack_low(codes, out[:, 6:])


def _decode_q5_0(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 6:], codes)
    codes |= unpack_fifth(blocks[:, 2:6])
    decode_symmetric(blocks, codes, 16, out)


Q5_0 = register_format(
    BlockFormat(
        "Q5_0",
        6,
        32,
        22,
        slab_encoder("Q5_0", 32, 22, _encode_q5_0),
        slab_decoder("Q5_0", 32, 22, _decode_q5_0),
        Packing(32, Plane(4, 6, 16), Plane(1, 2), scales=Scales(0, 2), group=32),
        lambda out, std: fit_symmetric(out, std, 16),
    )
)
"""Q5_0: 32 five-bit codes and one fp16 scale; 5.5 bits a value, about 4.3 % relative RMS error on normal weights.

Layout (22 bytes): ``f2 d; u1 high[4]; u1 q[16]``; nibbles as in Q4_0, the fifth bit of value ``i`` is bit ``i % 8`` of
``high[i // 8]``, and ``x = d * (code - 16)``. How it is encoded is said in `encode_symmetric`."""


def _encode_q5_1(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q5_1", values, 31, out)
    pack_fifth(codes, out[:, 4:8])
    pack_low(codes, out[:, 8:])


def _decode_q5_1(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 8:], codes)
    codes |= unpack_fifth(blocks[:, 4:8])
    decode_affine(blocks, codes, out)


Q5_1 = register_format(
    BlockFormat(
        "Q5_1",
        7,
        32,
        24,
        slab_encoder("Q5_1", 32, 24, _encode_q5_1),
        slab_decoder("Q5_1", 32, 24, _decode_q5_1),
        Packing(32, Plane(4, 8, 16), Plane(1, 4), scales=Scales(0, 4), group=32, minima=True),
        lambda out, std: fit_affine(out, std, 31),
    )
)
"""Q5_1: 32 five-bit codes, one fp16 scale and one fp16 minimum; 6 bits a value, about 3.8 % relative RMS error on
normal weights.

Layout (24 bytes): ``f2 d; f2 m; u1 high[4]; u1 q[16]``; bits of the codes as in Q5_0, and ``x = d * code + m``. How it
is encoded is said in `encode_affine`."""


def _encode_q8_0(values: Floats, out: Bytes) -> None:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    out[:, :2] = fp16_scales("Q8_0", d).view(np.uint8)
    scaled = values * inverse_or_zero(d)
    whole = np.trunc(scaled)
    scaled -= whole  # exact, so the comparison with a half is too; adding a half first would misround 0.49999997
    whole += scaled >= np.float32(0.5)
    whole -= scaled <= np.float32(-0.5)
    out[:, 2:].view(np.int8)[...] = whole


def _decode_q8_0(blocks: Bytes, out: Floats) -> None:
    np.copyto(out, blocks[:, 2:].view(np.int8))
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def _fit_q8_0(out: Bytes, std: float) -> None:
    """Fit the scales; code -128, which has no counterpart and which no encoder writes, becomes 0."""
    codes = out[:, 2:].view(np.int8)
    codes *= codes != -128
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS / (rms(-127, 127) * np.sqrt(255 / 256)))


Q8_0 = register_format(
    BlockFormat(
        "Q8_0",
        8,
        32,
        34,
        slab_encoder("Q8_0", 32, 34, _encode_q8_0),
        slab_decoder("Q8_0", 32, 34, _decode_q8_0),
        Packing(32, Plane(8, 2), scales=Scales(0, 2), group=32, signed=True),
        _fit_q8_0,
    )
)
"""Q8_0: 32 signed bytes and one fp16 scale; 8.5 bits a value, about 0.5 % relative RMS error on normal weights.

Layout (34 bytes): ``f2 d; i1 q[32]``; value ``x_i = d * q_i``. Encoding: ``d = max|x| / 127`` and
``q = round(x * (1 / d))`` in float32, halves away from zero, as ggml's reference quantiser rounds."""
