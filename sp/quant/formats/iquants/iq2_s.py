"""IQ2_S: 256 values as signed vectors of eight from a grid of 1024; 2.5625 bits a value.

Layout (82 bytes): ``f2 d; u1 q[32]; u1 signs[32]; u1 high[8]; u1 scales[8]``. Vector ``i`` has code ``q[i]`` with bits
``2 (i % 4)`` and the next of ``high[i // 4]`` above it, and its signs in ``signs[i]``. One scale of four bits covers 16
values, low nibbles first, and ``x = d * (0.5 + scale) / 4 * vector * sign``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import HALVES_RMS, SIGNS, grid, grid_rms, nibbles_in_turn, signed_vectors
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale

_PAIR = np.array([0, 2, 4, 6], np.uint8)


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    picks = ((blocks[:, 66:74, None] >> _PAIR) & 3).reshape(-1, 32).astype(np.uint16) << 8
    picks |= blocks[:, 2:34]
    codes = signed_vectors(grid("IQ2_S").take(picks), SIGNS.take(blocks[:, 34:66]))
    scales = nibbles_in_turn(blocks[:, 74:])
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + scales)
    step *= np.float32(0.25)
    scale_groups(codes, step, out)


def _spread(out: Bytes, std: float) -> None:
    """Scales of the upper half of their range."""
    out[:, 74:] |= 0x88
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * 4 / (grid_rms("IQ2_S") * HALVES_RMS))


IQ2_S = register_format(
    BlockFormat(
        "IQ2_S", 22, 256, 82, no_encoder("IQ2_S"), slab_decoder("IQ2_S", 256, 82, _decode_blocks), spread=_spread
    )
)  # 256 values in 82 bytes
