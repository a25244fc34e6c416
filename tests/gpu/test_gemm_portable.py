"""The portable prefill matmul against float64 products with the weights exactly as `sp.quant` decodes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from file_rows import NEW, file_rows

from sp.errors import DeviceError
from sp.kernels import jit, nvrtc
from sp.kernels.device import require_device
from sp.kernels.specs.matmul import gemm_portable as declared
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU
from sp.ops.matmul import gemm_portable
from sp.ops.matmul.gemm_portable import gated, gemm
from sp.ops.matmul.packed import PackedWeight, pack
from sp.quant import BF16, F16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat

FORMATS = (Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, BF16, F16, *NEW)
BOUND = 2e-5
TOKENS = (1, 2, 31, 32, 33, 65, 127, 128, 129, 255, 256, 257, 1000)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """All variants at once, on all cores."""
    arch = jit.device_arch("80+", require_device())
    variants = [
        declared.variant(fmt.ggml_type, epilogue, shape)
        for fmt in FORMATS
        for epilogue in declared.EPILOGUES
        for shape in declared.SHAPES
    ]
    with ThreadPoolExecutor() as pool:
        options = [nvrtc.compile_options(defines, arch) for defines in variants]
        list(pool.map(lambda one: jit.build("gemm_portable.cu", one), options))


@pytest.fixture(params=declared.SHAPES, ids=["tall", "small", "thin"], autouse=True)
def shape_of_tiles(request, monkeypatch):
    """Every test with every shape, whichever a product of this size would get."""
    monkeypatch.setattr(declared, "SHAPES", (request.param,))
    gemm_portable._plan.cache_clear()
    yield
    gemm_portable._plan.cache_clear()


@cache
def weight(fmt: BlockFormat, rows: int, width: int, seed: int = 0) -> tuple[PackedWeight, np.ndarray]:
    """Random weights with an offset in each row, packed on the device, and their exact values in float64."""
    import cupy

    rng = np.random.default_rng([seed, rows, width])
    values = 0.02 * (rng.standard_normal((rows, width)) + rng.uniform(-1, 1, (rows, 1)))
    data = file_rows(fmt, values.astype(np.float32))
    packed = pack(f"{fmt.name} {rows}x{width}", fmt, (rows, width), cupy.asarray(data))
    return packed, fmt.decode(data).astype(np.float64)


def activations(tokens: int, width: int) -> np.ndarray:
    return to_bf16(np.random.default_rng(tokens).standard_normal((tokens, width)))


@pytest.mark.parametrize("epilogue", [STORE, STORE_F32, ADD])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_every_token_count(guarded, fmt, epilogue):
    import cupy

    w, exact = weight(fmt, 264, 512)  # the last 64-row tile has 8 rows, the last block of rows is mostly empty
    for tokens in TOKENS:
        x = activations(tokens, 512)
        want = to_float64(x) @ exact.T
        out = guarded((tokens, 264), np.uint16 if epilogue == STORE else np.float32)
        if epilogue == ADD:
            before = np.random.default_rng(1).standard_normal((tokens, 264)).astype(np.float32)
            out[...] = cupy.asarray(before)
            want += before
        gemm(guarded((tokens, 512), np.uint16, x), w, out, epilogue)
        assert nmse(out, want) <= BOUND, tokens


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shape", [(8, 256), (48, 768), (64, 256), (136, 1280), (520, 2816), (2056, 512)])
def test_every_shape(guarded, fmt, shape):
    w, exact = weight(fmt, *shape)
    x = activations(150, shape[1])
    out = guarded((150, shape[0]), np.float32)
    gemm(guarded(x.shape, np.uint16, x), w, out, STORE_F32)
    assert nmse(out, to_float64(x) @ exact.T) <= BOUND


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if not fmt.packing.super], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("width", [64, 128, 192, 320])
def test_few_tiles_along_k(guarded, fmt, width):
    w, exact = weight(fmt, 72, width)
    x = activations(40, width)
    out = guarded((40, 72), np.float32)
    gemm(guarded(x.shape, np.uint16, x), w, out, STORE_F32)
    assert nmse(out, to_float64(x) @ exact.T) <= BOUND


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shape", [(1, 264, 512), (129, 264, 512), (300, 1032, 768)])
def test_gated(guarded, fmt, shape):
    tokens, rows, width = shape
    (gate, g), (up, u) = weight(fmt, rows, width), weight(fmt, rows, width, 1)
    x = activations(tokens, width)
    out = guarded((tokens, rows), np.uint16)
    gated(guarded(x.shape, np.uint16, x), gate, up, out)
    opened = to_float64(x) @ g.T
    bound = BOUND * (1.25 if fmt.name == "IQ3_S" else 1)  # scale and half of it, both rounded, make each value
    assert nmse(out, opened / (1 + np.exp(-opened)) * (to_float64(x) @ u.T)) <= bound


def test_many_tiles_repeat_to_the_bit(guarded):
    """More tiles than the GPU holds at once, in a whole band and a narrower last one."""
    w, exact = weight(Q4_K, 1544, 1024)
    x = guarded((2500, 1024), np.uint16, activations(2500, 1024))
    first, second = guarded((2500, 1544), np.float32), guarded((2500, 1544), np.float32)
    gemm(x, w, first, STORE_F32)
    gemm(x, w, second, STORE_F32)
    assert nmse(first, to_float64(x) @ exact.T) <= BOUND
    assert bool((first == second).all())


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K, BF16, *NEW], ids=lambda fmt: fmt.name)
def test_parts_of_k_repeat_to_the_bit(guarded, fmt):
    """Few tiles and a long k: blocks share a tile, whichever comes last adds up, and leaves the counters at zero."""
    w, exact = weight(fmt, 200, 2816)
    x = guarded((40, 2816), np.uint16, activations(40, 2816))
    results = [guarded((40, 200), np.float32) for _ in range(4)]
    for out in results:
        gemm(x, w, out, STORE_F32)
    defines, parts = gemm_portable._plan(fmt.ggml_type, STORE_F32, 40, w.shape, 132)
    assert parts > 1 or defines["WARPS_M"] == declared.TALL.defines["WARPS_M"]
    assert nmse(results[0], to_float64(x) @ exact.T) <= BOUND
    assert all(bool((out == results[0]).all()) for out in results)


def test_wrong_shapes_are_refused(guarded):
    w, _ = weight(Q8_0, 64, 256)
    x, out = guarded((3, 256), np.uint16, activations(3, 256)), guarded((3, 64), np.float32)
    for bad_x, bad_out, epilogue in (
        (x[:, :128], out, STORE_F32),
        (x, out[:2], STORE_F32),
        (x, out, SWIGLU),
        (x, out, STORE),
    ):
        with pytest.raises(DeviceError):
            gemm(bad_x, w, bad_out, epilogue)
    odd, _ = weight(Q8_0, 60, 256)
    with pytest.raises(DeviceError, match="multiple of 8"):
        gemm(x, odd, guarded((3, 60), np.float32), STORE_F32)
    with pytest.raises(DeviceError, match="alike"):
        gated(x, w, odd, guarded((3, 64), np.uint16))
