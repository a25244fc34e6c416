"""Q8_0: 32 signed bytes and one fp16 scale; 8.5 bits a value.

Layout (34 bytes): ``f2 d; i1 q[32]``; value ``x_i = d * q_i``. Encoding: ``d = max|x| / 127`` and
``q = round(x * (1 / d))`` in float32, halves away from zero, as ggml's reference quantiser rounds."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, fp16_scales, inverse_or_zero, slab_decoder, slab_encoder
from sp.quant.packing import Packing, Plane, Scales
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale, rms


def _encode_blocks(values: Floats, out: Bytes) -> None:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    out[:, :2] = fp16_scales("Q8_0", d).view(np.uint8)
    scaled = values * inverse_or_zero(d)
    whole = np.trunc(scaled)
    scaled -= whole  # exact, so the comparison with a half is too; adding a half first would misround 0.49999997
    whole += scaled >= np.float32(0.5)
    whole -= scaled <= np.float32(-0.5)
    out[:, 2:].view(np.int8)[...] = whole


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    np.copyto(out, blocks[:, 2:].view(np.int8))
    out *= blocks[:, :2].view("<f2").astype(np.float32)


def _spread(out: Bytes, std: float) -> None:
    """Code -128, which has no counterpart and which no encoder writes, becomes 0."""
    codes = out[:, 2:].view(np.int8)
    codes *= codes != -128
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD / (rms(-127, 127) * np.sqrt(255 / 256)))


Q8_0 = register_format(
    BlockFormat(
        "Q8_0",
        8,
        32,
        34,
        slab_encoder("Q8_0", 32, 34, _encode_blocks),
        slab_decoder("Q8_0", 32, 34, _decode_blocks),
        Packing(32, Plane(8, 2), scales=Scales(0, 2), group=32, signed=True),
        _spread,
    )
)  # 32 values in 34 bytes; about 0.5 % relative RMS error on normal weights
