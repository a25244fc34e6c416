"""IQ3_XXS: 256 values as signed vectors of four from a grid of 256; 3.0625 bits a value.

Layout (98 bytes): ``f2 d; u1 q[64]; u4 words[8]``. ``q[i]`` is the code of vector ``i``. A word serves 32 values: seven
bits of sign code for each eight of them, the lowest first, and above those a scale of four bits;
``x = d * (0.5 + scale) / 2 * vector * sign``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import HALVES_RMS, grid, grid_rms, signed_vectors, word_signs
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    words = blocks[:, 66:].view("<u4")
    codes = signed_vectors(grid("IQ3_XXS").take(blocks[:, 2:66]), word_signs(words))
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    step *= np.float32(0.5)
    scale_groups(codes, step, out)


def _spread(out: Bytes, std: float) -> None:
    """Scales of the upper half of their range."""
    out[:, 69::4] |= 0x80
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * 2 / (grid_rms("IQ3_XXS") * HALVES_RMS))


IQ3_XXS = register_format(
    BlockFormat(
        "IQ3_XXS", 18, 256, 98, no_encoder("IQ3_XXS"), slab_decoder("IQ3_XXS", 256, 98, _decode_blocks), spread=_spread
    )
)  # 256 values in 98 bytes
