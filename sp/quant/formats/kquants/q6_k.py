"""Q6_K: 256 six-bit codes in sixteen symmetric sub-blocks; 6.5625 bits a value.

Layout (210 bytes): ``u1 low[128]; u1 high[64]; i1 scales[16]; f2 d``. Each half of 128 values takes 64 bytes of ``low``
and 32 of ``high``. Its quarter ``k`` of 32 values reads bytes ``32 * (k % 2) + l`` of ``low``, the low nibble for the
first two quarters and the high one for the others, and bits ``2k, 2k + 1`` of ``high[l]``;
``x = d * scale * (code - 32)`` with one scale for 16 values."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, fp16_scales, slab_decoder, slab_encoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.kquants.shared import GROUP_MAX_EPS, search_symmetric
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale, rms

_SHIFT = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _encode_blocks(values: Floats, out: Bytes) -> None:
    columns = values.reshape(-1, 16)
    found = search_symmetric(np.ascontiguousarray(columns.T), 32)
    parts = found.scale.reshape(-1, 16)
    largest = np.take_along_axis(parts, np.abs(parts).argmax(axis=1)[:, None], axis=1)
    zero = np.abs(largest[:, 0]) < GROUP_MAX_EPS
    largest[zero] = 1
    with np.errstate(all="ignore"):  # an infinite scale is refused on the next line but one
        inverse = np.float32(-128) / largest
        reciprocal = np.float32(1) / inverse
    d = fp16_scales("Q6_K", reciprocal)
    scales = np.minimum(np.rint(parts * inverse), np.float32(127)).astype(np.int8)
    # The codes are found again for the scales as they were stored.
    step = (d.astype(np.float32) * scales).reshape(-1, 1)
    lost = np.flatnonzero(step == 0)
    step[lost] = 1
    ratio = columns / step
    ratio[lost] = np.where(found.inverse[lost, None] == 0, np.float32(-32), columns[lost] * found.inverse[lost, None])
    codes = (np.clip(np.rint(ratio), -32, 31) + np.float32(32)).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = codes & 15
    out[:, :128] = (low[:, :, :2] | (low[:, :, 2:] << 4)).reshape(-1, 128)
    out[:, 128:192] = np.bitwise_or.reduce(codes >> 4 << _SHIFT, axis=2).reshape(-1, 64)
    out[:, 192:208] = scales.view(np.uint8)
    out[:, 208:] = d.view(np.uint8)
    out[zero] = 0


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 64)
    codes = np.empty((n, 2, 2, 64), np.uint8)
    np.bitwise_and(low, 15, out=codes[:, :, 0])
    np.right_shift(low, 4, out=codes[:, :, 1])
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> _SHIFT
    high &= 3
    high <<= 4
    codes |= high.reshape(codes.shape)
    codes -= np.uint8(32)  # wraps to the two's complement of the signed code
    step = blocks[:, 208:].view("<f2").astype(np.float32) * blocks[:, 192:208].view(np.int8)
    scale_groups(codes.view(np.int8).reshape(n, 256), step, out)


def _spread(out: Bytes, std: float) -> None:
    """Scales of either sign, 64 or more in magnitude."""
    scales = out[:, 192:208]
    scales &= 0xBF
    scales |= ~scales >> 1 & 0x40
    mean_square = (rms(64, 127) ** 2 + rms(65, 128) ** 2) / 2
    put_scale(out[:, 208:], out[:, 208].copy(), std * SPREAD / (rms(-32, 31) * np.sqrt(mean_square)))


Q6_K = register_format(
    BlockFormat(
        "Q6_K",
        14,
        256,
        210,
        slab_encoder("Q6_K", 256, 210, _encode_blocks),
        slab_decoder("Q6_K", 256, 210, _decode_blocks),
        Packing(256, Plane(4, 0, 64), Plane(2, 128, 32), scales=Scales(192, 16), delta=Scales(208, 2), group=16),
        _spread,
    )
)  # 256 values in 210 bytes; about 1.8 % relative RMS error on normal weights
