"""Q5_1: 32 five-bit codes, one fp16 scale and one fp16 minimum; 6 bits a value.

Layout (24 bytes): ``f2 d; f2 m; u1 high[4]; u1 q[16]``; bits of the codes as in Q5_0, and ``x = d * code + m``. How it
is encoded is said in `encode_affine`."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, slab_decoder, slab_encoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.formats.legacy.shared import (
    decode_affine,
    encode_affine,
    pack_fifth,
    pack_low,
    spread_affine,
    unpack_fifth,
)
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format


def _encode_blocks(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q5_1", values, 31, out)
    pack_fifth(codes, out[:, 4:8])
    pack_low(codes, out[:, 8:])


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 8:], codes)
    codes |= unpack_fifth(blocks[:, 4:8])
    decode_affine(blocks, codes, out)


Q5_1 = register_format(
    BlockFormat(
        "Q5_1",
        7,
        32,
        24,
        slab_encoder("Q5_1", 32, 24, _encode_blocks),
        slab_decoder("Q5_1", 32, 24, _decode_blocks),
        Packing(32, Plane(4, 8, 16), Plane(1, 4), scales=Scales(0, 4), group=32, minima=True),
        lambda out, std: spread_affine(out, std, 31),
    )
)  # 32 values in 24 bytes; about 3.8 % relative RMS error on normal weights
