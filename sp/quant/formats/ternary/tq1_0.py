"""TQ1_0: 256 ternary codes, five to a byte, and one fp16 scale; 1.6875 bits a value.

Layout (54 bytes): ``u1 q[48]; u1 last[4]; f2 d``. A byte holds a fraction of 256ths whose digits to the base 3 are the
codes: digit ``k`` of ``q[l]`` is value ``32 k + l`` for the first 32 bytes and ``160 + 16 k + (l - 32)`` for the
others, digit ``k`` of ``last[l]`` value ``240 + 4 k + l``; ``x = d * (code - 1)``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats, Int8s
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.registry import register_format
from sp.quant.spread import SIGN, SPREAD, put_scale


def _digits() -> Int8s:
    fractions = np.arange(256) * 3 ** np.arange(5)[:, None] % 256
    return (fractions * 3 // 256 - 1).astype(np.int8)


_DIGITS = _digits()  # the five codes of a byte less 1, (5, 256)
_RMS = float(np.sqrt(np.mean(np.square(_DIGITS, dtype=np.float64))))


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 256), np.int8)
    for k, table in enumerate(_DIGITS):
        codes[:, 32 * k : 32 * k + 32] = table.take(blocks[:, :32])
        codes[:, 160 + 16 * k : 176 + 16 * k] = table.take(blocks[:, 32:48])
        if k < 4:
            codes[:, 240 + 4 * k : 244 + 4 * k] = table.take(blocks[:, 48:52])
    scale_groups(codes, blocks[:, 52:].view("<f2").astype(np.float32), out)


def _spread(out: Bytes, std: float) -> None:
    """Digits of random bytes are not quite even, so the scale takes either sign."""
    put_scale(out[:, 52:], out[:, 52].copy(), std * SPREAD * SIGN / _RMS)


TQ1_0 = register_format(
    BlockFormat(
        "TQ1_0", 34, 256, 54, no_encoder("TQ1_0"), slab_decoder("TQ1_0", 256, 54, _decode_blocks), spread=_spread
    )
)  # 256 values in 54 bytes
