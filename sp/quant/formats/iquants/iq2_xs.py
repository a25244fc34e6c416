"""IQ2_XS: 256 values as signed vectors of eight from a grid of 512; 2.3125 bits a value.

Layout (74 bytes): ``f2 d; u2 q[32]; u1 scales[8]``. The lower nine bits of ``q[i]`` are the code of vector ``i``, the
upper seven its signs. One scale of four bits covers 16 values, low nibbles first, and
``x = d * (0.5 + scale) / 4 * vector * sign``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import HALVES_RMS, SIGNS_OF_7, grid, grid_rms, nibbles_in_turn, signed_vectors
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    picks = blocks[:, 2:66].view("<u2")
    codes = signed_vectors(grid("IQ2_XS").take(picks & 511), SIGNS_OF_7.take(picks >> 9))
    scales = nibbles_in_turn(blocks[:, 66:])
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + scales)
    step *= np.float32(0.25)
    scale_groups(codes, step, out)


def _spread(out: Bytes, std: float) -> None:
    """Scales of the upper half of their range."""
    out[:, 66:] |= 0x88
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * 4 / (grid_rms("IQ2_XS") * HALVES_RMS))


IQ2_XS = register_format(
    BlockFormat(
        "IQ2_XS", 17, 256, 74, no_encoder("IQ2_XS"), slab_decoder("IQ2_XS", 256, 74, _decode_blocks), spread=_spread
    )
)  # 256 values in 74 bytes
