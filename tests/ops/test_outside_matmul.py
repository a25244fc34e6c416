"""A matmul kernel from outside the package, that of docs/extending/kernel.md: registered, chosen, listed, run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from outside_matmul import PAGE, outside_kernel

from sp.errors import ConfigError
from sp.kernels.path import PATHS
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU
from sp.ops.matmul import dispatch
from sp.ops.matmul.dispatch import ROWS, SHAPES, kernel_for, rows
from sp.ops.matmul.packed import pack
from sp.ops.matmul.registry import MatmulKernel, Product, kernels, register_matmul
from sp.quant import FORMATS, Q5_K, BlockFormat, Math, Weight

RNG = np.random.default_rng(0)


@pytest.fixture
def kernel() -> Iterator[MatmulKernel]:
    with outside_kernel() as found:
        yield found


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def weight(fmt: BlockFormat, rows: int) -> tuple[object, np.ndarray]:
    w = Weight.from_floats("w", RNG.standard_normal((rows, 512)).astype(np.float32), fmt)
    return pack("w", fmt, w.shape, w.data), w.dense().astype(np.float64)


def test_it_multiplies(kernel: MatmulKernel) -> None:
    x, parts = bf16(RNG.standard_normal((5, 512))), [weight(Q5_K, 40), weight(Q5_K, 24)]
    outs = [np.empty((5, 40), np.uint16), np.empty((5, 24), np.float32)]
    kernel.launch(Product(x, [w for w, _ in parts], outs, STORE))
    want = [wide(x) @ dense.T for _, dense in parts]
    np.testing.assert_allclose(wide(outs[0]), want[0], rtol=2**-8, atol=1e-4)
    np.testing.assert_allclose(outs[1], want[1], rtol=1e-4, atol=1e-4)
    stream = RNG.standard_normal((5, 40)).astype(np.float32)
    before = stream.copy()
    kernel.launch(Product(x, [parts[0][0]], [stream], ADD))
    np.testing.assert_allclose(stream, before + want[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_dispatch_uses_it_on_request_and_nothing_else_changes(path: str) -> None:
    cases = [
        (tokens, kind, shape, epilogue)
        for tokens in (*range(1, 70), 128, 129, 4096)
        for kind in (each for each in FORMATS if each in kernels(path)[0].formats)
        for shape in SHAPES.values()
        for epilogue in (STORE, ADD, SWIGLU)
    ]

    def chosen() -> list[str]:
        return [kernel_for(tokens, kind, *shape, path, epilogue).name for tokens, kind, shape, epilogue in cases]

    before = chosen()
    with outside_kernel():
        for case, name, was in zip(cases, chosen(), before, strict=True):
            mine = case[0] <= 32 and case[1] == Q5_K.ggml_type and case[3] is not SWIGLU
            assert name == ("unpacked" if mine else was), case
    assert chosen() == before


def test_choose_counts_what_it_cannot_do(kernel: MatmulKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "current_path", lambda: "portable")
    w = SimpleNamespace(format=Q5_K, shape=(5120, 5120), nbytes=1, math=Math.BF16)
    assert dispatch.choose(32, (w,), True, STORE) is kernel
    assert not kernel.takes(33, 5120, (Q5_K.ggml_type,), False, STORE)
    assert not kernel.takes(1, 5120, (Q5_K.ggml_type,), False, SWIGLU)


@pytest.mark.parametrize("path", PATHS)
def test_the_list_shows_it(kernel: MatmulKernel, path: str) -> None:
    mine = [row for row in rows(path) if row["kernel"] == "unpacked"]
    assert [(row["format"], row["rows"], row["us"]) for row in mine] == [("Q5_K", "1..32", None)] * len(SHAPES)
    assert mine[0]["others"]
    assert 32 in ROWS


def test_a_name_is_taken_once(kernel: MatmulKernel) -> None:
    with pytest.raises(ConfigError, match="matmul kernel unpacked is there already"):
        register_matmul(kernel)
    with pytest.raises(ConfigError, match="matmul kernel any: gemm_portable takes products of any size there"):
        register_matmul(MatmulKernel("any", kernel.run, paths=("portable",), prefill=True))


def test_the_page_names_fields_that_exist() -> None:
    import re
    from dataclasses import fields

    table = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for row in table for name in re.findall(r"\w+", row)}
    assert named <= {field.name for field in fields(MatmulKernel)}
    assert len(named) >= 11
