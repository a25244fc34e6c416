"""kv_append and kv_gather: tokens land where the block table says and come back as the format stores them."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops import kv_append, kv_gather
from sp.quant import F16, F32, Q4_0

FORMATS = [F32, F16, Q4_0]


def empty_pages(fmt, pages: int = 9, page_tokens: int = 4) -> np.ndarray:
    """Pages of 2 heads of 32 values, full of a byte pattern no test writes."""
    return np.full((pages, page_tokens, 2, fmt.row_bytes(32)), 0xA5, np.uint8)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_round_trip_is_the_formats_own(fmt) -> None:
    kv = np.random.default_rng(0).standard_normal((19, 2, 32)).astype(np.float32)
    pages, table = empty_pages(fmt), np.array([7, 0, 3, 8, 2])
    kv_append(pages, table, 0, kv, fmt)
    np.testing.assert_array_equal(kv_gather(pages, table, 19, fmt), fmt.decode(fmt.encode(kv)))
    np.testing.assert_array_equal(kv_gather(pages, table, 6, fmt), fmt.decode(fmt.encode(kv[:6])))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_pieces_of_odd_size_equal_one_append_and_spare_other_pages(fmt) -> None:
    kv = np.random.default_rng(1).standard_normal((19, 2, 32)).astype(np.float32)
    table = np.array([7, 0, 3, 8, 2])
    once, pieces = empty_pages(fmt), empty_pages(fmt)
    kv_append(once, table, 0, kv, fmt)
    start = 0
    for size in (1, 3, 5, 0, 9, 1):
        kv_append(pieces, table, start, kv[start : start + size], fmt)
        start += size
    np.testing.assert_array_equal(pieces, once)
    untouched = sorted(set(range(9)) - set(table.tolist()))
    assert (once[untouched] == 0xA5).all()
    assert (once[2, 3:] == 0xA5).all(), "the slot after the last token"


def test_token_order_follows_the_table_not_the_page_numbers() -> None:
    pages, table = empty_pages(F32, page_tokens=2), np.array([5, 1])
    kv = np.arange(4, dtype=np.float32)[:, None, None] * np.ones((1, 2, 32), np.float32)
    kv_append(pages, table, 0, kv, F32)
    assert F32.decode(pages[5])[:, 0, 0].tolist() == [0, 1]
    assert F32.decode(pages[1])[:, 0, 0].tolist() == [2, 3]
