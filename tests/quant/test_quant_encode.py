"""Encoders of F16, BF16 and the legacy quants against the `gguf` package, and what every encoder must do."""

from __future__ import annotations

import math
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from quant_samples import rms, samples, writes

from sp.arrays import Bytes, Floats
from sp.quant import BF16, F16, F32, FORMATS, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, BlockFormat
from sp.quant.base import SLAB

every = pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if writes(fmt)], ids=lambda fmt: fmt.name)
simple = pytest.mark.parametrize("fmt", [F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1], ids=lambda fmt: fmt.name)


def reference(fmt: BlockFormat, values: Floats) -> Bytes:
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType(fmt.ggml_type)).view(np.uint8)


@simple
@pytest.mark.parametrize("case", samples(256))
def test_same_bytes_as_gguf(fmt: BlockFormat, case: str) -> None:
    values = samples(1 << 14, seed=6)[case].reshape(4, -1)
    # In Q4_0 and Q5_0, C reads zeros as +0.0 whatever their signs; the gguf package takes the sign of the first.
    expected = reference(fmt, values + np.float32(0) if fmt in (Q4_0, Q5_0) else values)
    np.testing.assert_array_equal(fmt.encode(values), expected)


@pytest.mark.parametrize("fmt", [F16, BF16], ids=lambda fmt: fmt.name)
def test_halves_round_to_even(fmt: BlockFormat) -> None:
    """Every midpoint between neighbouring codes, and one float32 ulp to either side of it."""
    codes = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    exact = fmt.decode(codes)
    exact = np.unique(exact[np.isfinite(exact)])
    middle = (exact[1:].astype(np.float64) + exact[:-1]) / 2
    middle = middle.astype(np.float32)
    values = np.concatenate(
        [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, -np.float32(np.inf))]
    )
    np.testing.assert_array_equal(fmt.encode(values), reference(fmt, values))


def c_roundf(value: np.float32) -> int:
    """Halves away from zero, decided on the exact value."""
    exact = abs(float(value))
    return int(math.copysign(math.floor(exact) + (exact - math.floor(exact) >= 0.5), value))


@given(arrays(np.float32, 32, elements=st.floats(-3, 3, width=32)))
def test_q8_0_is_the_scalar_rule(values: Floats) -> None:
    d = np.max(np.abs(values)) / np.float32(127)
    inverse = np.float32(1) / d if d >= np.finfo(np.float32).tiny else np.float32(0)
    block = Q8_0.encode(values)
    assert block[:2].view("<f2")[0] == np.float16(d)
    assert [int(q) for q in block[2:].view(np.int8)] == [c_roundf(v * inverse) for v in values]


def test_q8_0_does_not_round_by_adding_a_half() -> None:
    """0.49999997 + 0.5 is 1.0 in float32, but 0.49999997 rounds to 0; 0.5 and 2.5 round away from zero."""
    values = np.zeros(32, np.float32)
    values[:6] = 127, np.nextafter(np.float32(0.5), np.float32(0)), 0.5, 2.5, -0.5, -2.5
    assert list(Q8_0.encode(values)[2:8].view(np.int8)) == [127, 0, 1, 3, -1, -3]


@given(arrays(np.float32, 32, elements=st.floats(-3, 3, width=32)))
def test_q4_0_is_the_scalar_rule(values: Floats) -> None:
    """Separately rounded product and sum, then truncation: ggml's C source without contraction to an FMA."""
    peak = np.float32(0)
    for v in values:
        if abs(v) > abs(peak):
            peak = v
    d = peak / np.float32(-8)
    inverse = np.float32(1) / d if abs(d) >= np.finfo(np.float32).tiny else np.float32(0)
    codes = [min(15, int(v * inverse + np.float32(8.5))) for v in values]
    block = Q4_0.encode(values)
    np.testing.assert_array_equal(block[:2], np.array([d]).astype("<f2").view(np.uint8))
    assert [int(b) & 15 for b in block[2:]] + [int(b) >> 4 for b in block[2:]] == codes


@every
def test_slabs_and_axes(fmt: BlockFormat) -> None:
    """A tensor encodes as its blocks do one by one, in any shape, from any memory layout."""
    n = SLAB + 4 * max(fmt.block_size, 2)
    values = np.random.default_rng(7).standard_normal(n).astype(np.float32)
    whole = fmt.encode(values.reshape(2, -1))
    assert whole.shape == (2, fmt.row_bytes(n // 2))
    tail = [fmt.encode(block) for block in values.reshape(-1, fmt.block_size)[-5:]]
    np.testing.assert_array_equal(whole.reshape(-1)[-5 * fmt.block_bytes :], np.concatenate(tail))
    fortran = np.asfortranarray(values.reshape(2, -1))
    np.testing.assert_array_equal(fmt.encode(fortran), whole)


@every
def test_scratch_memory_is_bounded(fmt: BlockFormat) -> None:
    """A tensor of 8 MiB takes little more than its result, in both directions."""
    values = np.random.default_rng(15).standard_normal(1 << 21).astype(np.float32)
    packed = fmt.encode(values)  # also warms caches that are not scratch
    for call, argument, result in ((fmt.encode, values, packed.nbytes), (fmt.decode, packed, values.nbytes)):
        tracemalloc.start()
        call(argument)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < result + (4 << 20)


@every
def test_does_not_touch_its_input(fmt: BlockFormat) -> None:
    values = samples(512)["normal"]
    before = values.copy()
    packed = fmt.encode(values)
    packed[...] = 0
    fmt.decode(packed)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    ("fmt", "relative"),
    [
        (BF16, 0.0018),
        (F16, 2.3e-4),
        (Q8_0, 0.0056),
        (Q4_0, 0.090),
        (Q4_1, 0.082),
        (Q5_0, 0.045),
        (Q5_1, 0.040),
        (Q4_K, 0.074),
        (Q5_K, 0.037),
        (Q6_K, 0.0185),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_relative_error_on_normal_weights(fmt: BlockFormat, relative: float) -> None:
    values = samples(1 << 16, seed=8)["normal"]
    error = rms(fmt.decode(fmt.encode(values)) - values) / rms(values)
    assert relative / 1.25 < error < relative
