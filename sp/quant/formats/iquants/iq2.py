"""IQ2_XXS, IQ2_XS and IQ2_S: 256 codes of grids of eight numbers each, between two and three bits a value."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import (
    HALVES_RMS,
    SIGNS,
    SIGNS_OF_7,
    grid,
    grid_rms,
    nibbles_in_turn,
    signed_vectors,
    word_signs,
)
from sp.quant.random_scales import FACTORS, put_scale
from sp.quant.registry import register_format


def _decode_iq2_xxs(blocks: Bytes, out: Floats) -> None:
    n = len(blocks)
    parts = blocks[:, 2:].reshape(n, 8, 8)
    words = np.ascontiguousarray(parts[:, :, 4:]).view("<u4")[:, :, 0]
    codes = signed_vectors(grid("IQ2_XXS").take(parts[:, :, :4].reshape(n, 32)), word_signs(words))
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    step *= np.float32(0.25)
    scale_groups(codes, step, out)


def _fit_iq2_xxs(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range."""
    out[:, 9::8] |= 0x80
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * 4 / (grid_rms("IQ2_XXS") * HALVES_RMS))


IQ2_XXS = register_format(
    BlockFormat(
        "IQ2_XXS",
        16,
        256,
        66,
        no_encoder("IQ2_XXS"),
        slab_decoder("IQ2_XXS", 256, 66, _decode_iq2_xxs),
        fit_scales=_fit_iq2_xxs,
    )
)
"""IQ2_XXS: 256 values as signed vectors of eight from a grid of 256; 2.0625 bits a value.

Layout (66 bytes): ``f2 d; struct {u1 q[4]; u4 word} parts[8]``. A part serves 32 values: ``q`` are the codes of its
four vectors, and the word holds seven bits of sign code for each, the lowest first, and above those a scale of four
bits; ``x = d * (0.5 + scale) / 4 * vector * sign``."""


def _decode_iq2_xs(blocks: Bytes, out: Floats) -> None:
    picks = blocks[:, 2:66].view("<u2")
    codes = signed_vectors(grid("IQ2_XS").take(picks & 511), SIGNS_OF_7.take(picks >> 9))
    scales = nibbles_in_turn(blocks[:, 66:])
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + scales)
    step *= np.float32(0.25)
    scale_groups(codes, step, out)


def _fit_iq2_xs(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range."""
    out[:, 66:] |= 0x88
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * 4 / (grid_rms("IQ2_XS") * HALVES_RMS))


IQ2_XS = register_format(
    BlockFormat(
        "IQ2_XS",
        17,
        256,
        74,
        no_encoder("IQ2_XS"),
        slab_decoder("IQ2_XS", 256, 74, _decode_iq2_xs),
        fit_scales=_fit_iq2_xs,
    )
)
"""IQ2_XS: 256 values as signed vectors of eight from a grid of 512; 2.3125 bits a value.

Layout (74 bytes): ``f2 d; u2 q[32]; u1 scales[8]``. The lower nine bits of ``q[i]`` are the code of vector ``i``, the
upper seven its signs. One scale of four bits covers 16 values, low nibbles first, and
``x = d * (0.5 + scale) / 4 * vector * sign``."""


_IQ2_S_PAIR = np.array([0, 2, 4, 6], np.uint8)


def _decode_iq2_s(blocks: Bytes, out: Floats) -> None:
    picks = ((blocks[:, 66:74, None] >> _IQ2_S_PAIR) & 3).reshape(-1, 32).astype(np.uint16) << 8
    picks |= blocks[:, 2:34]
    codes = signed_vectors(grid("IQ2_S").take(picks), SIGNS.take(blocks[:, 34:66]))
    scales = nibbles_in_turn(blocks[:, 74:])
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + scales)
    step *= np.float32(0.25)
    scale_groups(codes, step, out)


def _fit_iq2_s(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range."""
    out[:, 74:] |= 0x88
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * 4 / (grid_rms("IQ2_S") * HALVES_RMS))


IQ2_S = register_format(
    BlockFormat(
        "IQ2_S", 22, 256, 82, no_encoder("IQ2_S"), slab_decoder("IQ2_S", 256, 82, _decode_iq2_s), fit_scales=_fit_iq2_s
    )
)
"""IQ2_S: 256 values as signed vectors of eight from a grid of 1024; 2.5625 bits a value.

Layout (82 bytes): ``f2 d; u1 q[32]; u1 signs[32]; u1 high[8]; u1 scales[8]``. Vector ``i`` has code ``q[i]`` with bits
``2 (i % 4)`` and the next of ``high[i // 4]`` above it, and its signs in ``signs[i]``. One scale of four bits covers 16
values, low nibbles first, and ``x = d * (0.5 + scale) / 4 * vector * sign``."""
