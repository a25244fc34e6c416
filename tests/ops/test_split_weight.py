"""Three BF16 matrices for one of F32: their sum is the matrix, to the bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sp.ops.matmul.split_weight import bf16_terms


def test_terms_add_up_to_every_float() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, (64, 4096), np.uint32)
    floats = bits.view(np.float32)
    whole = np.isfinite(floats) & (np.abs(floats) > 2.0**-110)  # below, a third term has fewer bits
    edges = [0, 1 << 31, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800001, 0x3FFFFFFF]
    values = np.concatenate([bits[whole], np.array(edges, np.uint32)])
    actual = [term.view(np.uint16) for term in bf16_terms(values.view(np.uint8).reshape(1, -1))]
    wide = [(term.astype(np.uint32) << 16).view(np.float32)[0].astype(np.float64) for term in actual]
    np.testing.assert_array_equal(sum(wide), values.view(np.float32).astype(np.float64))
    assert all((np.abs(small) <= np.abs(large)).all() for large, small in pairwise(wide))
