"""Random valid blocks of every format, with zero mean and a given standard deviation, at the speed of the generator.

Encoding random values would take minutes for a large model. Instead all bytes of a block are drawn at once, and only
its scales are put right afterwards: codes are then uniform over their range, and the block's scale, which varies from
block to block, sets the spread. How is for the format to say (`BlockFormat.spread`); values of one that does not
are drawn and encoded.
"""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes
from sp.quant import BlockFormat


def random_blocks(rng: np.random.Generator, fmt: BlockFormat, blocks: int, std: float) -> Bytes:
    """Draw `blocks` blocks whose decoded values have mean about 0 and standard deviation `std`.

    Parameters
    ----------
    std : float
        Between 1e-5 and 100; below 1e-3 met as nearly as the scales of a format allow, by NVFP4 not at all.

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
    if fmt.spread is None:
        drawn = rng.standard_normal((blocks, fmt.block_size), np.float32)
        return fmt.encode(drawn * np.float32(std))
    out = _random_bytes(rng, blocks * fmt.block_bytes).reshape(blocks, fmt.block_bytes)
    fmt.spread(out, std)
    return out


def _random_bytes(rng: np.random.Generator, count: int) -> Bytes:
    words = rng.integers(0, np.iinfo(np.uint64).max, -(-count // 8), dtype=np.uint64, endpoint=True)
    return words.view(np.uint8)[:count]
