"""F16: IEEE 754 binary16, rounded to nearest even."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.quant.base import FP16_MAX, BlockFormat, slab_decoder, slab_encoder
from sp.quant.packing import Packing, Plane
from sp.quant.registry import register_format


def _encode_blocks(values: Floats, out: Bytes) -> None:
    if float(np.abs(values).max()) >= FP16_MAX + 16:
        raise ConfigError(f"F16: a value exceeds {FP16_MAX:.0f}, the largest this format can store; use BF16 or F32")
    out.view("<f2")[...] = values


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    """Widen in integers, several times faster than NumPy's cast: move sign, exponent and fraction, mend the bias."""
    half = blocks.view("<i2")
    wide = out.view(np.int32)
    np.left_shift(half, 13, out=wide, dtype=np.int32)
    wide &= np.int32(-0x70002000)  # 0x8fffe000: the sign's copies above the exponent go
    if (wide & 0x0F800000 == 0x0F800000).any():  # Inf or NaN, whose exponent does not scale
        out[...] = blocks.view("<f2")
    else:
        out *= np.float32(2.0**112)  # exact, subnormals included


F16 = register_format(
    BlockFormat(
        "F16",
        1,
        1,
        2,
        slab_encoder("F16", 1, 2, _encode_blocks),
        slab_decoder("F16", 1, 2, _decode_blocks),
        Packing(1, Plane(16, 0)),
    )
)  # 2 bytes a value, 11 significant bits, largest 65504
