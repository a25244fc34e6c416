"""Hopper 8-bit attention against its twin, on pages full of NaN wherever no token is."""

from __future__ import annotations

import numpy as np
import pytest
from compare import nmse, to_float64
from paged import PagedCase

from sp.errors import DeviceError
from sp.kernels.path import native_path
from sp.kernels.specs.attention.attention_bytes import HEAD_DIMS
from sp.ops.attention.byte_attention.attend import byte_output, byte_pages, prefill, sampled_centre, within_window
from sp.ops.attention.byte_attention.twin import byte_attention
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.sparse.block_lists import lists_of
from sp.quant import F16, Q4_0

try:
    HOPPER = native_path() == "sm_90a"
except DeviceError:
    HOPPER = False
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0")

heads_of_both_sizes = pytest.mark.parametrize("d", HEAD_DIMS)
TWIN = 4e-4
"""NMSE against the twin, 1.2e-4 measured, and 3.0e-4 of one query with heads of 64: tensor cores keep about 14 bits of
sums, which are of up to 1,024 keys."""
EXACT = 2.5e-3
"""NMSE against float64; that of the twin is 1.2e-3 to 1.6e-3."""


def listed(rng: np.random.Generator, heads: int, n: int, tokens: int) -> BlockLists:
    """Half of the blocks that each query block sees, none for one of them."""
    import cupy

    blocks, rows = -(-tokens // 128), -(-n // 128)
    mask = rng.random((heads, rows, blocks)) < 0.5
    mask &= np.arange(blocks) <= (np.minimum(np.arange(rows) * 128 + 127, n - 1) + tokens - n)[:, None] // 128
    mask[0, 0] = False
    found = lists_of(mask)
    return BlockLists(cupy.asarray(found.counts), cupy.asarray(found.indices), 0)


@heads_of_both_sizes
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("group", [1, 2, 7])
@pytest.mark.parametrize(
    ("n", "prefix"), [(1, 0), (1, 5000), (64, 64), (127, 1), (128, 0), (129, 255), (1000, 1000), (3000, 77)]
)
def test_twin(guarded, n: int, prefix: int, group: int, sparse: bool, d: int) -> None:
    rng = np.random.default_rng([n, prefix, group])
    case = PagedCase.make(rng, n + prefix, 2, d, F16)
    q = (2 * rng.standard_normal((n, 2 * group, d))).astype(np.float16)
    at = case.device()
    centre = sampled_centre(at)
    blocks = listed(rng, 2 * group, n, n + prefix) if sparse else None
    out = guarded(q.shape, np.uint16)
    prefill(guarded(q.shape, np.float16, q), byte_pages(at, centre), d**-0.5, blocks, out=out)
    k, v = (each.get().astype(np.float32) for each in at.gather())
    lists = blocks and BlockLists(blocks.counts.get(), blocks.indices.get())
    want = byte_attention(q.astype(np.float32), k, v, d**-0.5, lists, centre.get())
    assert nmse(out, want) < TWIN
    if blocks is None:
        assert nmse(out, case.want(q)) < EXACT
    else:
        assert not to_float64(out)[:128, 0].any()


@heads_of_both_sizes
@pytest.mark.parametrize("window", [1, 100, 128, 1000, 9999])
@pytest.mark.parametrize(("n", "prefix"), [(1, 5000), (127, 1), (129, 255), (1000, 1000), (3000, 77)])
def test_windows(guarded, n: int, prefix: int, window: int, d: int) -> None:
    rng = np.random.default_rng([n, prefix, window])
    case = PagedCase.make(rng, n + prefix, 2, d, F16)
    q = (2 * rng.standard_normal((n, 4, d))).astype(np.float16)
    at, rule = case.device(), ScoreRule(window=window, scale=0.1)
    centre = sampled_centre(at)
    out = guarded(q.shape, np.uint16)
    prefill(guarded(q.shape, np.float16, q), byte_pages(at, centre), 0.1, out=out, rule=rule)
    k, v = (each.get().astype(np.float32) for each in at.gather())
    reach = rule.first_seen(n, at.tokens, q)
    want = byte_attention(q.astype(np.float32), k, v, 0.1, centre=centre.get(), reach=reach)
    assert nmse(out, want) < TWIN
    seen, inside = within_window(at, n, rule, out)
    assert seen.tokens <= n + window + 127
    again = prefill(guarded(q.shape, np.float16, q), byte_pages(seen), 0.1, rule=inside)
    assert nmse(again, want) < 2 * EXACT  # of two roundings, each as far from the truth


@heads_of_both_sizes
@pytest.mark.parametrize("fmt", [F16, Q4_0], ids=lambda fmt: fmt.name)
def test_over_pages_of_either_format(fmt, d: int) -> None:
    import cupy

    rng, rotate = np.random.default_rng(5), fmt is Q4_0
    case = PagedCase.make(rng, 2555, 2, d, fmt, rotate)
    q = rng.standard_normal((2055, 4, d)).astype(np.float16)
    out = byte_output(cupy.asarray(q), case.device())
    assert 1e-5 < nmse(out.reshape(q.shape), case.want_finished(q, None)) < EXACT


@heads_of_both_sizes
def test_loud_keys_and_values(d: int) -> None:
    import cupy

    rng = np.random.default_rng(6)
    case = PagedCase.make(rng, 2000, 2, d, F16)
    pages = case.k_pages.view(np.float16)
    pages[...] = np.where(np.isnan(pages), pages, pages + (30 * rng.standard_normal((2, d))).astype(np.float16))
    case.v_pages.view(np.float16)[case.table[3], 5, 1, 7] = 1000
    q = rng.standard_normal((2000, 4, d)).astype(np.float16)
    at = case.device()
    out = prefill(cupy.asarray(q), byte_pages(at), d**-0.5)
    assert nmse(out, case.want(q)) < 4 * EXACT


@heads_of_both_sizes
def test_memory_that_held_no_numbers(d: int) -> None:
    """What rounding leaves out would show."""
    import cupy

    rng = np.random.default_rng(7)
    case = PagedCase.make(rng, 1333, 1, d, F16)
    q = cupy.asarray(rng.standard_normal((1333, 2, d)).astype(np.float16))
    first = prefill(q, byte_pages(case.device()), d**-0.5).get()
    for _ in range(3):
        poison = cupy.full(1 << 26, 0xFF, np.uint8)
        del poison
        np.testing.assert_array_equal(prefill(q, byte_pages(case.device()), d**-0.5).get(), first)
