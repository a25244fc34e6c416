"""F16: IEEE 754 binary16, rounded to nearest even."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.quant.base import FP16_MAX, BlockFormat, slab_decoder, slab_encoder


def _encode_blocks(values: Floats, out: Bytes) -> None:
    if float(np.abs(values).max()) >= FP16_MAX + 16:
        raise ConfigError(f"F16: a value exceeds {FP16_MAX:.0f}, the largest this format can store; use BF16 or F32")
    out.view("<f2")[...] = values


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks.view("<f2")


F16 = BlockFormat("F16", 1, 1, 2, slab_encoder("F16", 1, 2, _encode_blocks), slab_decoder("F16", 1, 2, _decode_blocks))
"""2 bytes a value, 11 significant bits, largest 65504."""
