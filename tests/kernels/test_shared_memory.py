"""Blocks of the kernels for few queries fit the shared memory of a multiprocessor, whatever keys and values are."""

from __future__ import annotations

from itertools import product

import pytest

from sp.kernels.specs.attention import attention_decode, attention_split
from sp.kernels.specs.attention.attention_decode import ATTENTION_DECODE
from sp.kernels.specs.attention.attention_rows import HEAD_DIMS
from sp.kernels.specs.attention.attention_split import ATTENTION_SPLIT

ROOM = {False: 99 << 10, True: 227 << 10}
"""Bytes that a block may have, on sm_86, sm_89 and sm_120, and on sm_90 and sm_100."""
FORMATS = list(product((16, 8, 4, 5), (16, 8, 4, 14)))


@pytest.mark.parametrize("roomy", [False, True])
def test_blocks_of_attention_decode_fit(roomy: bool) -> None:
    found = {
        (d, formats, rows): attention_decode.variant(d, formats, rows, roomy)
        for d, formats, rows in product(attention_decode.HEAD_DIMS, FORMATS, (8, 16))
    }
    too_large = [case for case, defines in found.items() if ATTENTION_DECODE.shared_bytes(defines) > ROOM[roomy]]
    assert not too_large


@pytest.mark.parametrize("roomy", [False, True])
def test_blocks_of_attention_split_fit(roomy: bool) -> None:
    found = {
        (d, formats, rows): attention_split.variant(d, formats, rows, roomy)
        for d, formats, rows in product(HEAD_DIMS, FORMATS, range(1, 1025, 5))
    }
    too_large = [case for case, defines in found.items() if ATTENTION_SPLIT.shared_bytes(defines) > ROOM[roomy]]
    assert not too_large
