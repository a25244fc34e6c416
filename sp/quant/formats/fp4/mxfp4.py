"""MXFP4: 32 numbers of E2M1 under a scale that is a power of two; 4.25 bits a value.

Layout (17 bytes): ``u1 e; u1 q[16]``; nibbles as in Q4_0, and ``x = 2^(e - 128) * E2M1_VALUES[code]``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.fp4.e2m1 import E2M1_HIGH, E2M1_LOW, E2M1_RMS, E2M1_VALUES
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format

_SCALES = np.ldexp(np.float32(1), np.arange(256) - 128)  # by the byte e; the smallest two are denormal


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 1:]
    np.copyto(out[:, :16], E2M1_LOW.take(packed))
    np.copyto(out[:, 16:], E2M1_HIGH.take(packed))
    out *= _SCALES.take(blocks[:, :1])


def _spread(out: Bytes, std: float) -> None:
    """Two neighbouring powers of two in a share that gives the mean square."""
    scale = std / E2M1_RMS
    power = int(np.floor(np.log2(scale)))
    larger = ((scale * 2.0**-power) ** 2 - 1) / 3  # share whose square is 4
    out[:, 0] = 128 + power + (out[:, 0] < round(256 * larger))


MXFP4 = register_format(
    BlockFormat(
        "MXFP4",
        39,
        32,
        17,
        no_encoder("MXFP4"),
        slab_decoder("MXFP4", 32, 17, _decode_blocks),
        Packing(32, Plane(4, 1, 16), scales=Scales(0, 1), group=32, values=E2M1_VALUES),
        _spread,
    )
)  # 32 values in 17 bytes
