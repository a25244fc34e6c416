"""Q4_K: 256 four-bit codes in eight affine sub-blocks; 4.5 bits a value.

Layout (144 bytes): ``f2 d; f2 dmin; u1 scales[12]; u1 q[128]``. Each group of 32 bytes of ``q`` holds sub-block ``2c``
in its low and ``2c + 1`` in its high nibbles, and ``x = d * scale_j * code - dmin * minimum_j``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, slab_decoder, slab_encoder
from sp.quant.formats.kquants.shared import decode_affine, encode_affine, spread_affine
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format


def _encode_blocks(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q4_K", values, 15, -1.0, 20, out).reshape(-1, 4, 2, 32)
    out[:, 16:] = (codes[:, :, 0] | (codes[:, :, 1] << 4)).reshape(-1, 128)


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 16:].reshape(-1, 4, 32)
    codes = np.empty((len(blocks), 4, 2, 32), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    decode_affine(blocks, codes.reshape(-1, 256), out)


Q4_K = register_format(
    BlockFormat(
        "Q4_K",
        12,
        256,
        144,
        slab_encoder("Q4_K", 256, 144, _encode_blocks),
        slab_decoder("Q4_K", 256, 144, _decode_blocks),
        Packing(256, Plane(4, 16, 32), scales=Scales(0, 16), group=32, minima=True),
        lambda out, std: spread_affine(out, std, 15),
    )
)  # 256 values in 144 bytes; about 7.2 % relative RMS error on normal weights
