"""IQ2_XXS: 256 values as signed vectors of eight from a grid of 256; 2.0625 bits a value.

Layout (66 bytes): ``f2 d; struct {u1 q[4]; u4 word} parts[8]``. A part serves 32 values: ``q`` are the codes of its
four vectors, and the word holds seven bits of sign code for each, the lowest first, and above those a scale of four
bits; ``x = d * (0.5 + scale) / 4 * vector * sign``."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import HALVES_RMS, grid, grid_rms, signed_vectors, word_signs
from sp.quant.registry import register_format
from sp.quant.spread import SPREAD, put_scale


def _decode_blocks(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    parts = blocks[:, 2:].reshape(n, 8, 8)
    words = np.ascontiguousarray(parts[:, :, 4:]).view("<u4")[:, :, 0]
    codes = signed_vectors(grid("IQ2_XXS").take(parts[:, :, :4].reshape(n, 32)), word_signs(words))
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    step *= np.float32(0.25)
    scale_groups(codes, step, out)


def _spread(out: Bytes, std: float) -> None:
    """Scales of the upper half of their range."""
    out[:, 9::8] |= 0x80
    put_scale(out[:, :2], out[:, 0].copy(), std * SPREAD * 4 / (grid_rms("IQ2_XXS") * HALVES_RMS))


IQ2_XXS = register_format(
    BlockFormat(
        "IQ2_XXS", 16, 256, 66, no_encoder("IQ2_XXS"), slab_decoder("IQ2_XXS", 256, 66, _decode_blocks), spread=_spread
    )
)  # 256 values in 66 bytes
