"""Q5_1: 32 five-bit codes, one fp16 scale and one fp16 minimum; 6 bits a value.

Layout (24 bytes): ``f2 d; f2 m; u1 high[4]; u1 q[16]``; bits of the codes as in Q5_0, and ``x = d * code + m``.
"""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.formats.legacy.affine import affine, spread_affine
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 8:], codes)
    codes |= np.unpackbits(blocks[:, 4:8], axis=1, bitorder="little") << 4
    affine(blocks, codes, out)


Q5_1 = register_format(
    BlockFormat(
        "Q5_1",
        7,
        32,
        24,
        no_encoder("Q5_1"),
        slab_decoder("Q5_1", 32, 24, _decode_blocks),
        Packing(32, Plane(4, 8, 16), Plane(1, 4), scales=Scales(0, 4), group=32, minima=True),
        lambda out, std: spread_affine(out, std, 31),
    )
)
"""32 values in 24 bytes."""
