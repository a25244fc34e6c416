"""Random valid blocks of every format, with zero mean and a given standard deviation, at the speed of the generator.

Encoding random values would take minutes for a large model. Instead all bytes of a block are drawn at once, and only
its scales are put right afterwards: codes are then uniform over their range, and the block's fp16 scale, which varies
from block to block, sets the spread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from sp.arrays import Bytes, Doubles
from sp.quant import BlockFormat

# A quarter up or down, with mean square 1; one entry is drawn for each block.
_SPREAD: Doubles = np.linspace(0.75, 1.25, 256)
_SPREAD /= np.sqrt(np.mean(_SPREAD**2))
_SIGN: Doubles = np.where(np.arange(256) % 2, -1.0, 1.0)


def random_blocks(rng: np.random.Generator, fmt: BlockFormat, blocks: int, std: float) -> Bytes:
    """Draw `blocks` blocks whose decoded values have mean about 0 and standard deviation `std`.

    Parameters
    ----------
    rng : Generator
    fmt : BlockFormat
    blocks : int
    std : float
        Between 1e-5 and 100, which every format's fp16 scale can hold.

    Returns
    -------
    uint8 array (blocks, fmt.block_bytes)

    Examples
    --------
    >>> from sp.quant import Q4_K
    >>> values = Q4_K.decode(random_blocks(np.random.default_rng(0), Q4_K, 1000, 0.02))
    >>> round(float(values.std()), 3)
    0.02
    """
    assert 1e-5 <= std <= 100, f"{std=}"
    if fmt.block_size == 1:
        codes = _random_bytes(rng, 2 * blocks).view(np.int16)
        values = codes.astype(np.float32)
        values *= np.float32(std * np.sqrt(12) / 65536)
        return fmt.encode(values).reshape(blocks, fmt.block_bytes)
    out = _random_bytes(rng, blocks * fmt.block_bytes).reshape(blocks, fmt.block_bytes)
    _SCALES[fmt.name](out, std)
    return out


def _random_bytes(rng: np.random.Generator, count: int) -> Bytes:
    words = rng.integers(0, np.iinfo(np.uint64).max, -(-count // 8), dtype=np.uint64, endpoint=True)
    return words.view(np.uint8)[:count]


def _rms(low: int, high: int) -> float:
    """Root mean square of the integers low..high."""
    return float(np.sqrt(np.mean(np.arange(low, high + 1, dtype=np.float64) ** 2)))


def _put_scale(field: Bytes, pick: Bytes, d: Doubles) -> None:
    """Store one of the 256 scales `d` as fp16 into each row of `field` (blocks, 2)."""
    field[...] = d.astype("<f2")[pick, None].view(np.uint8)


def _affine(out: Bytes, std: float, top: int) -> None:
    """Q4_K, Q5_K: minima equal the scales and ``dmin = d * top / 2``, so that every sub-block has mean 0."""
    words = out[:, :16].view("<u4")
    words[:, 1] |= 0xA0A0A0A0  # bits 5 and 7 of bytes 4-7: all eight scales at least 32
    words[:, 2] = words[:, 1]
    words[:, 3] &= 0x0F0F0F0F
    words[:, 3] |= words[:, 3] << 4
    pick = out[:, 0].copy()
    d = std * _SPREAD / (np.sqrt(((top + 1) ** 2 - 1) / 12) * _rms(32, 63))
    _put_scale(out[:, 0:2], pick, d)
    _put_scale(out[:, 2:4], pick, d * top / 2)


def _q6_k(out: Bytes, std: float) -> None:
    """Scales of either sign, 64 or more in magnitude."""
    scales = out[:, 192:208]
    scales &= 0xBF
    scales |= ~scales >> 1 & 0x40
    rms = np.sqrt((_rms(64, 127) ** 2 + _rms(65, 128) ** 2) / 2)
    _put_scale(out[:, 208:], out[:, 208].copy(), std * _SPREAD / (_rms(-32, 31) * rms))


def _q8_0(out: Bytes, std: float) -> None:
    """Code -128, which has no counterpart and which no encoder writes, becomes 0."""
    codes = out[:, 2:].view(np.int8)
    codes *= codes != -128
    _put_scale(out[:, :2], out[:, 0].copy(), std * _SPREAD / (_rms(-127, 127) * np.sqrt(255 / 256)))


def _q4_0(out: Bytes, std: float) -> None:
    """Codes -8..7 have a mean, so the scale takes either sign."""
    _put_scale(out[:, :2], out[:, 0].copy(), std * _SPREAD * _SIGN / _rms(-8, 7))


_SCALES: Mapping[str, Callable[[Bytes, float], None]] = {
    "Q4_K": lambda out, std: _affine(out, std, 15),
    "Q5_K": lambda out, std: _affine(out, std, 31),
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
}
