"""Q4_1: 32 four-bit codes, one fp16 scale and one fp16 minimum; 5 bits a value.

Layout (20 bytes): ``f2 d; f2 m; u1 q[16]``; nibbles as in Q4_0, and ``x = d * code + m``. How it is encoded is said in
`encode_affine`."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, slab_decoder, slab_encoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.formats.legacy.shared import decode_affine, encode_affine, pack_low, spread_affine
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format


def _encode_blocks(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q4_1", values, 15, out)
    pack_low(codes, out[:, 4:])


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 4:], codes)
    decode_affine(blocks, codes, out)


Q4_1 = register_format(
    BlockFormat(
        "Q4_1",
        3,
        32,
        20,
        slab_encoder("Q4_1", 32, 20, _encode_blocks),
        slab_decoder("Q4_1", 32, 20, _decode_blocks),
        Packing(32, Plane(4, 4, 16), scales=Scales(0, 4), group=32, minima=True),
        lambda out, std: spread_affine(out, std, 15),
    )
)  # 32 values in 20 bytes; about 7.8 % relative RMS error on normal weights
