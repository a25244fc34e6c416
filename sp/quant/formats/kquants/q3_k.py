"""Q3_K: 256 three-bit codes in sixteen symmetric sub-blocks; 3.4375 bits a value.

Layout (110 bytes): ``u1 high[32]; u1 low[64]; u1 scales[12]; f2 d``. Value ``l`` of run ``j`` of 32 values has bits
``2 (j % 4)`` and the next of ``low[32 (j // 4) + l]`` and bit ``j`` of ``high[l]``, and
``x = d * (scale - 32) * (code - 4)`` with one scale for 16 values. Six bits of scale ``i``: a nibble of
``scales[i % 8]``, the low one for the first eight, and bits ``2 (i // 4)`` and the next of ``scales[8 + i % 4]``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats, Int8s
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups, split_nibbles
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format
from sp.quant.spread import OUTER_RMS, SIGN, SPREAD, equal_bits, put_scale, rms

_PAIR = np.array([0, 2, 4, 6], np.uint8)[:, None]
_BIT = np.arange(8, dtype=np.uint8)[:, None]


def _steps(blocks: Bytes) -> Int8s:
    """Scales less 32, int8 (blocks, 16)."""
    scales = np.empty((len(blocks), 16), np.uint8)
    split_nibbles(blocks[:, 96:104], scales)
    top = blocks[:, None, 104:108] >> _PAIR
    top &= 3
    top <<= 4
    scales |= top.reshape(scales.shape)
    scales -= np.uint8(32)
    return scales.view(np.int8)


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    codes = blocks[:, 32:96].reshape(n, 2, 1, 32) >> _PAIR
    codes &= 3
    high = blocks[:, None, :32] >> _BIT
    high &= 1
    high <<= 2
    codes |= high.reshape(codes.shape)
    codes -= np.uint8(4)  # wraps to the two's complement of the signed code
    step = blocks[:, 108:].view("<f2").astype(np.float32) * _steps(blocks)
    scale_groups(codes.view(np.int8).reshape(n, 256), step, out)


def _spread(out: Bytes, std: float) -> None:
    """Scales of 16 or more in magnitude; they and the codes have means, so d takes either sign."""
    equal_bits(out[:, 104:108])
    put_scale(out[:, 108:], out[:, 108].copy(), std * SPREAD * SIGN / (rms(-4, 3) * OUTER_RMS))


Q3_K = register_format(
    BlockFormat(
        "Q3_K",
        11,
        256,
        110,
        no_encoder("Q3_K"),
        slab_decoder("Q3_K", 256, 110, _decode_blocks),
        Packing(
            256, Plane(2, 32, 32), Plane(1, 0, 32), scales=Scales(96, 12, _steps, 16), delta=Scales(108, 2), group=16
        ),
        _spread,
    )
)  # 256 values in 110 bytes
