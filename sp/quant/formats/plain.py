"""Plain numbers: F32, the values themselves; F16 and BF16, rounded to nearest even."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.quant.base import FP16_MAX, BlockFormat, checked_bytes, checked_values, slab_decoder, slab_encoder
from sp.quant.packing import Packing, Plane
from sp.quant.registry import register_format


def _encode_f32(values: Floats) -> Bytes:
    return checked_values("F32", 1, values).astype("<f4").view(np.uint8)


def _decode_f32(data: Bytes) -> Floats:
    return checked_bytes("F32", 4, data).view("<f4")


F32 = register_format(BlockFormat("F32", 0, 1, 4, _encode_f32, _decode_f32, Packing(1, Plane(32, 0))))
"""4 bytes a value. Encoding copies the bits, NaN and Inf included; decoding is a view of the bytes."""


def _encode_f16(values: Floats, out: Bytes) -> None:
    if float(np.abs(values).max()) >= FP16_MAX + 16:
        raise ConfigError(f"F16: a value exceeds {FP16_MAX:.0f}, the largest this format can store; use BF16 or F32")
    out.view("<f2")[...] = values


def _decode_f16(blocks: Bytes, out: Floats) -> None:
    """Widen in integers, several times faster than NumPy's cast: shift sign, exponent and fraction, then correct the
    bias."""
    half = blocks.view("<i2")
    wide = out.view(np.int32)
    np.left_shift(half, 13, out=wide, dtype=np.int32)
    wide &= np.int32(-0x70002000)  # 0x8fffe000 clears the copies of the sign bit above the exponent
    if (wide & 0x0F800000 == 0x0F800000).any():  # Inf or NaN, whose exponent does not scale
        out[...] = blocks.view("<f2")
    else:
        out *= np.float32(2.0**112)  # the difference of the biases, 127 - 15; exact, also for subnormals


F16 = register_format(
    BlockFormat(
        "F16",
        1,
        1,
        2,
        slab_encoder("F16", 1, 2, _encode_f16),
        slab_decoder("F16", 1, 2, _decode_f16),
        Packing(1, Plane(16, 0)),
    )
)  # 2 bytes a value, 11 significant bits, largest 65504


_INF_BITS = 0x7F80


def _encode_bf16(values: Floats, out: Bytes) -> None:
    bits = values.view(np.uint32)
    rounded = ((bits >> 16) & 1) + np.uint32(0x7FFF)  # half a step, less one where the even neighbour is below
    rounded += bits  # finite bits are below 0xFF800000, so this cannot wrap
    rounded >>= 16
    if int((rounded & 0x7FFF).max()) >= _INF_BITS:
        raise ConfigError("BF16: a value rounds to infinity; the largest this format can store is 3.39e38")
    out.view("<u2")[...] = rounded


def _decode_bf16(blocks: Bytes, out: Floats) -> None:
    bits = out.view(np.uint32)
    bits[...] = blocks.view("<u2")
    bits <<= 16


BF16 = register_format(
    BlockFormat(
        "BF16",
        30,
        1,
        2,
        slab_encoder("BF16", 1, 2, _encode_bf16),
        slab_decoder("BF16", 1, 2, _decode_bf16),
        Packing(1, Plane(16, 0)),
    )
)  # 2 bytes a value, 8 significant bits, the range of float32
