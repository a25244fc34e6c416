"""What Q4_1 and Q5_1 share: codes from 0 under an fp16 scale and an fp16 minimum, which open the block."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.spread import SPREAD, put_scale


def affine(blocks: Bytes, codes: Bytes, out: Floats) -> None:
    """Write ``d * code + m`` for (blocks, 32) `codes`; `blocks` open with d and m."""
    np.copyto(out, codes)
    out *= blocks[:, :2].view("<f2").astype(np.float32)
    out += blocks[:, 2:4].view("<f2").astype(np.float32)


def spread_affine(out: Bytes, std: float, top: int) -> None:
    """`BlockFormat.spread` of codes 0..`top`: ``m = -d * top / 2``, so all means are 0."""
    pick = out[:, 0].copy()
    d = std * SPREAD / np.sqrt(((top + 1) ** 2 - 1) / 12)
    put_scale(out[:, :2], pick, d)
    put_scale(out[:, 2:4], pick, -d * top / 2)
