"""NVFP4: 64 numbers of E2M1 in four sub-blocks with scales of eight bits; 4.5 bits a value.

Layout (36 bytes): ``u1 scales[4]; u1 q[32]``. Each sub-block of 16 values takes 8 bytes of ``q``, value ``j`` the low
and ``j + 8`` the high nibble of byte ``j``. A scale is an E4M3 without sign, its bias 7, and
``x = scale / 2 * E2M1_VALUES[code]``; the code 0x7F, NaN there, is 0 as in ggml. A scale of the whole tensor is another
tensor of the file, see `sp.models.file.weights`."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.fp4.e2m1 import E2M1_HIGH, E2M1_LOW, E2M1_RMS
from sp.quant.registry import register_format


def _scales() -> Floats:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    numbers = np.where(exponent > 0, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(mantissa * 1.0, -9))
    numbers[0x7F] = 0
    halved: Floats = (numbers / 2).astype(np.float32)
    return halved


_SCALES = _scales()  # by the byte, halved; the upper bit changes nothing but that 0xFF is a number
_LARGEST = 0x7E


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    packed = blocks[:, 4:].reshape(n, 4, 8)
    groups = out.reshape(n, 4, 16)
    np.copyto(groups[:, :, :8], E2M1_LOW.take(packed))
    np.copyto(groups[:, :, 8:], E2M1_HIGH.take(packed))
    groups *= _SCALES.take(blocks[:, :4])[:, :, None]


def _spread(out: Bytes, std: float) -> None:
    """Two neighbouring scales in a share that gives the mean square; one of them is 0 below a std of 0.0057."""
    scale = std / E2M1_RMS
    lower = int(np.searchsorted(_SCALES[: _LARGEST + 1], scale, side="right")) - 1
    square, above = float(_SCALES[lower]) ** 2, float(_SCALES[lower + 1]) ** 2
    out[:, :4] = lower + (out[:, :4] < round(256 * (scale**2 - square) / (above - square)))


NVFP4 = register_format(
    BlockFormat("NVFP4", 40, 64, 36, no_encoder("NVFP4"), slab_decoder("NVFP4", 64, 36, _decode_blocks), spread=_spread)
)  # 64 values in 36 bytes
