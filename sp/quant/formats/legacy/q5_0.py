"""Q5_0: 32 five-bit codes and one fp16 scale; 5.5 bits a value.

Layout (22 bytes): ``f2 d; u1 high[4]; u1 q[16]``; nibbles as in Q4_0, the fifth bit of value ``i`` is bit ``i % 8`` of
``high[i // 8]``, and ``x = d * (code - 16)``. How it is encoded is said in `encode_symmetric`."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, slab_decoder, slab_encoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.formats.legacy.shared import (
    decode_symmetric,
    encode_symmetric,
    pack_fifth,
    pack_low,
    spread_symmetric,
    unpack_fifth,
)
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format


def _encode_blocks(values: Floats, out: Bytes) -> None:
    codes = encode_symmetric("Q5_0", values, 16, out)
    pack_fifth(codes, out[:, 2:6])
    pack_low(codes, out[:, 6:])


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 6:], codes)
    codes |= unpack_fifth(blocks[:, 2:6])
    decode_symmetric(blocks, codes, 16, out)


Q5_0 = register_format(
    BlockFormat(
        "Q5_0",
        6,
        32,
        22,
        slab_encoder("Q5_0", 32, 22, _encode_blocks),
        slab_decoder("Q5_0", 32, 22, _decode_blocks),
        Packing(32, Plane(4, 6, 16), Plane(1, 2), scales=Scales(0, 2), group=32),
        lambda out, std: spread_symmetric(out, std, 16),
    )
)  # 32 values in 22 bytes; about 4.3 % relative RMS error on normal weights
