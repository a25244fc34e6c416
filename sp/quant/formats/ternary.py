"""Ternary formats: 256 codes of -1, 0 or 1 and one scale."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats, Int8s
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.random_scales import FACTORS, SIGN, put_scale
from sp.quant.registry import register_format


def _digits() -> Int8s:
    # Multiplying a fraction of 256ths by 3^k modulo 256 drops its first k ternary digits; the next one is its integer
    # part.
    fractions = np.arange(256) * 3 ** np.arange(5)[:, None] % 256
    return (fractions * 3 // 256 - 1).astype(np.int8)


_DIGITS = _digits()  # the five codes of a byte less 1, (5, 256)
_TQ1_0_RMS = float(np.sqrt(np.mean(np.square(_DIGITS, dtype=np.float64))))


def _decode_tq1_0(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 256), np.int8)
    for k, table in enumerate(_DIGITS):
        codes[:, 32 * k : 32 * k + 32] = table.take(blocks[:, :32])
        codes[:, 160 + 16 * k : 176 + 16 * k] = table.take(blocks[:, 32:48])
        if k < 4:
            codes[:, 240 + 4 * k : 244 + 4 * k] = table.take(blocks[:, 48:52])
    scale_groups(codes, blocks[:, 52:].view("<f2").astype(np.float32), out)


def _fit_tq1_0(out: Bytes, std: float) -> None:
    """Fit the scales; ternary digits of random bytes are not quite uniform, so the scale takes either sign."""
    put_scale(out[:, 52:], out[:, 52].copy(), std * FACTORS * SIGN / _TQ1_0_RMS)


TQ1_0 = register_format(
    BlockFormat(
        "TQ1_0", 34, 256, 54, no_encoder("TQ1_0"), slab_decoder("TQ1_0", 256, 54, _decode_tq1_0), fit_scales=_fit_tq1_0
    )
)
"""TQ1_0: 256 ternary codes, five to a byte, and one fp16 scale; 1.6875 bits a value.

Layout (54 bytes): ``u1 q[48]; u1 last[4]; f2 d``. A byte holds a fraction of 256ths whose digits to the base 3 are the
codes: digit ``k`` of ``q[l]`` is value ``32 k + l`` for the first 32 bytes and ``160 + 16 k + (l - 32)`` for the
others, digit ``k`` of ``last[l]`` value ``240 + 4 k + l``; ``x = d * (code - 1)``."""


_SHIFT = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode_tq2_0(blocks: Bytes, out: Floats) -> None:
    codes = blocks[:, :64].reshape(-1, 2, 1, 32) >> _SHIFT & np.uint8(3)
    np.copyto(out, codes.reshape(-1, 256))
    out -= np.float32(1)
    out *= blocks[:, 64:].view("<f2").astype(np.float32)


def _fit_tq2_0(out: Bytes, std: float) -> None:
    """Fit the scales; code 3, which has no meaning, becomes 1: half of all values are 0, a quarter each 1 and -1."""
    codes = out[:, :64]
    codes &= ~((codes & codes >> 1 & 0x55) << 1)
    put_scale(out[:, 64:], out[:, 64].copy(), std * FACTORS * np.sqrt(2))


TQ2_0 = register_format(
    BlockFormat(
        "TQ2_0", 35, 256, 66, no_encoder("TQ2_0"), slab_decoder("TQ2_0", 256, 66, _decode_tq2_0), fit_scales=_fit_tq2_0
    )
)
"""TQ2_0: 256 ternary codes of two bits and one fp16 scale; 2.0625 bits a value.

Layout (66 bytes): ``u1 q[64]; f2 d``. Each half of 128 values takes 32 bytes, value ``k`` of it the bits
``2 (k // 32)`` and the next of byte ``k % 32``, and ``x = d * (code - 1)``."""
