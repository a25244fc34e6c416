"""Four-bit floating point: the sixteen numbers of E2M1 under a scale that is a small float itself.

E2M1 has one sign, two bits of exponent and one of mantissa. Source: OCP Microscaling Formats (MX) Specification 1.0,
section 5.3.3. As in ggml, its numbers are doubled here, which makes all of them integers, and the scales are halved."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import nibble_tables
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format

E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Doubled values of the codes; minus zero is zero."""
E2M1_LOW, E2M1_HIGH = nibble_tables(E2M1_VALUES)
E2M1_RMS = float(np.sqrt(np.mean(np.square(E2M1_VALUES))))


_MXFP4_SCALES = np.ldexp(np.float32(1), np.arange(256) - 128)  # by the byte e; the smallest two are denormal


def _decode_mxfp4(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 1:]
    np.copyto(out[:, :16], E2M1_LOW.take(packed))
    np.copyto(out[:, 16:], E2M1_HIGH.take(packed))
    out *= _MXFP4_SCALES.take(blocks[:, :1])


def _fit_mxfp4(out: Bytes, std: float) -> None:
    """Mix two neighbouring powers of two in the ratio that yields the mean square."""
    scale = std / E2M1_RMS
    power = int(np.floor(np.log2(scale)))
    larger = ((scale * 2.0**-power) ** 2 - 1) / 3  # fraction of blocks with twice the scale: 1 - f + 4 f = ratio**2
    out[:, 0] = 128 + power + (out[:, 0] < round(256 * larger))


MXFP4 = register_format(
    BlockFormat(
        "MXFP4",
        39,
        32,
        17,
        no_encoder("MXFP4"),
        slab_decoder("MXFP4", 32, 17, _decode_mxfp4),
        Packing(32, Plane(4, 1, 16), scales=Scales(0, 1), group=32, values=E2M1_VALUES),
        _fit_mxfp4,
    )
)
"""MXFP4: 32 numbers of E2M1 under a scale that is a power of two; 4.25 bits a value.

Layout (17 bytes): ``u1 e; u1 q[16]``; nibbles as in Q4_0, and ``x = 2^(e - 128) * E2M1_VALUES[code]``."""


def _scales_nvfp4() -> Floats:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    numbers = np.where(exponent > 0, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(mantissa * 1.0, -9))
    numbers[0x7F] = 0
    halved: Floats = (numbers / 2).astype(np.float32)
    return halved


_NVFP4_SCALES = _scales_nvfp4()  # by byte, halved; the sign bit is ignored, except that 0xFF is a number, not NaN
_LARGEST = 0x7E


def _decode_nvfp4(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    packed = blocks[:, 4:].reshape(n, 4, 8)
    groups = out.reshape(n, 4, 16)
    np.copyto(groups[:, :, :8], E2M1_LOW.take(packed))
    np.copyto(groups[:, :, 8:], E2M1_HIGH.take(packed))
    groups *= _NVFP4_SCALES.take(blocks[:, :4])[:, :, None]


def _fit_nvfp4(out: Bytes, std: float) -> None:
    """Mix two neighbouring scales in the ratio that yields the mean square; one of them is 0 below a std of 0.0057."""
    scale = std / E2M1_RMS
    lower = int(np.searchsorted(_NVFP4_SCALES[: _LARGEST + 1], scale, side="right")) - 1
    square, above = float(_NVFP4_SCALES[lower]) ** 2, float(_NVFP4_SCALES[lower + 1]) ** 2
    out[:, :4] = lower + (out[:, :4] < round(256 * (scale**2 - square) / (above - square)))


NVFP4 = register_format(
    BlockFormat(
        "NVFP4", 40, 64, 36, no_encoder("NVFP4"), slab_decoder("NVFP4", 64, 36, _decode_nvfp4), fit_scales=_fit_nvfp4
    )
)
"""NVFP4: 64 numbers of E2M1 in four sub-blocks with scales of eight bits; 4.5 bits a value.

Layout (36 bytes): ``u1 scales[4]; u1 q[32]``. Each sub-block of 16 values takes 8 bytes of ``q``, value ``j`` the low
and ``j + 8`` the high nibble of byte ``j``. A scale is an E4M3 without sign, its bias 7, and
``x = scale / 2 * E2M1_VALUES[code]``; the scale code 0x7F, NaN in E4M3, is 0 as in ggml. The scale of the whole tensor
is a tensor of its own in the file, see `sp.models.file.weights`."""
