"""IQ4_NL: 32 four-bit codes that stand for sixteen unevenly spaced numbers, and one fp16 scale; 4.5 bits a value.

Layout (18 bytes): ``f2 d; u1 q[16]``; nibbles as in Q4_0, and ``x = d * IQ4_VALUES[code]``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import nibble_tables
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format
from sp.quant.spread import SIGN, SPREAD, put_scale

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the codes of IQ4_NL and IQ4_XS stand for."""
IQ4_LOW, IQ4_HIGH = nibble_tables(IQ4_VALUES)
IQ4_RMS = float(np.sqrt(np.mean(np.square(IQ4_VALUES))))


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 2:]
    np.copyto(out[:, :16], IQ4_LOW.take(packed))
    np.copyto(out[:, 16:], IQ4_HIGH.take(packed))
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def _spread(out: Bytes, std: float) -> None:
    """The values have a mean, so the scale takes either sign."""
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * SIGN / IQ4_RMS)


IQ4_NL = register_format(
    BlockFormat(
        "IQ4_NL",
        20,
        32,
        18,
        no_encoder("IQ4_NL"),
        slab_decoder("IQ4_NL", 32, 18, _decode_blocks),
        Packing(32, Plane(4, 2, 16), scales=Scales(0, 2), group=32, values=IQ4_VALUES),
        _spread,
    )
)  # 32 values in 18 bytes
