"""IQ1_S and IQ1_M: 256 codes of a grid of eight numbers each, less than two bits a value."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import grid, nibbles_in_turn
from sp.quant.random_scales import FACTORS, SIGN, put_scale
from sp.quant.registry import register_format

_IQ1_S_CODE = np.array([0, 3, 6, 9], np.uint16)
SCALES_RMS = float(np.sqrt(np.mean(np.square([9, 11, 13, 15]))))
"""Root mean square of the scales that random blocks have, the upper half of the range."""


@cache
def eighths() -> npt.NDArray[np.uint64]:
    """Return the grid in eighths, raised by one and then lowered by one: 4096 words of eight int8."""
    whole = 8 * grid("IQ1_S").view(np.int8).reshape(-1, 8)
    return np.concatenate([whole + np.int8(1), whole - np.int8(1)]).view("<u8")[:, 0]


@cache
def eighths_rms() -> float:
    """Return the root mean square of all numbers of `eighths`, in units of 1."""
    return float(np.sqrt(np.mean(np.square(eighths().view(np.int8) / 8))))


def _decode_iq1_s(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    high = blocks[:, 34:].view("<u2")
    picks = high[:, :, None] >> _IQ1_S_CODE
    picks &= 7
    # Bit 15 is the sign of the shift: it selects the second half of `eighths`.
    picks |= (high >> 12 & 8)[:, :, None]
    picks <<= 8
    picks = picks.reshape(n, 32)
    picks |= blocks[:, 2:34]
    step = blocks[:, :2].view("<f2").astype(np.float32) * (2 * (high >> 12 & 7) + 1)
    step *= np.float32(0.125)  # `eighths` has the values times 8
    scale_groups(eighths().take(picks).view(np.int8), step, out)


def _fit_iq1_s(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range; d takes either sign, because the grid has a mean."""
    out[:, 35::2] |= 0x40
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * SIGN / (eighths_rms() * SCALES_RMS))


IQ1_S = register_format(
    BlockFormat(
        "IQ1_S", 19, 256, 50, no_encoder("IQ1_S"), slab_decoder("IQ1_S", 256, 50, _decode_iq1_s), fit_scales=_fit_iq1_s
    )
)
"""IQ1_S: 256 values as vectors of eight from a grid of 2048, all moved up or down an eighth; 1.5625 bits a value.

Layout (50 bytes): ``f2 d; u1 q[32]; u2 high[8]``. A word of ``high`` serves four vectors: three bits of code for each
above those of ``q``, the lowest first, three bits of scale, and a sign. Numbers of the grid are -1, 0 and 1, and
``x = d * (2 scale + 1) * (vector + 1/8)``, or ``- 1/8`` where the sign is set. Eighths are whole here and the scale an
eighth, which changes no bit."""


_IQ1_M_CODE = np.array([0, 3, 6, 9], np.uint16)
_IQ1_M_PART = np.array([0, 4, 8, 12], np.uint16)


def _decode_iq1_m(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    picks = nibbles_in_turn(blocks[:, 32:48]).astype(np.uint16) << 8
    picks |= blocks[:, :32]
    words = blocks[:, 48:].view("<u2")
    d = np.bitwise_or.reduce(words >> 12 << _IQ1_M_PART, axis=1, keepdims=True).view("<f2").astype(np.float32)
    scales = (words[:, :, None] >> _IQ1_M_CODE & 7).reshape(n, 16)
    step = d * (2 * scales + 1)
    step *= np.float32(0.125)  # `eighths` has the values times 8
    scale_groups(eighths().take(picks).view(np.int8), step, out)


def _fit_iq1_m(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range; d takes either sign, because the grid has a mean."""
    d = (std * FACTORS * SIGN / (eighths_rms() * SCALES_RMS)).astype("<f2").view("<u2")
    words = out[:, 48:].view("<u2")
    words &= 0x0FFF
    words |= 0x0924
    words |= d[out[:, 0], None] >> _IQ1_M_PART << 12


IQ1_M = register_format(
    BlockFormat(
        "IQ1_M", 29, 256, 56, no_encoder("IQ1_M"), slab_decoder("IQ1_M", 256, 56, _decode_iq1_m), fit_scales=_fit_iq1_m
    )
)
"""IQ1_M: 256 values as vectors of eight from the grid of IQ1_S, each moved by itself; 1.75 bits a value.

Layout (56 bytes): ``u1 q[32]; u1 high[16]; u2 scales[4]``. Nibble ``i % 2`` of ``high[i // 2]`` holds three more bits
of the code of vector ``i`` and, above them, its sign, as in IQ1_S. A word of ``scales`` holds four scales of three
bits, the lowest first, one for 16 values each; the upper four bits of the four words are those of an fp16, the lowest
first."""
