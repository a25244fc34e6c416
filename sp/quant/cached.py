"""K5, K4 and V4: formats of cached keys and values, which no file uses: blocks of 64 values, a scale byte per 16.

With ``t = code - middle`` a value is ``scale * t`` for six-bit codes (middle 31.5) and ``scale * t (1 + BEND t t)`` for
four-bit codes (7.5): levels that are denser in the middle, where most values of a rotated row are. A scale is the upper
byte of a float16 without its sign: five bits of exponent and three of mantissa. The encoder tries five scales: the
one closest to just covering the largest value, three above it and one below. It takes the one with the least squared
error: which levels happen to lie close to the values counts more than that the largest level is used.

Layout of a block of 64, in words of four bytes: scales of its four groups of 16; eight words of four-bit codes, word w
for values ``8 w .. 8 w + 7``, value ``8 w + j`` (``j < 4``) in the low half of byte j and ``8 w + 4 + j`` in the high
one; in K5 two words of upper bits. In this order kernels can load whole words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.quant.base import BlockFormat, inverse_or_zero, slab_decoder, slab_encoder

BLOCK, GROUP = 64, 16
TRIED, ABOVE = 5, 3
"""Number of scales that the encoder tries, and how many of them are above the one that just covers the largest value;
neighbours differ by 6 to 12 %. Trying all would lower the squared error of normal values by less than 1 % more."""
LARGEST = 0xF7  # byte of the largest finite scale
BEND = np.float32(0.005)
MOST_SCALE = 57000.0  # of a covering scale: its byte is finite after rounding


def scale_of(codes: Bytes) -> Floats:
    """Decode scale bytes.

    >>> scale_of(np.array([0, 0x78, 0x79], np.uint8)).tolist()
    [0.0, 1.0, 1.125]
    """
    scales: Floats = (codes.astype(np.uint16) << 7).view(np.float16).astype(np.float32)
    return scales


def levels(top: int) -> Floats:
    """Return the values of codes 0 to `top`, 15 or 63, at a scale of 1.

    >>> levels(15)[7:10].tolist(), levels(63)[32:34].tolist()
    ([-0.5006250143051147, 0.5006250143051147, 1.5168750286102295], [0.5, 1.5])
    """
    t = np.arange(top + 1, dtype=np.float32) - np.float32(top / 2)
    values: Floats = t * (np.float32(1) + BEND * (t * t)) if top == 15 else t
    return values


def _encode_groups(name: str, x: Floats, top: int) -> tuple[Bytes, Bytes]:
    """Encode `x` (groups, 16): codes 0..`top` (groups, 16), and scale bytes (groups, 1)."""
    values = levels(top)
    borders = (values[1:] + values[:-1]) * np.float32(0.5)
    largest = np.abs(x).max(axis=1, keepdims=True) * (np.float32(1) / values[-1])
    if largest.size and not float(largest.max()) < MOST_SCALE:
        raise ConfigError(f"{name}: values are too large: a scale exceeds {MOST_SCALE:.0f}")
    # Round the float16 to its upper byte without the sign: drop seven of the ten mantissa bits, with half of 128 added.
    covering = (largest.astype(np.float16).view(np.uint16).astype(np.int32) + 64) >> 7
    highest = np.minimum(covering + ABOVE, LARGEST)
    codes, scales, least = np.zeros(x.shape, np.uint8), np.zeros(highest.shape, np.uint8), None
    for step in range(TRIED):
        byte = np.maximum(highest - step, 0).astype(np.uint8)
        scale = scale_of(byte)
        scaled = x * inverse_or_zero(scale)
        trial = np.searchsorted(borders, scaled, side="right").astype(np.uint8)
        error = np.square(scale * values[trial] - x).sum(axis=1, keepdims=True)
        better = np.ones(error.shape, bool) if least is None else error < least
        least = error if least is None else np.minimum(error, least)
        np.copyto(codes, trial, where=better)
        np.copyto(scales, byte, where=better)
    return codes, scales


def _pack_nibbles(codes: Bytes, out: Bytes) -> None:
    """Pack the low nibbles of (blocks, 64) codes into (blocks, 32) bytes."""
    halves = codes.reshape(-1, 8, 2, 4) & 15
    out[...] = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(-1, 32)


def _unpack_nibbles(packed: Bytes) -> Bytes:
    words = packed.reshape(-1, 8, 4)
    return np.stack([words & 15, words >> 4], axis=2).reshape(-1, 64)


def _four_bit_encoder(name: str) -> Callable[[Floats, Bytes], None]:
    def encode(values: Floats, out: Bytes) -> None:
        codes, scales = _encode_groups(name, values.reshape(-1, GROUP), 15)
        out[:, :4] = scales.reshape(-1, 4)
        _pack_nibbles(codes.reshape(-1, BLOCK), out[:, 4:])

    return encode


def _decode_four_bits(blocks: Bytes, out: Floats) -> None:
    codes = _unpack_nibbles(np.ascontiguousarray(blocks[:, 4:]))
    scales = scale_of(blocks[:, :4])[:, :, None]
    out.reshape(-1, 4, GROUP)[...] = scales * levels(15)[codes.reshape(-1, 4, GROUP)]


def _four_bit(name: str, number: int) -> BlockFormat:
    encoder = slab_encoder(name, BLOCK, 36, _four_bit_encoder(name))
    return BlockFormat(name, number, BLOCK, 36, encoder, slab_decoder(name, BLOCK, 36, _decode_four_bits))


V4 = _four_bit("V4", -1)
"""Cached values in 4.5 bits: four-bit codes. Layout (36 bytes): ``u1 scales[4]; u1 codes[32]``."""
K4 = _four_bit("K4", -3)
"""Cached keys in 4.5 bits, in the layout of `V4`. A cache of them keeps the newest tokens in float16 as well."""


def _encode_k5(values: Floats, out: Bytes) -> None:
    parts = values.reshape(-1, 2, 2, GROUP)
    heavy, heavy_scales = _encode_groups("K5", np.ascontiguousarray(parts[:, 0]).reshape(-1, GROUP), 63)
    light, light_scales = _encode_groups("K5", np.ascontiguousarray(parts[:, 1]).reshape(-1, GROUP), 15)
    out[:, :2], out[:, 2:4] = heavy_scales.reshape(-1, 2), light_scales.reshape(-1, 2)
    heavy = heavy.reshape(-1, 32)
    _pack_nibbles(np.concatenate([heavy, light.reshape(-1, 32)], axis=1), out[:, 4:36])
    # Value 8 c + 4 h + 2 p + r of 32 has bits 2 (2 h + r) and up of byte 2 c + p: one thread of a kernel needs these.
    upper = (heavy >> 4).reshape(-1, 4, 2, 2, 2)
    packed = upper[:, :, 0, :, 0] | upper[:, :, 0, :, 1] << 2 | upper[:, :, 1, :, 0] << 4 | upper[:, :, 1, :, 1] << 6
    out[:, 36:] = packed.reshape(-1, 8)


def _decode_k5(blocks: Bytes, out: Floats) -> None:
    codes = _unpack_nibbles(np.ascontiguousarray(blocks[:, 4:36])).reshape(-1, 4, GROUP)
    packed = np.ascontiguousarray(blocks[:, 36:]).reshape(-1, 4, 1, 2, 1)
    shifts = np.array([[0, 2], [4, 6]], np.uint8).reshape(1, 1, 2, 1, 2)
    upper = (packed >> shifts & 3).reshape(-1, 2, GROUP)
    codes[:, :2] |= upper << 4
    parts = out.reshape(-1, 4, GROUP)
    parts[:, :2], parts[:, 2:] = levels(63)[codes[:, :2]], levels(15)[codes[:, 2:]]
    parts *= scale_of(blocks[:, :4])[:, :, None]


K5 = BlockFormat(
    "K5",
    -2,
    BLOCK,
    44,
    slab_encoder("K5", BLOCK, 44, _encode_k5),
    slab_decoder("K5", BLOCK, 44, _decode_k5),
)
"""Cached keys in 5.5 bits: six-bit codes of the first 32 values, which matter most (see `KeyBasis`), four-bit codes of
the others. Layout (44 bytes): ``u1 scales[4]; u1 codes[32]; u1 upper[8]``."""

IN_BASIS = K5, K4
"""Formats of keys that are packed in a basis of their own, see `KeyBasis`."""
