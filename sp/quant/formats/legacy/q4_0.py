"""Q4_0: 32 four-bit codes and one fp16 scale; 4.5 bits a value.

Layout (18 bytes): ``f2 d; u1 q[16]``; byte ``j`` holds value ``j`` in its low and ``j + 16`` in its high nibble, and
``x = d * (code - 8)``. How it is encoded is said in `encode_symmetric`."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, slab_decoder, slab_encoder
from sp.quant.formats.codes import split_nibbles
from sp.quant.formats.legacy.shared import decode_symmetric, encode_symmetric, pack_low, spread_symmetric
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format


def _encode_blocks(values: Floats, out: Bytes) -> None:
    codes = encode_symmetric("Q4_0", values, 8, out)
    pack_low(codes, out[:, 2:])


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    codes = np.empty((len(blocks), 32), np.uint8)
    split_nibbles(blocks[:, 2:], codes)
    decode_symmetric(blocks, codes, 8, out)


Q4_0 = register_format(
    BlockFormat(
        "Q4_0",
        2,
        32,
        18,
        slab_encoder("Q4_0", 32, 18, _encode_blocks),
        slab_decoder("Q4_0", 32, 18, _decode_blocks),
        Packing(32, Plane(4, 2, 16), scales=Scales(0, 2), group=32),
        lambda out, std: spread_symmetric(out, std, 8),
    )
)  # 32 values in 18 bytes; about 8.6 % relative RMS error on normal weights
