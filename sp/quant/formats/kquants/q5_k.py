"""Q5_K: 256 five-bit codes in eight affine sub-blocks; 5.5 bits a value.

Layout (176 bytes): ``f2 d; f2 dmin; u1 scales[12]; u1 high[32]; u1 q[128]``. As Q4_K, with the fifth bit of value ``l``
of sub-block ``j`` in bit ``j`` of ``high[l]``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, slab_decoder, slab_encoder
from sp.quant.formats.kquants.shared import decode_affine, encode_affine, spread_affine
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format

_BIT = np.arange(8, dtype=np.uint8)[:, None]


def _encode_blocks(values: Floats, out: Bytes) -> None:
    codes = encode_affine("Q5_K", values, 31, -0.5, 15, out)
    out[:, 16:48] = np.bitwise_or.reduce(codes.reshape(-1, 8, 32) >> 4 << _BIT, axis=1)
    low = codes.reshape(-1, 4, 2, 32) & 15
    out[:, 48:] = (low[:, :, 0] | (low[:, :, 1] << 4)).reshape(-1, 128)


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 48:].reshape(-1, 4, 32)
    codes = np.empty((len(blocks), 4, 2, 32), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    high = blocks[:, None, 16:48] >> _BIT
    high &= 1
    high <<= 4
    codes |= high.reshape(codes.shape)
    decode_affine(blocks, codes.reshape(-1, 256), out)


Q5_K = register_format(
    BlockFormat(
        "Q5_K",
        13,
        256,
        176,
        slab_encoder("Q5_K", 256, 176, _encode_blocks),
        slab_decoder("Q5_K", 256, 176, _decode_blocks),
        Packing(256, Plane(4, 48, 32), Plane(1, 16, 32), scales=Scales(0, 16), group=32, minima=True),
        lambda out, std: spread_affine(out, std, 31),
    )
)  # 256 values in 176 bytes; about 3.6 % relative RMS error on normal weights
