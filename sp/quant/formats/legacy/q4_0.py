"""Q4_0: 32 four-bit codes and one fp16 scale; 4.5 bits a value.

Layout (18 bytes): ``f2 d; u1 q[16]``; byte ``j`` holds value ``j`` in its low and ``j + 16`` in its high nibble,
and ``x = d * (code - 8)``. Encoding: ``d = m / -8`` for the signed value ``m`` of largest magnitude (the first
one on a tie) and ``code = min(15, trunc(x * (1 / d) + 8.5))``. Product and sum are rounded to float32 one after
the other, as ggml's C source is written; a compiler that fuses them into one multiply-add can move a value that
lies within an ulp of a rounding border by one code.
"""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, fp16_scales, inverse_or_zero, slab_decoder, slab_encoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format
from sp.quant.spread import SIGN, SPREAD, put_scale, rms


def _encode_blocks(values: Floats, out: Bytes) -> None:
    largest = np.abs(values).argmax(axis=1, keepdims=True)
    peak = np.take_along_axis(values, largest, axis=1) + np.float32(0)  # -0.0 becomes 0.0, as in the reference
    d = peak / np.float32(-8)
    out[:, :2] = fp16_scales("Q4_0", d).view(np.uint8)
    shifted = values * inverse_or_zero(d)
    shifted += np.float32(8.5)
    codes = shifted.astype(np.uint8)
    np.minimum(codes, 15, out=codes)
    np.left_shift(codes[:, 16:], 4, out=out[:, 2:])
    out[:, 2:] |= codes[:, :16]


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 2:], codes)
    np.copyto(out, codes)
    out -= np.float32(8)
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def _spread(out: Bytes, std: float) -> None:
    """Codes -8..7 have a mean, so the scale takes either sign."""
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * SIGN / rms(-8, 7))


Q4_0 = register_format(
    BlockFormat(
        "Q4_0",
        2,
        32,
        18,
        slab_encoder("Q4_0", 32, 18, _encode_blocks),
        slab_decoder("Q4_0", 32, 18, _decode_blocks),
        Packing(32, Plane(4, 2, 16), scales=Scales(0, 2), group=32),
        _spread,
    )
)
"""32 values in 18 bytes; about 8.6 % relative RMS error on normal weights."""
