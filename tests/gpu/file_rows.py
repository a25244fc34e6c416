"""Rows of a file in every format that kernels read, also in those that are read and not written."""

from __future__ import annotations

import numpy as np

from sp.arrays import Bytes, Floats
from sp.models.synthetic.synthetic import random_blocks
from sp.quant import BlockFormat, format_by_name

ONLY_READ = ("Q3_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "MXFP4")
NEW = tuple(map(format_by_name, ("Q3_K", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "IQ3_S", "MXFP4")))
"""Those of dynamic mixes and of older files, beside the K-quants, Q8_0, Q4_0 and plain numbers."""


def file_rows(fmt: BlockFormat, values: Floats) -> Bytes:
    """Encoded `values` (rows, width); where none are written, random blocks of as large values, drawn by the first."""
    if fmt.name not in ONLY_READ:
        return fmt.encode(values)
    seed = [*values.shape, int(np.ascontiguousarray(values).view(np.uint32)[0, 0])]
    spread = max(float(np.std(values)), 1e-5)
    return random_blocks(np.random.default_rng(seed), fmt, values.size // fmt.block_size, spread).reshape(
        len(values), -1
    )
