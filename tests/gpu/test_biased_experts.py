"""Experts with biases and clamped gates on the device, sorted by expert and slot by slot, against float64.

Rows of experts that are no whole blocks of 256, and such as are; a router with a bias, against NumPy.
"""

from __future__ import annotations

import cupy
import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from file_rows import file_rows

from sp.ops.experts import few
from sp.ops.experts.expert_mlp import add_experts
from sp.ops.experts.routing import Routing, route
from sp.ops.experts.stack import Stack
from sp.ops.matmul.packed import pack
from sp.quant import MXFP4, Q4_0, Q4_K, Q5_1, Q8_0, BlockFormat

COUNT, USED = 8, 4
CASES = [
    (MXFP4, 320, 192),
    (MXFP4, 2880, 2880),
    (MXFP4, 128, 512),
    (Q8_0, 320, 192),
    (Q5_1, 448, 64),
    (Q4_0, 704, 320),
    (Q4_K, 256, 512),
]


def stack(fmt: BlockFormat, rows: int, width: int, seed: int, biased: bool) -> tuple[Stack, np.ndarray, np.ndarray]:
    """Random matrices (count, rows, width) on the device, their exact values, and those of biases, none being zeros."""
    rng = np.random.default_rng([seed, rows, width])
    values = (3 * rng.standard_normal((COUNT * rows, width)) / np.sqrt(width)).astype(np.float32)
    data = file_rows(fmt, values)
    weight = pack(f"{fmt.name} {rows}x{width}", fmt, (COUNT * rows, width), cupy.asarray(data))
    bias = rng.standard_normal((COUNT, rows)).astype(np.float32)
    there = Stack(weight, rows, 0, rows, cupy.asarray(bias) if biased else None)
    exact = fmt.decode(data).astype(np.float64).reshape(COUNT, rows, width)
    return there, exact, bias.astype(np.float64) if biased else np.zeros_like(bias, np.float64)


def feed_forward(
    wide: np.ndarray, routing: Routing, parts: list[tuple[Stack, np.ndarray, np.ndarray]], clamped: bool
) -> np.ndarray:
    """What experts add to tokens, in float64."""
    (_, g, a), (_, u, b), (_, d, c) = parts
    out = np.zeros((len(wide), d.shape[1]))
    for t, token in enumerate(wide):
        for e, weight in zip(routing.experts[t], routing.weights[t].astype(np.float64), strict=True):
            left, right, slope = g[e] @ token + a[e], u[e] @ token + b[e], 1.0
            if clamped:
                left, right, slope = np.minimum(left, 7), np.clip(right, -7, 7) + 1, 1.702
            out[t] += weight * (d[e] @ (left / (1 + np.exp(-slope * left)) * right) + c[e])
    return out


@pytest.mark.parametrize(("fmt", "hidden", "ffn"), CASES, ids=lambda one: getattr(one, "name", str(one)))
@pytest.mark.parametrize("tokens", [1, 5, 90])
@pytest.mark.parametrize("each", [False, True], ids=["by expert", "by slot"])
@pytest.mark.parametrize(("biased", "clamped"), [(True, True), (True, False), (False, True)])
def test_a_feed_forward(fmt, hidden, ffn, tokens, each, biased, clamped, path, monkeypatch) -> None:
    if each and tokens > 5:
        pytest.skip("slot by slot is for few tokens")
    monkeypatch.setattr(few, "MOST_SLOTS", 10**6 if each else 0)
    sizes = ((ffn, hidden), (ffn, hidden), (hidden, ffn))
    parts = [stack(fmt, *size, seed, biased) for seed, size in enumerate(sizes, 1)]
    rng = np.random.default_rng([tokens, hidden])
    routing = route(rng.standard_normal((tokens, COUNT)).astype(np.float32), USED)
    x, h = rng.standard_normal((tokens, hidden)).astype(np.float32), to_bf16(rng.standard_normal((tokens, hidden)))
    there = Routing(cupy.asarray(routing.experts), cupy.asarray(routing.weights))
    gate, up, down = (part[0] for part in parts)
    assert few.takes(gate, up, down, there) == each
    got = add_experts(cupy.asarray(x), cupy.asarray(h), gate, up, down, there, clamped=clamped)
    want = feed_forward(to_float64(h), routing, parts, clamped)
    error = nmse(got.get() - x, want)
    print(f"{fmt.name} {hidden}x{ffn} {tokens} tokens: nmse {error:.1e}")
    assert error < (1e-5 if each else 1e-4)
    again = add_experts(cupy.asarray(x), cupy.asarray(h), gate, up, down, there, clamped=clamped)
    assert (again == got).all(), "results repeat to the bit"


@pytest.mark.parametrize("each", [False, True], ids=["by expert", "by slot"])
def test_biases_of_zero_change_no_bit(each, path, monkeypatch) -> None:
    """Slot by slot; sorted by expert what is gated is rounded twice."""
    monkeypatch.setattr(few, "MOST_SLOTS", 10**6 if each else 0)
    rng = np.random.default_rng(9)
    parts = [stack(Q8_0, *size, seed, False)[0] for seed, size in enumerate(((256, 512), (256, 512), (512, 256)), 1)]
    routing = route(cupy.asarray(rng.standard_normal((6, COUNT)).astype(np.float32)), USED)
    x = cupy.asarray(rng.standard_normal((6, 512)).astype(np.float32))
    h = cupy.asarray(to_bf16(rng.standard_normal((6, 512))))
    none = [Stack(one.weight, one.pitch, 0, one.rows, cupy.zeros((COUNT, one.rows), np.float32)) for one in parts]
    plain = add_experts(x.copy(), h, *parts, routing)
    got = add_experts(x.copy(), h, *none, routing)
    assert (got == plain).all() if each else nmse(got, plain) < 5e-5


@pytest.mark.parametrize(("count", "used"), [(8, 2), (32, 4), (128, 4), (300, 8)])
@pytest.mark.parametrize("tokens", [1, 5, 700])
def test_a_router_with_a_bias(count, used, tokens) -> None:
    rng = np.random.default_rng(count)
    logits, bias = (rng.standard_normal(size).astype(np.float32) for size in ((tokens, count), count))
    want = route(logits, used, bias=bias)
    got = route(cupy.asarray(logits), used, bias=cupy.asarray(bias))
    same = got.experts.get() == want.experts
    assert same.mean() > 0.999  # but for those that are equal in float32 on one side alone
    np.testing.assert_allclose(np.sort(got.weights.get()), np.sort(want.weights), rtol=1e-5)
