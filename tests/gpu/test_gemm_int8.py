"""The matmul in eight bits on the device: rounding, scales and products against the twin and float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from compare import mirrored, nmse, planted, to_bf16, to_float64
from file_rows import file_rows

from sp.errors import DeviceError
from sp.kernels import jit, nvrtc
from sp.kernels.device import require_device
from sp.kernels.specs.matmul import gemm_int8 as declared
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU
from sp.ops.eight_bit import gemm_int8 as module
from sp.ops.eight_bit.gemm_int8 import gated_int8, gemm_int8, integer_scales
from sp.ops.eight_bit.inputs import Quantised, quantise, tiled
from sp.ops.eight_bit.integer_form import scale_words
from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.norms import rms_norm
from sp.quant import BF16, FORMATS, Q4_K, Q8_0, BlockFormat, Weight

NATIVE = [FORMATS[kind] for kind in declared.KINDS]
SUMS, ROUNDED = 1e-12, 5e-6
"""Bounds on the NMSE against float64 of the same integers: sums in float32, results in BF16."""
TOKENS = (1, 33, 64, 65, 129, 500)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """All variants at once, on all cores."""
    arch = jit.device_arch("80+", require_device())
    options = [
        nvrtc.compile_options(declared.variant(fmt.ggml_type, epilogue, shape), arch)
        for fmt in NATIVE
        for epilogue in declared.EPILOGUES
        for shape in declared.SHAPES
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: jit.build("gemm_int8.cu", one), options))


@pytest.fixture(params=declared.SHAPES, ids=["wide", "small"])
def shape_of_tiles(request, monkeypatch):
    """Every product with every shape, whichever one of this size would get."""
    monkeypatch.setattr(declared, "SHAPES", (request.param,))
    module._plan.cache_clear()
    yield
    module._plan.cache_clear()


@cache
def weight(fmt: BlockFormat, rows: int, width: int, seed: int = 0) -> tuple[PackedWeight, Weight]:
    """Random weights with an offset in each row, packed on the device, and as in a file."""
    import cupy

    rng = np.random.default_rng([seed, rows, width])
    values = 0.02 * (rng.standard_normal((rows, width)) + rng.uniform(-1, 1, (rows, 1)))
    data = file_rows(fmt, values.astype(np.float32))
    return pack(fmt.name, fmt, (rows, width), cupy.asarray(data)), Weight(fmt.name, fmt, (rows, width), data)


def exact(q: Quantised) -> np.ndarray:
    """Quantised inputs in float64."""
    return q.codes * np.repeat(q.scales.astype(np.float64), declared.GROUP, axis=1)


def inputs(tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(tokens).standard_normal((tokens, width)).astype(np.float32)


def check_rounding(x: np.ndarray, given: Any, norm: Any = None) -> None:
    """The device's codes and scales are the twin's to the bit."""
    got, want = quantise(given, norm), tiled(quantise(x))
    np.testing.assert_array_equal(got.codes.get()[:, : len(x)], want.codes[:, : len(x)])
    np.testing.assert_array_equal(got.pairs.get()[:, : len(x)], want.pairs[:, : len(x)])


@pytest.mark.parametrize("tokens", [1, 33, 500])
@pytest.mark.parametrize("width", [64, 320, 5120, 17408])
def test_inputs_are_rounded_as_the_twin_rounds_them(guarded, tokens, width):
    x = inputs(tokens, width)
    x[0, 40] *= 1000
    check_rounding(x, guarded(x.shape, np.float32, x))
    narrow = to_bf16(x)
    check_rounding(to_float64(narrow).astype(np.float32), guarded(x.shape, np.uint16, narrow))


def test_zeros_and_what_is_no_number(guarded):
    x = inputs(6, 128)
    x[0], x[1, 3], x[2, 40], x[3, 100], x[4, :32] = 0, np.nan, -np.inf, 2.0**100, 2.0**-101
    check_rounding(x, guarded(x.shape, np.float32, x))


@pytest.mark.parametrize("width", [64, 320, 5120, 8192])
def test_a_norm_comes_first(guarded, width):
    """Its sum is in another order, so that a value next to a half may go the other way."""
    x, scale = inputs(33, width), np.random.default_rng(1).uniform(0.5, 2, width).astype(np.float32)
    norm = guarded(scale.shape, np.float32, scale), 1e-6
    got = quantise(guarded(x.shape, np.float32, x), norm)
    want = tiled(quantise(rms_norm(x, scale, 1e-6)))
    apart = np.abs(got.codes.get()[:, :33].astype(int) - want.codes[:, :33])
    assert apart.max() <= 1
    assert apart.mean() < 1e-3
    np.testing.assert_allclose(got.pairs.get()[:, :33, 0], want.pairs[:, :33, 0], rtol=3e-6)


def test_a_norm_of_narrow_inputs_is_refused(guarded):
    x, scale = to_bf16(inputs(2, 128)), guarded((128,), np.float32, np.ones(128))
    with pytest.raises(DeviceError, match="norm is of float32"):
        quantise(guarded(x.shape, np.uint16, x), (scale, 1e-6))


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_scales_are_those_of_the_twin(fmt):
    packed, w = weight(fmt, 200, 512)
    words = integer_scales(packed).get().reshape(4, 8, 64, 4)
    np.testing.assert_array_equal(words.swapaxes(1, 2).reshape(256, 8, 4)[:200], as_rows(w))


def as_rows(w: Weight) -> np.ndarray:
    """`scale_words` by row: what the padding holds does not matter."""
    words = scale_words(w)
    return words.swapaxes(1, 2).reshape(-1, words.shape[1], 4)[: w.shape[0]]


@pytest.mark.parametrize("epilogue", [STORE, STORE_F32, ADD])
@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_every_token_count(guarded, fmt, epilogue, shape_of_tiles):
    import cupy

    packed, w = weight(fmt, 264, 512)  # the last 64-row tile has 8 rows, the last block of rows is mostly empty
    for tokens in TOKENS:
        x = inputs(tokens, 512)
        want = exact(quantise(x)) @ w.dense().astype(np.float64).T
        out = guarded((tokens, 264), np.uint16 if epilogue == STORE else np.float32)
        if epilogue == ADD:
            before = np.random.default_rng(1).standard_normal((tokens, 264)).astype(np.float32)
            out[...] = cupy.asarray(before)
            want += before
        gemm_int8(quantise(guarded(x.shape, np.float32, x)), packed, out, epilogue)
        assert nmse(out, want) <= (ROUNDED if epilogue == STORE else SUMS), tokens


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shape", [(8, 256), (48, 768), (136, 1280), (520, 2816), (2056, 512)])
def test_every_shape(guarded, fmt, shape, shape_of_tiles):
    packed, w = weight(fmt, *shape)
    x, out = inputs(150, shape[1]), guarded((150, shape[0]), np.float32)
    gemm_int8(quantise(guarded(x.shape, np.float32, x)), packed, out, STORE_F32)
    assert nmse(out, exact(quantise(x)) @ w.dense().astype(np.float64).T) <= SUMS


@pytest.mark.parametrize("fmt", [fmt for fmt in NATIVE if not fmt.packing.super], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("width", [64, 128, 192, 320])
def test_few_tiles_along_k(guarded, fmt, width, shape_of_tiles):
    packed, w = weight(fmt, 72, width)
    x, out = inputs(40, width), guarded((40, 72), np.float32)
    gemm_int8(quantise(guarded(x.shape, np.float32, x)), packed, out, STORE_F32)
    assert nmse(out, exact(quantise(x)) @ w.dense().astype(np.float64).T) <= SUMS


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shape", [(1, 264, 512), (129, 264, 512), (300, 1032, 768)])
def test_gated(guarded, fmt, shape, shape_of_tiles):
    tokens, rows, width = shape
    (gate, g), (up, u) = weight(fmt, rows, width), weight(fmt, rows, width, 1)
    x, out = inputs(tokens, width), guarded((tokens, rows), np.uint16)
    gated_int8(quantise(guarded(x.shape, np.float32, x)), gate, up, out)
    opened, other = (exact(quantise(x)) @ each.dense().astype(np.float64).T for each in (g, u))
    assert nmse(out, opened / (1 + np.exp(-opened)) * other) <= ROUNDED


@pytest.mark.parametrize("size", [100, 1000])
@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_outliers(guarded, fmt, size, shape_of_tiles):
    """Both parts to float32 of what the integers say: rounding the inputs, not the kernel, loses the quiet ones."""
    (packed, w), (x, loud) = weight(fmt, 200, 1280), planted(33, 1280, size)
    ways, dense = (x, mirrored(x, loud)), w.dense().astype(np.float64)
    got = [guarded((33, 200), np.float32) for _ in ways]
    for one, out in zip(ways, got, strict=True):
        gemm_int8(quantise(guarded(one.shape, np.float32, one)), packed, out, STORE_F32)
    want = [exact(quantise(one)) @ dense.T for one in ways]
    first, second = map(to_float64, got)
    assert nmse(first + second, want[0] + want[1]) <= SUMS
    assert nmse(first - second, want[0] - want[1]) <= 1e-8  # float32's rounding of the loud part


def test_a_token_that_holds_no_number_is_nan_and_no_other(guarded, shape_of_tiles):
    (packed, _), x = weight(Q4_K, 264, 512), inputs(70, 512)
    x[33, 100] = np.inf
    out = guarded((70, 264), np.float32)
    gemm_int8(quantise(guarded(x.shape, np.float32, x)), packed, out, STORE_F32)
    bad = np.isnan(out.get())
    assert bad[33].all()
    assert bad.sum() == 264


def test_many_tiles_repeat_to_the_bit(guarded, shape_of_tiles):
    """More tiles than the card holds at once, in a whole band and a narrower last one."""
    (packed, w), x = weight(Q4_K, 1544, 1024), inputs(2500, 1024)
    first, second = guarded((2500, 1544), np.float32), guarded((2500, 1544), np.float32)
    given = quantise(guarded(x.shape, np.float32, x))
    gemm_int8(given, packed, first, STORE_F32)
    gemm_int8(given, packed, second, STORE_F32)
    assert nmse(first, exact(quantise(x)) @ w.dense().astype(np.float64).T) <= SUMS
    assert bool((first == second).all())


def test_wrong_shapes_are_refused(guarded):
    packed, _ = weight(Q8_0, 64, 256)
    x = quantise(guarded((3, 256), np.float32, inputs(3, 256)))
    out = guarded((3, 64), np.float32)
    for bad_out, epilogue in ((out[:2], STORE_F32), (out, SWIGLU), (out, STORE)):
        with pytest.raises(DeviceError):
            gemm_int8(x, packed, bad_out, epilogue)
    odd, _ = weight(Q8_0, 60, 256)
    with pytest.raises(DeviceError, match="multiple of 8"):
        gemm_int8(x, odd, guarded((3, 60), np.float32), STORE_F32)
    plain, _ = weight(BF16, 64, 256)
    with pytest.raises(DeviceError, match="no integer codes"):
        gemm_int8(x, plain, out, STORE_F32)
    with pytest.raises(DeviceError, match="alike"):
        gated_int8(x, packed, odd, guarded((3, 64), np.uint16))
