"""IQ4_NL and IQ4_XS: four-bit codes of a line of sixteen values."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats, Int8s
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import nibble_tables, scale_groups
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.random_scales import FACTORS, OUTER_RMS, SIGN, equal_bits, put_scale
from sp.quant.registry import register_format

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers that the codes of IQ4_NL and IQ4_XS represent."""
IQ4_LOW, IQ4_HIGH = nibble_tables(IQ4_VALUES)
IQ4_RMS = float(np.sqrt(np.mean(np.square(IQ4_VALUES))))


def _decode_iq4_nl(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 2:]
    np.copyto(out[:, :16], IQ4_LOW.take(packed))
    np.copyto(out[:, 16:], IQ4_HIGH.take(packed))
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def _fit_iq4_nl(out: Bytes, std: float) -> None:
    """Fit the scales; the values have a mean, so the scale takes either sign."""
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * SIGN / IQ4_RMS)


IQ4_NL = register_format(
    BlockFormat(
        "IQ4_NL",
        20,
        32,
        18,
        no_encoder("IQ4_NL"),
        slab_decoder("IQ4_NL", 32, 18, _decode_iq4_nl),
        Packing(32, Plane(4, 2, 16), scales=Scales(0, 2), group=32, values=IQ4_VALUES),
        _fit_iq4_nl,
    )
)
"""IQ4_NL: 32 four-bit codes that stand for sixteen unevenly spaced numbers, and one fp16 scale; 4.5 bits a value.

Layout (18 bytes): ``f2 d; u1 q[16]``; nibbles as in Q4_0, and ``x = d * IQ4_VALUES[code]``."""


_IQ4_XS_PAIR = np.array([0, 2, 4, 6], np.uint8)


def _steps_iq4_xs(blocks: Bytes) -> Int8s:
    """Return the scales minus 32, int8 (blocks, 8)."""
    n = len(blocks)
    scales = np.empty((n, 8), np.uint8)
    np.bitwise_and(blocks[:, 4:8], 15, out=scales[:, 0::2])
    np.right_shift(blocks[:, 4:8], 4, out=scales[:, 1::2])
    top = blocks[:, 2:4, None] >> _IQ4_XS_PAIR
    top &= 3
    top <<= 4
    scales |= top.reshape(n, 8)
    scales -= np.uint8(32)  # wraps to the two's complement of the signed scale
    return scales.view(np.int8)


def _decode_iq4_xs(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    packed = blocks[:, 8:].reshape(n, 8, 16)
    codes = np.empty((n, 8, 2, 16), np.int8)
    codes[:, :, 0] = IQ4_LOW.take(packed)
    codes[:, :, 1] = IQ4_HIGH.take(packed)
    step = blocks[:, :2].view("<f2").astype(np.float32) * _steps_iq4_xs(blocks)
    scale_groups(codes.reshape(n, 256), step, out)


def _fit_iq4_xs(out: Bytes, std: float) -> None:
    """Give scales a magnitude of 16 or more; they and the values have means, so d takes either sign."""
    equal_bits(out[:, 2:4])
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * SIGN / (IQ4_RMS * OUTER_RMS))


IQ4_XS = register_format(
    BlockFormat(
        "IQ4_XS",
        23,
        256,
        136,
        no_encoder("IQ4_XS"),
        slab_decoder("IQ4_XS", 256, 136, _decode_iq4_xs),
        Packing(
            256, Plane(4, 8, 16), scales=Scales(2, 6, _steps_iq4_xs, 8), delta=Scales(0, 2), group=32, values=IQ4_VALUES
        ),
        _fit_iq4_xs,
    )
)
"""IQ4_XS: 256 codes of IQ4_NL in eight sub-blocks with 6-bit scales; 4.25 bits a value.

Layout (136 bytes): ``f2 d; u1 high[2]; u1 low[4]; u1 q[128]``. Scale ``j`` has nibble ``j % 2`` of ``low[j // 2]``, the
low one first, and bits ``2 (j % 4)`` and the next of ``high[j // 4]``. Each sub-block takes 16 bytes of ``q`` as a
block of IQ4_NL does, and ``x = d * (scale - 32) * IQ4_VALUES[code]``."""
