"""Products of inputs and streams with outliers, the loud part and the quiet part each against its own size.

An error over everything says nothing of the quiet part: the outliers are nearly all of the sum. On both paths and with
as many tokens as make every kernel's turn come.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np
import pytest
from bounds import within
from compare import by_column, mirrored, nmse, planted, to_bf16, to_float64
from file_rows import NEW, file_rows

from sp.kernels.specs.matmul.epilogue import ADD, STORE, Epilogue
from sp.kernels.specs.matmul.gemv import whole
from sp.ops.matmul.dispatch import choose
from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.matmul.project import gated_project, project, project_add
from sp.quant import format_by_name

FORMATS = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "BF16", "F16", *(fmt.name for fmt in NEW)]
TOKENS = [1, 2, 8, 16, 23, 33, 64, 129, 300]
K, EPS = 1280, 1e-6


@cache
def weight(name: str, shape: tuple[int, int], seed: int = 0) -> tuple[PackedWeight, np.ndarray]:
    """A weight whose distinct rows, up to 192, repeat: it is quantised on the host; and all its values."""
    fmt, distinct = format_by_name(name), min(shape[0], 192)
    some = np.random.default_rng([seed, *shape]).standard_normal((distinct, shape[1])).astype(np.float32) * 0.05
    packed = np.resize(file_rows(fmt, some), (shape[0], fmt.row_bytes(shape[1])))
    dense = np.resize(fmt.decode(packed[:distinct]), shape).astype(np.float64)
    return pack(name, fmt, shape, cupy.asarray(packed)), dense


def rounds_weights(w: PackedWeight, tokens: int, epilogue: Epilogue) -> bool:
    """Whether the kernel that takes a product multiplies by weights in bf16, as those of prefill do."""
    return choose(tokens, (w,), False, epilogue).prefill


def kind_of(w: PackedWeight, tokens: int) -> str:
    """The table's entry for the quiet part."""
    name = w.format.name
    if name == "F16":
        return "quiet inputs, F16 weights"
    if rounds_weights(w, tokens, STORE):
        return "quiet inputs, prefill"
    one = "quiet inputs, one token" + (", in integers" if whole(w.packing, K) else "")
    return one if tokens == 1 else "quiet inputs, few tokens"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_inputs(name: str, tokens: int, guarded: Any, path: str) -> None:
    (w, dense), (x, loud) = weight(name, (200, K)), planted(tokens, K, 50)
    ways = [to_bf16(one) for one in (x, mirrored(x, loud))]
    got = [to_float64(project(guarded(x.shape, np.uint16, one), [w], f32=[True])[0]) for one in ways]
    want = [to_float64(one) @ dense.T for one in ways]
    within(kind_of(w, tokens), nmse(got[0] - got[1], want[0] - want[1]))
    within("loud inputs", nmse(got[0] + got[1], want[0] + want[1]))


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "BF16", "Q3_K", "IQ4_XS", "Q4_1", "MXFP4"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_normed_inputs(name: str, tokens: int, guarded: Any, path: str) -> None:
    (w, dense), (x, loud) = weight(name, (200, K)), planted(tokens, K, 50)
    scale = np.random.default_rng(3).uniform(0.5, 1.5, K).astype(np.float32)
    norm = guarded(scale.shape, np.float32, scale), EPS
    ways = x, mirrored(x, loud)
    got = [to_float64(project(guarded(x.shape, np.float32, one), [w], norm, f32=[True])[0]) for one in ways]
    rms = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + EPS)
    want = [one.astype(np.float64) / rms * scale @ dense.T for one in ways]
    within("quiet inputs, normed", nmse(got[0] - got[1], want[0] - want[1]))
    within("loud inputs, normed", nmse(got[0] + got[1], want[0] + want[1]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_a_stream_that_is_added_to(name: str, tokens: int, guarded: Any, path: str) -> None:
    (w, dense), (x, loud) = weight(name, (512, K)), planted(tokens, 512, 3000, 3)
    h = to_bf16(np.random.default_rng(tokens).standard_normal((tokens, K)))
    stream = guarded(x.shape, np.float32, x)
    project_add(stream, guarded(h.shape, np.uint16, h), w)
    quiet, loudly = by_column(stream, x + to_float64(h) @ dense.T, loud)
    rounded = name == "F16" or rounds_weights(w, tokens, ADD)
    within("quiet columns of x + h W" + (", rounded weights" if rounded else ""), quiet)
    within("loud columns of x + h W", loudly)


@pytest.mark.parametrize(
    "names",
    [("Q4_K", "Q6_K"), ("Q6_K", "Q4_K"), ("Q8_0", "Q8_0"), ("Q4_K", "Q8_0"), ("Q3_K", "IQ4_XS"), ("IQ3_S", "IQ4_NL")],
)
@pytest.mark.parametrize("tokens", TOKENS)
def test_a_feed_forward(names: tuple[str, str], tokens: int, guarded: Any, path: str) -> None:
    """The quiet columns of the stream get what the loud ones, normed, leave of the others."""
    (gate, g), (up, u) = weight(names[0], (512, 512), 1), weight(names[0], (512, 512), 2)
    (down, dense), (x, loud) = weight(names[1], (512, 512), 3), planted(tokens, 512, 100, 3)
    scale = np.random.default_rng(3).uniform(0.5, 1.5, 512).astype(np.float32)
    stream = guarded(x.shape, np.float32, x)
    h = gated_project(stream, gate, up, (guarded(scale.shape, np.float32, scale), EPS), down)
    project_add(stream, h, down)
    normed = x.astype(np.float64) / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + EPS) * scale
    a, b = normed @ g.T, normed @ u.T
    quiet, loudly = by_column(stream, x + (a / (1 + np.exp(-a)) * b) @ dense.T, loud)
    within("quiet columns after a feed-forward", quiet)
    within("loud columns after a feed-forward", loudly)
