"""TQ2_0: 256 ternary codes of two bits and one fp16 scale; 2.0625 bits a value.

Layout (66 bytes): ``u1 q[64]; f2 d``. Each half of 128 values takes 32 bytes, value ``k`` of it the bits
``2 (k // 32)`` and the next of byte ``k % 32``, and ``x = d * (code - 1)``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale

_SHIFT = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = blocks[:, :64].reshape(-1, 2, 1, 32) >> _SHIFT & np.uint8(3)
    np.copyto(out, codes.reshape(-1, 256))
    out -= np.float32(1)
    out *= blocks[:, 64:].view("<f2").astype(np.float32)


def _spread(out: Bytes, std: float) -> None:
    """Code 3, which stands for nothing, becomes 1: half of all values are 0, a quarter each 1 and -1."""
    codes = out[:, :64]
    codes &= ~((codes & codes >> 1 & 0x55) << 1)
    put_scale(out[:, 64:], out[:, 64].copy(), std * SPREAD * np.sqrt(2))


TQ2_0 = register_format(
    BlockFormat(
        "TQ2_0", 35, 256, 66, no_encoder("TQ2_0"), slab_decoder("TQ2_0", 256, 66, _decode_blocks), spread=_spread
    )
)  # 256 values in 66 bytes
