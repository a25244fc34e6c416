"""IQ1_M: 256 values as vectors of eight from the grid of IQ1_S, each moved by itself; 1.75 bits a value.

Layout (56 bytes): ``u1 q[32]; u1 high[16]; u2 scales[4]``. Nibble ``i % 2`` of ``high[i // 2]`` holds three more bits
of the code of vector ``i`` and, above them, its sign, as in IQ1_S. A word of ``scales`` holds four scales of three
bits, the lowest first, one for 16 values each; the upper four bits of the four words are those of an fp16, the lowest
first."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import nibbles_in_turn
from sp.quant.formats.iquants.iq1_s import SCALES_RMS, eighths, eighths_rms
from sp.quant.registry import register_format
from sp.quant.spread import SIGN, SPREAD

_CODE = np.array([0, 3, 6, 9], np.uint16)
_PART = np.array([0, 4, 8, 12], np.uint16)


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    picks = nibbles_in_turn(blocks[:, 32:48]).astype(np.uint16) << 8
    picks |= blocks[:, :32]
    words = blocks[:, 48:].view("<u2")
    d = np.bitwise_or.reduce(words >> 12 << _PART, axis=1, keepdims=True).view("<f2").astype(np.float32)
    scales = (words[:, :, None] >> _CODE & 7).reshape(n, 16)
    step = d * (2 * scales + 1)
    step *= np.float32(0.125)
    scale_groups(eighths().take(picks).view(np.int8), step, out)


def _spread(out: Bytes, std: float) -> None:
    """Scales of the upper half of their range; d of either sign, for the grid has a mean."""
    d = (std * SPREAD * SIGN / (eighths_rms() * SCALES_RMS)).astype("<f2").view("<u2")
    words = out[:, 48:].view("<u2")
    words &= 0x0FFF
    words |= 0x0924
    words |= d[out[:, 0], None] >> _PART << 12


IQ1_M = register_format(
    BlockFormat(
        "IQ1_M", 29, 256, 56, no_encoder("IQ1_M"), slab_decoder("IQ1_M", 256, 56, _decode_blocks), spread=_spread
    )
)  # 256 values in 56 bytes
