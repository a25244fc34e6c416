"""Q5_0: 32 five-bit codes and one fp16 scale; 5.5 bits a value.

Layout (22 bytes): ``f2 d; u1 high[4]; u1 q[16]``; nibbles as in Q4_0, the fifth bit of value ``i`` is bit ``i % 8`` of
``high[i // 8]``, and ``x = d * (code - 16)``.
"""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format
from sp.quant.spread import SIGN, SPREAD, put_scale, rms


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 6:], codes)
    codes |= np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little") << 4
    np.copyto(out, codes)
    out -= np.float32(16)
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def _spread(out: Bytes, std: float) -> None:
    """Codes -16..15 have a mean, so the scale takes either sign."""
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * SIGN / rms(-16, 15))


Q5_0 = register_format(
    BlockFormat(
        "Q5_0",
        6,
        32,
        22,
        no_encoder("Q5_0"),
        slab_decoder("Q5_0", 32, 22, _decode_blocks),
        Packing(32, Plane(4, 6, 16), Plane(1, 2), scales=Scales(0, 2), group=32),
        _spread,
    )
)
"""32 values in 22 bytes."""
