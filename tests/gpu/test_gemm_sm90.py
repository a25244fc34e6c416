"""The Hopper matmul against float64 products of the same bf16 inputs with the weights as sp.quant decodes them.

Bound: NMSE 2e-5. Rounding the scales and then the weights to bf16 costs a few 1e-6, rounding the result another
3e-6; a wrong scale, code or row of one tile costs more than 1e-3.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from file_rows import NEW, file_rows

from sp.errors import DeviceError
from sp.kernels import forced_path, jit, nvrtc
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_sm90 import variant
from sp.ops.matmul import gemm_sm90
from sp.ops.matmul.gemm_sm90 import are_narrow, beside, gated, gemm
from sp.ops.matmul.packed import PackedWeight, pack
from sp.quant import BF16, F16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat, format_by_name

BOUND = 2e-5
Q4_1, MXFP4 = format_by_name("Q4_1"), format_by_name("MXFP4")
FORMATS = (Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, BF16, F16, *NEW)
ROWS = (1, 2, 31, 32, 33, 65, 127, 128, 129, 255, 256, 257, 1000)


@pytest.fixture(autouse=True)
def hopper():
    try:
        with forced_path("sm_90a"):
            yield
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The variants of these tests at once, on all cores."""
    if native_path() != "sm_90a":
        return
    variants = [
        variant(fmt.ggml_type, epilogue, tokens, stream)
        for fmt in FORMATS
        for epilogue in Epilogue
        for tokens, stream in ((256, 0), (256, 1), (128, 0), (128, 1))
    ]
    with ThreadPoolExecutor() as pool:
        options = [nvrtc.compile_options(defines, "90a") for defines in variants]
        list(pool.map(lambda one: jit.build("gemm_sm90.cu", one), options))


def make_weight(fmt: BlockFormat, out: int, width: int, seed: int) -> tuple[PackedWeight, np.ndarray]:
    """A packed weight on the device, and its exact values."""
    import cupy

    values = np.random.default_rng(seed).standard_normal((out, width)).astype(np.float32) * np.float32(0.05)
    rows = file_rows(fmt, values)
    return pack("w", fmt, (out, width), cupy.asarray(rows)), fmt.decode(rows).astype(np.float64)


def make_inputs(tokens: int, width: int, seed: int) -> np.ndarray:
    return to_bf16(np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32))


def product(guarded, x: np.ndarray, w: PackedWeight, epilogue: Epilogue, base: np.ndarray | None = None):
    out = guarded((len(x), w.shape[0]), np.uint16 if epilogue == STORE else np.float32, base)
    gemm(guarded(x.shape, np.uint16, x), w, out, epilogue)
    return out


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("out", [192, 72], ids=lambda out: f"out{out}")
def test_formats(guarded, fmt, out):
    w, values = make_weight(fmt, out, 512, 1)
    for tokens, epilogue in ((129, STORE), (300, STORE_F32), (70, STORE), (257, ADD)):
        x = make_inputs(tokens, 512, tokens)
        base = np.random.default_rng(7).standard_normal((tokens, out)).astype(np.float32) if epilogue == ADD else None
        want = to_float64(x) @ values.T + (0 if base is None else base)
        assert nmse(product(guarded, x, w, epilogue, base), want) < BOUND, (tokens, epilogue)


@pytest.mark.parametrize("tokens", ROWS)
def test_rows(guarded, tokens):
    w, values = make_weight(Q4_K, 200, 768, 2)
    x = make_inputs(tokens, 768, tokens)
    want = to_float64(x) @ values.T
    for epilogue in (STORE, STORE_F32):
        assert nmse(product(guarded, x, w, epilogue), want) < BOUND, epilogue
    base = np.random.default_rng(3).standard_normal(want.shape).astype(np.float32)
    assert nmse(product(guarded, x, w, ADD, base), want + base) < BOUND


@pytest.mark.parametrize("width", [64, 128, 192, 320, 1088])
@pytest.mark.parametrize("out", [8, 64, 320, 1000])
@pytest.mark.parametrize("fmt", [Q8_0, Q4_1, MXFP4], ids=lambda fmt: fmt.name)
def test_shapes(guarded, fmt, out, width):
    """Odd and single tiles along both axes; scales of 2, 4 bytes and 1."""
    w, values = make_weight(fmt, out, width, 4)
    for tokens in (100, 260):
        x = make_inputs(tokens, width, 5)
        assert nmse(product(guarded, x, w, STORE), to_float64(x) @ values.T) < BOUND


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K, BF16, *NEW], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("tokens", [1, 100, 129, 520])
def test_gated(guarded, fmt, tokens):
    (gate, g), (up, u) = make_weight(fmt, 200, 512, 8), make_weight(fmt, 200, 512, 9)
    x = make_inputs(tokens, 512, 10)
    out = guarded((tokens, 200), np.uint16)
    gated(guarded(x.shape, np.uint16, x), gate, up, out)
    assert nmse(out, silu(to_float64(x) @ g.T) * (to_float64(x) @ u.T)) < 2 * BOUND


def test_large_gate_values(guarded):
    """Gates far from zero on both sides: exp overflows, the result must not."""
    import cupy

    weight = np.zeros((64, 64), np.float32)
    weight[np.arange(64), np.arange(64)] = 1
    w = pack("w", BF16, (64, 64), cupy.asarray(BF16.encode(weight)))
    x = to_bf16(np.tile(np.linspace(-200, 200, 64, dtype=np.float32), (130, 1)))
    out = guarded((130, 64), np.uint16)
    gated(guarded(x.shape, np.uint16, x), w, w, out)
    assert nmse(out, silu(to_float64(x)) * to_float64(x)) < BOUND


@pytest.mark.parametrize("epilogue", [STORE, STORE_F32, ADD])
@pytest.mark.parametrize("tokens", [100, 2100])
def test_many_tiles_repeat_to_the_bit(guarded, epilogue, tokens):
    """More tiles than the GPU has blocks, so every block takes several."""
    w, values = make_weight(Q8_0, 4160, 192, 11)
    x = make_inputs(tokens, 192, 12)
    first, second = (product(guarded, x, w, epilogue, np.zeros((tokens, 4160), np.float32)) for _ in range(2))
    assert nmse(first, to_float64(x) @ values.T) < BOUND
    assert bool((first.view(np.uint8) == second.view(np.uint8)).all())


@pytest.fixture
def streaming(monkeypatch):
    """Every product shares its last tiles' k-steps among the blocks, also where that does not pay."""
    monkeypatch.setattr(gemm_sm90, "FIXUP", {128: -1e9, 256: -1e9})
    gemm_sm90.plan_of.cache_clear()
    yield
    gemm_sm90.plan_of.cache_clear()


@pytest.mark.parametrize("fmt", [Q4_0, Q8_0, Q4_1, MXFP4], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("epilogue", [STORE, STORE_F32, ADD])
@pytest.mark.parametrize(
    ("tokens", "out", "width"), [(100, 8, 64), (100, 264, 1088), (1100, 1480, 320), (2100, 4160, 192)]
)
def test_streamed(guarded, streaming, fmt, epilogue, tokens, out, width):
    """Tiles shared by two and more blocks, twice: the flags must be as before, and the sums in the same order."""
    w, values = make_weight(fmt, out, width, 20)
    x = make_inputs(tokens, width, 21)
    first, second = (product(guarded, x, w, epilogue, np.zeros((tokens, out), np.float32)) for _ in range(2))
    assert gemm_sm90.plan_of(fmt.ggml_type, epilogue, tokens, w.row_tiles, w.k_tiles, 132).streamed > 0
    assert nmse(first, to_float64(x) @ values.T) < BOUND
    assert bool((first.view(np.uint8) == second.view(np.uint8)).all())


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K, *NEW], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("tokens", [100, 1100])
def test_streamed_gated(guarded, streaming, fmt, tokens):
    (gate, g), (up, u) = make_weight(fmt, 1480, 512, 22), make_weight(fmt, 1480, 512, 23)
    x = make_inputs(tokens, 512, 24)
    out = guarded((tokens, 1480), np.uint16)
    gated(guarded(x.shape, np.uint16, x), gate, up, out)
    assert nmse(out, silu(to_float64(x) @ g.T) * (to_float64(x) @ u.T)) < 2 * BOUND


def test_scale_exactness(guarded):
    """With the weights as the kernel rounds them, only the order of float32 sums is left."""
    from sp.ops.matmul.packed import unpack_bf16

    for fmt in FORMATS:
        w, _ = make_weight(fmt, 192, 512, 13)
        x = make_inputs(257, 512, 14)
        want = to_float64(x) @ to_float64(unpack_bf16(w)).T
        assert nmse(product(guarded, x, w, STORE_F32), want) < 1e-11, fmt.name


def test_nan_rows_stay_apart(guarded):
    """A NaN in one token reaches that token alone, also past the end of a tile."""
    w, values = make_weight(Q4_K, 128, 256, 15)
    x = make_inputs(130, 256, 16)
    x[129, 3] = 0x7FC0
    out = to_float64(product(guarded, x, w, STORE))
    assert np.isnan(out[129]).all()
    assert nmse(out[:129], to_float64(x[:129]) @ values.T) < BOUND


def test_refusals(guarded):
    w, _ = make_weight(Q8_0, 64, 64, 17)
    x, out = guarded((4, 64), np.uint16), guarded((4, 64), np.float32)
    with pytest.raises(DeviceError, match="epilogue must be"):
        gemm(x, w, out, SWIGLU)
    with pytest.raises(DeviceError, match="do not fit"):
        gemm(x, w, out, STORE)
    with pytest.raises(DeviceError, match="multiple of 8"):
        gemm(x, make_weight(Q8_0, 60, 64, 18)[0], guarded((4, 60), np.float32), STORE_F32)
    with pytest.raises(DeviceError, match="alike"):
        gated(x, w, make_weight(BF16, 64, 64, 19)[0], guarded((4, 64), np.uint16))


@pytest.mark.parametrize("tokens", [1, 129, 512, 3000, 17000])
@pytest.mark.parametrize("fmt", [BF16, Q4_K, Q6_K], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("epilogue", [STORE, STORE_F32])
def test_two_narrow_weights_in_one_kernel_are_those_of_two(guarded, fmt, tokens, epilogue):
    """To the bit, for both have one plan."""
    weights = tuple(make_weight(fmt, out, 768, seed)[0] for out, seed in ((48, 1), (64, 2)))
    x, dtype = make_inputs(tokens, 768, tokens), np.uint16 if epilogue == STORE else np.float32
    outs = [guarded((tokens, w.shape[0]), dtype) for w in weights]
    beside(guarded(x.shape, np.uint16, x), weights, outs, epilogue)
    for out, w in zip(outs, weights, strict=True):
        np.testing.assert_array_equal(out.get(), product(guarded, x, w, epilogue).get())


def test_who_goes_beside_whom():
    (narrow, _), (other, _), (wide, _) = (make_weight(BF16, out, 256, 1) for out in (8, 64, 72))
    assert are_narrow((narrow, other))
    assert not are_narrow((narrow, wide))
    assert not are_narrow((narrow,))
    assert not are_narrow((narrow, make_weight(Q4_K, 8, 256, 1)[0]))
