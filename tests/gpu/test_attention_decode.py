"""Attention split over the cache against float64: numbers of queries, prefixes, groups, formats; graphs and reruns."""

from __future__ import annotations

import numpy as np
import pytest
from captured import capture
from compare import nmse, to_bf16, to_float64
from paged import MIXED, PLAIN, SHAPES, PagedCase, names

cp = pytest.importorskip("cupy")

from sp.ops.attention.attention import attention_output, paged_attention  # noqa: E402
from sp.ops.attention.attention_split import split  # noqa: E402
from sp.ops.attention.kv_pages import PagedKV  # noqa: E402
from sp.quant import F16, Q4_0  # noqa: E402

BOUND = 4e-6  # half of it is the rounding of the result to bf16


@pytest.fixture(autouse=True)
def _guarded_outputs(guarded, monkeypatch):
    """What the op allocates starts as NaN between guard bands."""
    monkeypatch.setattr(cp, "empty", lambda shape, dtype=float: guarded(shape, dtype))


def queries(rng, n, heads, d):
    return rng.standard_normal((n, heads, d)).astype(np.float16)


@pytest.mark.parametrize(("fmt", "rotate"), PLAIN + MIXED, ids=names)
@pytest.mark.parametrize(("heads", "kv_heads", "d"), SHAPES)
@pytest.mark.parametrize(
    ("n", "prefix"), [(1, 0), (1, 1), (1, 127), (1, 2500), (2, 129), (31, 0), (32, 7), (33, 1000), (64, 513)]
)
def test_against_float64(fmt, rotate, d, heads, kv_heads, n, prefix):
    rng = np.random.default_rng(n + prefix)
    case = PagedCase.make(rng, prefix + n, kv_heads, d, fmt, rotate)
    q = queries(rng, n, heads, d)
    want = case.want(q)
    got = paged_attention(cp.asarray(q), case.device())
    assert got.dtype == np.uint16
    assert nmse(got, want) < BOUND
    again = paged_attention(cp.asarray(q), case.device())
    np.testing.assert_array_equal(got.get(), again.get())


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("fmt", "rotate"), [*PLAIN, *MIXED, (F16, True)], ids=names)
@pytest.mark.parametrize(("n", "prefix"), [(1, 4000), (3, 30), (17, 640), (65, 100), (2, 3000)])
def test_finished_outputs(gated, fmt, rotate, n, prefix):
    rng = np.random.default_rng(n)
    case = PagedCase.make(rng, prefix + n, 4, 256, fmt, rotate)
    q, wide = queries(rng, n, 24, 256), to_bf16(rng.standard_normal((n, 24, 512)))
    got = attention_output(cp.asarray(q), case.device(), cp.asarray(wide) if gated else None)
    want = case.want_finished(q, to_float64(wide) if gated else None)
    assert nmse(got.reshape(n, 24, 256), want) < 2 * BOUND


@pytest.mark.parametrize("n", [1, 9])
def test_one_graph_serves_every_length(n):
    rng = np.random.default_rng(0)
    case = PagedCase.make(rng, 2000, 2, 128, Q4_0)
    q = queries(rng, n, 12, 128)
    device_q, total = cp.asarray(q), cp.array([2000], np.int32)
    at = case.device(total)

    def run():
        return split(device_q, at)

    run()
    graph = capture(run)
    for tokens in (2000, n, 513, 129, 1999):
        total.fill(tokens)
        graph.replay()
        case.tokens = tokens
        assert nmse(graph.made, case.want(q)) < BOUND


def test_a_loud_early_token_leaves_the_quiet_rest_its_weight():
    """A score 20.4 powers of two below the first token's still counts: its probability is no f16 subnormal."""
    d, tokens = 128, 40_000
    keys, values = np.zeros((tokens, 1, d), np.float16), np.zeros((tokens, 1, d), np.float16)
    keys[0, 0, 0], values[1:, 0, 1] = 1, 1
    q = np.zeros((1, 1, d), np.float16)
    q[0, 0, 0] = 20.4 * np.log(2) * np.sqrt(d)
    pages = [np.zeros((-(-tokens // 128), 128, 1, d), np.float16) for _ in range(2)]
    for page, rows in zip(pages, (keys, values), strict=True):
        page.reshape(-1, 1, d)[:tokens] = rows
    device = [cp.asarray(page.view(np.uint8)) for page in pages]
    at = PagedKV(device[0], device[1], cp.arange(len(pages[0]), dtype=np.int32), tokens, F16)
    got = split(cp.asarray(q), at)
    weight = np.exp2(np.float64(q[0, 0, 0]) / np.sqrt(d) / np.log(2))
    want = (tokens - 1) / (tokens - 1 + weight)
    assert abs(to_float64(got)[0, 0, 1] / want - 1) < 3e-3
