"""Q2_K: 256 two-bit codes in sixteen affine sub-blocks; 2.625 bits a value.

Layout (84 bytes): ``u1 scales[16]; u1 q[64]; f2 d; f2 dmin``. Value ``128 h + 32 k + l`` has bits ``2 k`` and the next
of ``q[32 h + l]``. A byte of ``scales`` serves 16 values, its low nibble as scale and its high one as minimum:
``x = d * scale * code - dmin * minimum``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale, rms

_SHIFT = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    codes = blocks[:, 16:80].reshape(n, 2, 1, 32) >> _SHIFT
    codes &= 3
    step = blocks[:, 80:82].view("<f2").astype(np.float32) * (blocks[:, :16] & 15)
    offset = blocks[:, 82:].view("<f2").astype(np.float32) * (blocks[:, :16] >> 4)
    scale_groups(codes.reshape(n, 256), step, out)
    groups = out.reshape(n, 16, 16)
    groups -= offset[:, :, None]


def _spread(out: Bytes, std: float) -> None:
    """Scales of the upper half of their range, minima equal to them and ``dmin = 1.5 d``, so all means are 0."""
    scales = out[:, :16]
    scales &= 7
    scales |= 8
    scales |= scales << 4
    pick = out[:, 80].copy()
    d = std * SPREAD / (np.sqrt(1.25) * rms(8, 15))
    put_scale(out[:, 80:82], pick, d)
    put_scale(out[:, 82:], pick, 1.5 * d)


Q2_K = register_format(
    BlockFormat("Q2_K", 10, 256, 84, no_encoder("Q2_K"), slab_decoder("Q2_K", 256, 84, _decode_blocks), spread=_spread)
)  # 256 values in 84 bytes
