"""Hopper attention with keys in 8 bits against its twin, on pages full of NaN wherever no token is."""

from __future__ import annotations

import numpy as np
import pytest
from compare import nmse
from paged import PagedCase

from sp.errors import DeviceError
from sp.kernels.path import native_path
from sp.ops.attention.byte_attention.attend import attend, byte_output
from sp.ops.attention.byte_attention.byte_keys import prefill_with_keys, sampled_centre
from sp.ops.attention.byte_attention.twin import byte_key_attention
from sp.quant import F16, Q4_0

try:
    HOPPER = native_path() == "sm_90a"
except DeviceError:
    HOPPER = False
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0")

TWIN = 6e-6
"""NMSE against the twin: weights are rounded to f16 and results to BF16."""
EXACT = 1.5e-3
"""NMSE against float64; scores have errors of int8."""


@pytest.mark.parametrize("size", [1, 2, 30])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize(
    ("n", "prefix"), [(1, 0), (1, 5000), (64, 64), (127, 1), (128, 0), (129, 255), (1000, 1000), (3000, 77)]
)
def test_twin(guarded, n: int, prefix: int, group: int, size: int) -> None:
    rng = np.random.default_rng([n, prefix, group])
    case = PagedCase.make(rng, n + prefix, 2, 256, F16)
    q = (size * rng.standard_normal((n, 2 * group, 256))).astype(np.float16)
    at = case.device()
    centre, out = sampled_centre(at), guarded(q.shape, np.uint16)
    prefill_with_keys(guarded(q.shape, np.float16, q), at, 1 / 16, centre=centre, out=out)
    k, v = (each.get().astype(np.float32) for each in at.gather())
    assert nmse(out, byte_key_attention(q.astype(np.float32), k, v, 1 / 16, centre.get())) < TWIN
    if size < 30:  # past that the largest score alone decides, and which it is
        assert nmse(out, case.want(q)) < EXACT


@pytest.mark.parametrize("fmt", [F16, Q4_0], ids=lambda fmt: fmt.name)
def test_over_pages_of_either_format(fmt) -> None:
    import cupy

    rng, rotate = np.random.default_rng(5), fmt is Q4_0
    case = PagedCase.make(rng, 2555, 2, 256, fmt, rotate)
    q = rng.standard_normal((2055, 4, 256)).astype(np.float16)
    out = byte_output(cupy.asarray(q), case.device())
    assert 1e-6 < nmse(out.reshape(q.shape), case.want_finished(q, None)) < EXACT


def test_loud_keys() -> None:
    """What all keys share is subtracted."""
    import cupy

    rng = np.random.default_rng(6)
    case = PagedCase.make(rng, 2000, 2, 256, F16)
    pages = case.k_pages.view(np.float16)
    pages[...] = np.where(np.isnan(pages), pages, pages + (30 * rng.standard_normal((2, 256))).astype(np.float16))
    q = rng.standard_normal((2000, 4, 256)).astype(np.float16)
    assert nmse(attend(cupy.asarray(q), case.device(), 1 / 16), case.want(q)) < 2 * EXACT


def test_channels_that_are_large_cost_the_others_little() -> None:
    """Rotation spreads them: without it the error would be 3.4e-3."""
    import cupy

    rng = np.random.default_rng(8)
    case = PagedCase.make(rng, 2000, 2, 256, F16)
    pages = case.k_pages.view(np.float16)
    pages[..., [3, 77, 200]] *= np.float16(10)
    q = rng.standard_normal((2000, 4, 256)).astype(np.float16)
    q[..., [3, 77, 200]] /= np.float16(10)
    assert nmse(attend(cupy.asarray(q), case.device(), 1 / 16), case.want(q)) < EXACT


def test_memory_that_held_no_numbers() -> None:
    """What rounding leaves out would show."""
    import cupy

    rng = np.random.default_rng(7)
    case = PagedCase.make(rng, 1333, 1, 256, F16)
    q = cupy.asarray(rng.standard_normal((1333, 2, 256)).astype(np.float16))
    first = attend(q, case.device(), 1 / 16).get()
    for _ in range(3):
        poison = cupy.full(1 << 26, 0xFF, np.uint8)
        del poison
        np.testing.assert_array_equal(attend(q, case.device(), 1 / 16).get(), first)
