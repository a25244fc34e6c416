"""IQ3_XXS and IQ3_S: 256 codes of grids of four numbers each, between three and four bits a value."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats, Int8s
from sp.quant.base import BlockFormat, no_encoder, slab_decoder
from sp.quant.formats.codes import scale_groups
from sp.quant.formats.iquants.grids import (
    HALVES_RMS,
    SIGNS,
    grid,
    grid_rms,
    nibbles_in_turn,
    signed_vectors,
    word_signs,
)
from sp.quant.packing import Packing, Plane, Scales, Vectors
from sp.quant.random_scales import FACTORS, put_scale
from sp.quant.registry import register_format


def _decode_iq3_xxs(blocks: Bytes, out: Floats) -> None:
    words = blocks[:, 66:].view("<u4")
    codes = signed_vectors(grid("IQ3_XXS").take(blocks[:, 2:66]), word_signs(words))
    step = blocks[:, :2].view("<f2").astype(np.float32) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    step *= np.float32(0.5)
    scale_groups(codes, step, out)


def _fit_iq3_xxs(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range."""
    out[:, 69::4] |= 0x80
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS * 2 / (grid_rms("IQ3_XXS") * HALVES_RMS))


IQ3_XXS = register_format(
    BlockFormat(
        "IQ3_XXS",
        18,
        256,
        98,
        no_encoder("IQ3_XXS"),
        slab_decoder("IQ3_XXS", 256, 98, _decode_iq3_xxs),
        fit_scales=_fit_iq3_xxs,
    )
)
"""IQ3_XXS: 256 values as signed vectors of four from a grid of 256; 3.0625 bits a value.

Layout (98 bytes): ``f2 d; u1 q[64]; u4 words[8]``. ``q[i]`` is the code of vector ``i``. A word serves 32 values: seven
bits of sign code for each eight of them, the lowest first, and above those a scale of four bits;
``x = d * (0.5 + scale) / 2 * vector * sign``."""


_IQ3_S_SCALE_RMS = float(np.sqrt(np.mean(np.square(np.arange(17, 32, 2)))))

IQ3_S_VALUES = tuple(range(-15, 16, 2))  # every number of the grid with either sign


def _numbers_iq3_s(blocks: Bytes) -> Int8s:
    """Return vectors times signs, int8 (blocks, 256): odd numbers from -15 to 15."""
    picks = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16) << 8
    picks |= blocks[:, 2:66]
    return signed_vectors(grid("IQ3_S").take(picks), SIGNS.take(blocks[:, 74:106]))


def _codes_iq3_s(blocks: Bytes) -> Bytes:
    """Return the indices of the numbers in `IQ3_S_VALUES`."""
    codes = _numbers_iq3_s(blocks).view(np.uint8)
    codes += 15  # wraps to 0, 2, .. 30
    codes >>= 1
    return codes


def _steps_iq3_s(blocks: Bytes) -> Int8s:
    """Return the multipliers of d, int8 (blocks, 8): 1, 3, .. 31."""
    return (1 + 2 * nibbles_in_turn(blocks[:, 106:])).view(np.int8)


def _decode_iq3_s(blocks: Bytes, out: Floats) -> None:
    step = blocks[:, :2].view("<f2").astype(np.float32) * _steps_iq3_s(blocks)
    scale_groups(_numbers_iq3_s(blocks), step, out)


def _fit_iq3_s(out: Bytes, std: float) -> None:
    """Put scales in the upper half of their range."""
    out[:, 106:] |= 0x88
    put_scale(out[:, :2], out[:, 0].copy(), std * FACTORS / (grid_rms("IQ3_S") * _IQ3_S_SCALE_RMS))


IQ3_S = register_format(
    BlockFormat(
        "IQ3_S",
        21,
        256,
        110,
        no_encoder("IQ3_S"),
        slab_decoder("IQ3_S", 256, 110, _decode_iq3_s),
        Packing(
            256,
            Plane(4, 0),
            scales=Scales(106, 4, _steps_iq3_s, 8),
            delta=Scales(0, 2),
            group=32,
            values=IQ3_S_VALUES,
            vectors=Vectors(104, _codes_iq3_s, lambda: grid("IQ3_S")),
        ),
        _fit_iq3_s,
    )
)
"""IQ3_S: 256 values as signed vectors of four from a grid of 512; 3.4375 bits a value.

Layout (110 bytes): ``f2 d; u1 q[64]; u1 high[8]; u1 signs[32]; u1 scales[4]``. Vector ``i`` has code ``q[i]`` with bit
``i % 8`` of ``high[i // 8]`` as its ninth; value ``8 k + l`` the sign bit ``l`` of ``signs[k]``. One scale of 4 bits
covers 32 values, low nibbles first, and ``x = d * (1 + 2 scale) * vector * sign``; numbers of the grid are 1, 3, ..
15."""
