"""Products of bytes on the device: outlier channels, rotation, rounding and sums against the twin and float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from byte_order import byte_order
from compare import nmse, to_bf16, to_float64
from file_rows import file_rows

from sp.errors import DeviceError
from sp.kernels.path import forced_path, native_path
from sp.kernels.specs.matmul.epilogue import ADD, STORE, STORE_F32, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import SHAPES
from sp.ops.byte_rows.loud import SAMPLE, LoudChannels, loud_channels, loudest
from sp.ops.byte_rows.rows import ByteKind, round_inputs, round_rows
from sp.ops.matmul import byte_weights, gemm_bytes_portable, gemm_bytes_sm90
from sp.ops.matmul.byte_weights import loud_columns, round_weights
from sp.ops.matmul.packed import PackedWeight, pack, unpack_bf16
from sp.ops.matmul.project import gated_project, project, project_add
from sp.quant import BF16, Q4_K, Q6_K, BlockFormat, Math, kernel_formats

SUMS = {ByteKind.INT8: 2e-13, ByteKind.E4M3: 2e-5}
"""Bounds on the NMSE against float64 of the same bytes: of int8 exact sums, scaled in float32; of e4m3 sums
that the tensor cores keep in about 14 bits."""
ROUNDED = 5e-6
"""As above of results in BF16."""
GATED = 3e-5
"""As above where gate and up are BF16 before they meet; of a few values, so that no mean hides the largest."""


def numbers(rows: Any) -> np.ndarray:
    """Bytes of the device as float64 numbers, rotated values in their own order."""
    raw = rows.codes.get()
    if rows.kind is ByteKind.INT8:
        values = raw.view(np.int8).astype(np.float64)
    else:
        exponent, fraction = (raw >> 3 & 15).astype(int), (raw & 7) / 8
        size = np.where(exponent, np.ldexp(1 + fraction, exponent - 7), np.ldexp(fraction, -6))
        values = np.where(raw & 128, -size, size)
    found = np.empty_like(values)
    found[:, byte_order(values.shape[1])] = values
    return found


def floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def inputs(tokens: int, width: int, loud: int = 0) -> np.ndarray:
    """Normal BF16 values, some channels up to a thousand times as large."""
    rng = np.random.default_rng([tokens, width, loud])
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    x[:, rng.choice(width, loud, replace=False)] *= rng.uniform(50, 1000, loud).astype(np.float32)
    return to_bf16(x)


def weight(fmt: BlockFormat, rows: int, width: int, seed: int = 0) -> PackedWeight:
    import cupy

    values = 0.02 * np.random.default_rng([seed, rows, width]).standard_normal((rows, width))
    return pack(fmt.name, fmt, (rows, width), cupy.asarray(file_rows(fmt, values.astype(np.float32))))


@pytest.fixture(
    params=[(gemm_bytes_sm90, kind) for kind in ByteKind] + [(gemm_bytes_portable, ByteKind.INT8)],
    ids=["sm_90a-int8", "sm_90a-fp8", "portable-int8"],
)
def kernel(request):
    if request.param[0] is gemm_bytes_sm90 and native_path() != "sm_90a":
        pytest.skip("needs compute capability 9.0")
    return request.param


def with_columns(weights: Sequence[PackedWeight], kind: ByteKind, loud: LoudChannels) -> Any:
    return replace(round_weights(weights, kind), loud=loud_columns(weights, loud))


@pytest.mark.parametrize("loud", [0, 1, 64, 100])
@pytest.mark.parametrize(("tokens", "width"), [(1, 256), (77, 1024), (300, 5120), (64, 17408), (2100, 512), (5, 32768)])
def test_rows_are_those_of_the_reference(tokens: int, width: int, loud: int) -> None:
    import cupy

    bits = inputs(tokens, width, min(loud, width // 4))
    given, x = cupy.asarray(bits), floats(bits)
    loud_channels(cupy.asarray(inputs(tokens, width, 64)))  # leaves nothing behind
    found, want = loud_channels(given), loudest(np.abs(x[:: -(-tokens // SAMPLE)]).max(axis=0))
    assert int(found.count[0]) == len(want)
    assert found.channels.get()[: len(want)].tolist() == want.tolist()
    for kind in ByteKind if native_path() == "sm_90a" else [ByteKind.INT8]:
        got, twin = round_inputs(given, kind, found), round_rows(x, kind, want, True)
        np.testing.assert_array_equal(numbers(got), twin.codes)
        np.testing.assert_array_equal(got.scales.get()[:tokens], twin.scales)
        assert not got.scales.get()[tokens:].any()
        if len(want):
            values = floats(got.loud.get())
            np.testing.assert_array_equal(values[:, : len(want)], twin.loud)
            assert not values[:, len(want) :].any()


def test_tokens_that_are_no_numbers_stay_by_themselves(kernel) -> None:
    import cupy

    module, kind = kernel
    bits = inputs(300, 512)
    bits[7, 100], bits[9, 300], bits[11, 5] = 0x7FC0, 0x7F80, 0xFF80
    given, w = cupy.asarray(bits), weight(Q4_K, 128, 512)
    out = cupy.zeros((300, 128), np.float32)
    loud = loud_channels(given)
    module.gemm(round_inputs(given, kind, loud), with_columns((w,), kind, loud), loud, (out,), STORE_F32)
    bad = ~np.isfinite(out.get()).all(axis=1)
    assert np.flatnonzero(bad).tolist() == [7, 9, 11]


@pytest.mark.parametrize("fmt", kernel_formats(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("slab", [byte_weights.SLAB, 1])
def test_weights_are_rounded_as_the_bf16_kernels_read_them(fmt: BlockFormat, slab: int, monkeypatch) -> None:
    """In slabs of one tile, too."""
    import cupy

    monkeypatch.setattr(byte_weights, "SLAB", slab)
    w = weight(fmt, 72, 768)
    loud = loud_channels(cupy.asarray(inputs(64, 768, 3)))
    which = loud.channels.get()[: int(loud.count[0])]
    got = with_columns((w, w), ByteKind.INT8, loud)
    twin = round_rows(floats(unpack_bf16(w).get()), ByteKind.INT8, which, False)
    for first in (0, 128):
        some = slice(first, first + 72)
        np.testing.assert_array_equal(numbers(got)[some], twin.codes)
        np.testing.assert_array_equal(got.scales.get()[some], twin.scales)
        np.testing.assert_array_equal(floats(got.loud.get())[some, :3], twin.loud)
        assert not got.loud.get()[some, 3:].any()


@pytest.mark.parametrize("epilogue", [STORE, STORE_F32, ADD, SWIGLU], ids=lambda e: e.name)
@pytest.mark.parametrize("loud", [0, 5])
@pytest.mark.parametrize(
    ("tokens", "rows", "width"),
    [(1, 8, 256), (127, 72, 768), (256, 128, 512), (257, 1000, 1024), (1500, 520, 5120), (3000, 4104, 256)],
)
def test_products_are_those_of_the_same_bytes(
    kernel, epilogue: Epilogue, loud: int, tokens: int, rows: int, width: int, monkeypatch
) -> None:
    import cupy

    module, kind = kernel
    given = cupy.asarray(inputs(tokens, width, loud))
    weights = tuple(weight(Q4_K if i else Q6_K, rows, width, i) for i in range(2 if epilogue is SWIGLU else 1))
    found = loud_channels(given)
    x, w = round_inputs(given, kind, found), with_columns(weights, kind, found)
    sizes = x.scales.get()[:tokens, None].astype(np.float64) * w.scales.get().astype(np.float64)
    y = (numbers(x) @ numbers(w).T) * sizes
    if int(found.count[0]):  # in few tokens some channel is loud by chance
        y += floats(x.loud.get()).astype(np.float64) @ floats(w.loud.get()).astype(np.float64).T
    padded = -(-rows // 64) * 64
    want = y[:, :rows]
    if epilogue is SWIGLU:
        want = want / (1 + np.exp(-want)) * y[:, padded : padded + rows]
    wide = epilogue in (STORE_F32, ADD)
    poison, held = (np.nan, np.float32) if wide else (0x7FC0, np.uint16)
    guarded = cupy.full((tokens + 2, rows), poison, held)
    out = guarded[1:-1]
    if epilogue is ADD:
        want = want + 3
    for shape in SHAPES if module is gemm_bytes_sm90 else (None,):
        monkeypatch.setattr(gemm_bytes_sm90, "SHAPES", (shape,))
        gemm_bytes_sm90.plan_of.cache_clear()
        out[...] = 3 if epilogue is ADD else poison
        module.gemm(x, w, found, (out,), epilogue)
        bound = SUMS[kind] if wide else GATED if epilogue is SWIGLU else max(ROUNDED, SUMS[kind])
        assert nmse(to_float64(out), want) <= bound
    edges = guarded.get()[[0, -1]]
    assert np.isnan(edges).all() if wide else (edges == 0x7FC0).all()
    gemm_bytes_sm90.plan_of.cache_clear()


@pytest.mark.parametrize("path", ["sm_90a", "portable"])
def test_a_layers_products_take_it_and_are_near_those_in_bf16(path: str) -> None:
    import cupy

    if path == "sm_90a" and native_path() != path:
        pytest.skip("needs compute capability 9.0")
    rng = np.random.default_rng(5)
    x = cupy.asarray(rng.standard_normal((1100, 1280)).astype(np.float32))
    norm = (cupy.ones(1280, np.float32), 1e-6)
    gate, up = weight(Q4_K, 1024, 1280), weight(Q4_K, 1024, 1280, 1)
    down, narrow = weight(Q6_K, 1280, 1024, 2), weight(BF16, 40, 1280, 3)

    def layer(precision: Math) -> list[np.ndarray]:
        g, u, d, q = (replace(w, math=precision) for w in (gate, up, down, gate))
        with forced_path(path):
            ys = project(x, (q, narrow), norm, f32=(False, True))
            h = gated_project(x, g, u, norm, d)
            z = project_add(cupy.zeros_like(x), h, d)
        return [to_float64(ys[0]), ys[1].get().astype(np.float64), z.get().astype(np.float64)]

    exact, rounded = layer(Math.BF16), layer(Math.INT8)
    np.testing.assert_array_equal(exact[1], rounded[1])  # not marked, so as ever
    for got, want in ((rounded[0], exact[0]), (rounded[2], exact[2])):
        assert 1e-9 < nmse(got, want) < 6e-4


def test_bad_shapes_are_told() -> None:
    import cupy

    found = loud_channels(cupy.zeros((3, 256), np.uint16))
    for width in (128, 65536):
        x = cupy.zeros((3, width), np.uint16)
        for wrong in (loud_channels, partial(round_inputs, kind=ByteKind.INT8, loud=found)):
            with pytest.raises(DeviceError, match="multiple of 256, up to 32768"):
                wrong(x)
