"""The work around a matmul kernel follows from its record: norms, groups, padding, formats of other kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sp.errors import DeviceError
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.ops.input_tiles import InputTiles
from sp.ops.matmul import registry
from sp.ops.matmul.packed import PackedWeight
from sp.ops.matmul.registry import Fusion, MatmulKernel, Product
from sp.ops.norms import Ready, rms_norm
from sp.quant import Q4_K, Q6_K, Q8_0, BlockFormat

X = np.arange(3 * 256, dtype=np.float32).reshape(3, 256)
NORM = np.full(256, 2.0, np.float32), 1e-6
TILES = InputTiles(3, 256, 8, None)
READY = Ready(NORM, TILES)
KINDS = (Q4_K.ggml_type, Q6_K.ggml_type)


def recorder(name: str = "mine", formats: tuple[int, ...] = KINDS, **fields: Any) -> tuple[MatmulKernel, list[Product]]:
    """A kernel that notes what it is given and fills outputs with the number of its call."""
    calls: list[Product] = []

    def run(product: Product) -> None:
        calls.append(product)
        for out in product.outs:
            out[...] = len(calls)

    return MatmulKernel(name, run, formats.__contains__, **fields), calls


def product(*formats: BlockFormat, rows: int = 64, **fields: Any) -> Product:
    weights = [PackedWeight(f"w{i}", fmt, (rows, 256), np.zeros(1, np.uint8)) for i, fmt in enumerate(formats)]
    return Product(X, weights, [np.zeros((3, rows), np.float32) for _ in formats], STORE, **fields)


def names(calls: list[Product]) -> list[list[str]]:
    return [[w.name for w in call.weights] for call in calls]


def test_a_norm_is_made_before_unless_it_is_fused() -> None:
    (plain, calls), (fused, kept) = recorder(), recorder(fusions=frozenset({Fusion.NORM}))
    for kernel in (plain, fused):
        kernel.launch(product(Q4_K, norm=NORM))
    np.testing.assert_array_equal(calls[0].x, rms_norm(X, *NORM))
    assert calls[0].norm is None
    assert kept[0].x is X
    assert kept[0].norm is NORM


def test_a_norm_that_was_started_is_used_as_tiles_or_recomputed() -> None:
    (plain, calls), (ready, kept) = recorder(), recorder(fusions=frozenset(Fusion))
    for kernel in (plain, ready):
        kernel.launch(product(Q4_K, norm=READY))
    np.testing.assert_array_equal(calls[0].x, rms_norm(X, *NORM))
    assert kept[0].x is TILES
    assert kept[0].norm is None


def test_tiles_are_refused_where_they_cannot_be_read() -> None:
    kernel, calls = recorder()
    tiles = product(Q4_K)
    with pytest.raises(DeviceError, match="mine takes no input tiles"):
        kernel.launch(Product(TILES, tiles.weights, tiles.outs, ADD))
    assert not calls


def test_weights_go_in_groups() -> None:
    one, ones = recorder()
    two, twos = recorder(max_weights=2)
    alike, split = recorder(max_weights=4, alike=lambda kind: kind)
    for kernel in (one, two, alike):
        kernel.launch(product(Q4_K, Q6_K, Q4_K))
    assert names(ones) == [["w0"], ["w1"], ["w2"]]
    assert names(twos) == [["w0", "w1"], ["w2"]]
    assert names(split) == [["w0", "w2"], ["w1"]]


def test_other_formats_go_to_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.kernels("portable")  # register themselves when they are first asked for, which must not be below
    other, others = recorder("other", (*KINDS, Q8_0.ggml_type), max_weights=4)
    prefill, rest = recorder("prefill", (*KINDS, Q8_0.ggml_type), prefill=True)
    monkeypatch.setattr(registry, "_kernels", {"prefill": prefill})
    monkeypatch.setattr(registry, "current_path", lambda: "portable")
    given = product(Q8_0, Q4_K, Q8_0, norm=READY)
    kernel, calls = recorder(otherwise=other, fusions=frozenset(Fusion))
    kernel.launch(given)
    assert (names(calls), names(others)) == ([["w1"]], [["w0", "w2"]])
    assert calls[0].x is TILES
    np.testing.assert_array_equal(others[0].x, rms_norm(X, *NORM))
    assert [out[0, 0] for out in given.outs] == [1, 1, 1]
    recorder()[0].launch(given)
    assert names(rest) == [["w0"], ["w2"]]
    nothing, _ = recorder("nothing", (), prefill=True)
    monkeypatch.setattr(registry, "_kernels", {"nothing": nothing})
    with pytest.raises(DeviceError, match="nothing does not take all the formats"):
        nothing.launch(given)


def test_outputs_are_padded_to_a_multiple_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "import_cupy", lambda: np)
    kernel, calls = recorder(multiple=8)
    given = product(Q4_K, rows=52)
    kernel.launch(given)
    assert calls[0].weights[0].shape == (56, 256)
    assert calls[0].outs[0].shape == (3, 56)
    assert given.outs[0].shape == (3, 52)
    assert (given.outs[0] == 1).all()
    kernel.launch(product(Q4_K, rows=56))
    assert calls[1].outs[0].shape == (3, 56)


def test_a_kernel_accepts_the_products_that_it_declares() -> None:
    def room(tokens: int, width: int, kinds: tuple[int, ...], norm: bool, epilogue: int) -> int:
        return 0 if width > 512 else 4

    kernel, _ = recorder(epilogues=(STORE, ADD), max_tokens=16, room=room, least_room=8)
    assert [kernel.takes(tokens, 256, KINDS, False, STORE) for tokens in (1, 4, 5, 17)] == [True, True, False, False]
    assert not kernel.takes(1, 1024, KINDS, False, STORE)
    assert not kernel.takes(1, 256, KINDS, False, SWIGLU)
