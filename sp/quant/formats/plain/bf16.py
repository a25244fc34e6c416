"""BF16: the upper half of a float32, rounded to nearest even."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.quant.base import BlockFormat, slab_decoder, slab_encoder
from sp.quant.packing import Packing, Plane
from sp.quant.registry import register_format

_INF_BITS = 0x7F80


def _encode_blocks(values: Floats, out: Bytes) -> None:
    bits = values.view(np.uint32)
    rounded = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    rounded += bits  # finite bits are below 0xFF800000, so this cannot wrap
    rounded >>= 16
    if int((rounded & 0x7FFF).max()) >= _INF_BITS:
        raise ConfigError("BF16: a value rounds to infinity; the largest this format can store is 3.39e38")
    out.view("<u2")[...] = rounded


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    bits = out.view(np.uint32)
    bits[...] = blocks.view("<u2")
    bits <<= 16


BF16 = register_format(
    BlockFormat(
        "BF16",
        30,
        1,
        2,
        slab_encoder("BF16", 1, 2, _encode_blocks),
        slab_decoder("BF16", 1, 2, _decode_blocks),
        Packing(1, Plane(16, 0)),
    )
)  # 2 bytes a value, 8 significant bits, the range of float32
