"""Windows, sinks, softcap and scale of scores on the device against float64: prefill, few queries, trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare import nmse
from paged import MIXED, PLAIN, PagedCase, names

cp = pytest.importorskip("cupy")

from sp.errors import ConfigError  # noqa: E402
from sp.kernels import forced_path  # noqa: E402
from sp.ops import kv_gather  # noqa: E402
from sp.ops.attention import attention_split  # noqa: E402
from sp.ops.attention.attention import attention, attention_output, paged_attention, prefill_attention  # noqa: E402
from sp.ops.attention.masked_attention import masked_attention  # noqa: E402
from sp.ops.attention.score_rule import ScoreRule, window_reach  # noqa: E402
from sp.ops.attention.tree_attention import seen_words, tree_attention, visible  # noqa: E402
from sp.ops.sparse.block_sparse import block_sparse  # noqa: E402
from sp.ops.sparse.flashprefill import FlashPrefill  # noqa: E402
from sp.ops.sparse.sparse_attention import sparse_attention  # noqa: E402
from sp.quant import F16, Q4_0, Q8_0  # noqa: E402

BOUND = 4e-6  # half of it is the rounding of the result to bf16
SINKS = np.array([-3.0, 0.5, 4.0, 12.0, -40.0, 1.0, 0.0, 2.0], np.float32)
RULES = {
    "scaled": {"scale": 0.03},
    "capped": {"softcap": 2.5},
    "sinks": {"sinks": SINKS},
    "window": {"window": 70},
    "wide": {"window": 513},
    "sinks and window": {"sinks": SINKS, "window": 128},
    "capped and window": {"softcap": 5.0, "window": 200},
}
SHAPES = [(8, 2, 64), (8, 1, 128), (4, 1, 256)]
WIDE = [(8, 1, 512)]  # by runs of queries, on every path


@pytest.fixture(autouse=True)
def _guarded_outputs(guarded, monkeypatch):
    """What the op allocates starts as NaN between guard bands."""
    monkeypatch.setattr(cp, "empty", lambda shape, dtype=float: guarded(shape, dtype))


def gapped(tokens: int) -> np.ndarray:
    """Positions as a compressed prompt has them."""
    rng = np.random.default_rng(tokens)
    return np.cumsum(np.where(rng.random(tokens) < 0.1, rng.integers(2, 90, tokens), 1))


def rules(name: str, heads: int, positions: np.ndarray, n: int) -> tuple[ScoreRule, ScoreRule]:
    """A rule on the host and on the device, windows by position."""
    given = dict(RULES[name])
    if "sinks" in given:
        given["sinks"] = given["sinks"][:heads]
    host = ScoreRule(**given)
    device = replace(host, sinks=None if host.sinks is None else cp.asarray(host.sinks))
    if host.window is None:
        return host, device
    last, places, total = positions[len(positions) - n :], positions.copy(), cp.full(1, len(positions), np.int32)
    host = replace(host, reach=window_reach(last, places, len(positions), host.window))
    places[len(positions) - n :] = -1
    on_device = cp.asarray(places)
    reach = window_reach(cp.asarray(last), on_device, total, host.window)
    np.testing.assert_array_equal(reach.get(), host.reach)
    np.testing.assert_array_equal(on_device.get(), positions)
    return host, replace(device, reach=reach)


@pytest.mark.parametrize("fmt", [F16, Q4_0, (Q8_0, Q4_0)], ids=names)
@pytest.mark.parametrize(("heads", "kv_heads", "d"), SHAPES + WIDE)
@pytest.mark.parametrize(
    ("n", "prefix"), [(1, 0), (1, 777), (5, 300), (33, 1000), (64, 64), (65, 1), (129, 500), (900, 0)]
)
@pytest.mark.parametrize("name", RULES)
def test_against_float64(name, fmt, heads, kv_heads, d, n, prefix, path):
    rng = np.random.default_rng(n + prefix)
    case = PagedCase.make(rng, prefix + n, kv_heads, d, fmt)
    q = rng.standard_normal((n, heads, d)).astype(np.float16)
    k, v = case.stored()
    host, device = rules(name, heads, gapped(prefix + n), n)
    want = attention(q.astype(np.float64), k, v, host)
    if host.reach is not None and fmt is F16:  # pages that no window reaches are not looked at
        for page in (case.k_pages, case.v_pages):
            page[case.table[: int(host.reach[0]) // 128]] = 0xFF
    with forced_path(path):
        got = paged_attention(cp.asarray(q), case.device(), device)
        again = paged_attention(cp.asarray(q), case.device(), device)
        counted = case.device(cp.full(1, case.tokens, np.int32))
        graph = paged_attention(cp.asarray(q), counted, device)
    assert nmse(got, want) < (1 if fmt is F16 else 2) * BOUND
    np.testing.assert_array_equal(got.get(), again.get())
    np.testing.assert_array_equal(got.get(), graph.get())


@pytest.mark.parametrize("name", ["window", "wide", "sinks and window", "capped and window"])
@pytest.mark.parametrize(("heads", "kv_heads", "d"), SHAPES + WIDE)
def test_trees_of_branches(name, heads, kv_heads, d):
    rng, n, start = np.random.default_rng(5), 23, 700
    parents = [-1, *(int(rng.integers(0, i)) for i in range(1, n))]
    depth, mask = np.zeros(n, np.int64), np.eye(n, dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            depth[node], mask[node] = depth[parent] + 1, mask[node] | mask[parent]
    context = gapped(start)
    positions, places = context[-1] + 1 + depth, np.concatenate([context, np.zeros(n, np.int64)])
    case = PagedCase.make(rng, start + n, kv_heads, d, F16)
    q = rng.standard_normal((n, heads, d)).astype(np.float16)
    k, v = (kv_gather(one, case.table, case.tokens, F16).astype(np.float64) for one in (case.k_pages, case.v_pages))
    given = dict(RULES[name])
    if "sinks" in given:
        given["sinks"] = given["sinks"][:heads]
    host, on_device = ScoreRule(**given), cp.asarray(places)
    total = cp.full(1, start + n, np.int32)
    reach = window_reach(positions, places, start + n, host.window, tree=True)
    found = window_reach(cp.asarray(positions), on_device, total, host.window, tree=True)
    np.testing.assert_array_equal(found.get(), reach)
    np.testing.assert_array_equal(on_device.get(), places)
    seen = seen_words(mask)
    want = masked_attention(q.astype(np.float64), k, v, visible(seen, start + n, reach), host)
    sinks = None if host.sinks is None else cp.asarray(host.sinks)
    rule = replace(host, reach=found, sinks=sinks)
    got = tree_attention(cp.asarray(q), case.device(), seen=cp.asarray(seen), rule=rule)
    assert nmse(got, want.reshape(n, -1)) < BOUND


@pytest.mark.parametrize(("fmt", "rotate"), [(F16, True), *PLAIN, *MIXED], ids=names)
@pytest.mark.parametrize(("n", "prefix"), [(1, 777), (16, 300), (64, 9000), (200, 50)])
def test_wide_heads_with_what_follows(fmt, rotate, n, prefix):
    """Queries turned as keys are cached, outputs turned back, by blocks for GPUs with much and with little room."""
    rng = np.random.default_rng(n)
    case = PagedCase.make(rng, prefix + n, 2, 512, fmt, rotate)
    q = rng.standard_normal((n, 8, 512)).astype(np.float16)
    k, v = case.stored()
    want = case.finished(attention(case.queries(q), k, v, ScoreRule(scale=0.05)), None).reshape(n, -1)
    at, rule = case.device(), ScoreRule(scale=0.05)
    for roomy in (None, False):
        with pytest.MonkeyPatch.context() as patch:
            if roomy is not None:
                patch.setattr(attention_split, "is_roomy", lambda device: False)
            assert nmse(attention_output(cp.asarray(q), at, None, rule), want) < 2 * BOUND


@pytest.mark.parametrize("name", ["capped", "sinks"])
@pytest.mark.parametrize(("heads", "kv_heads", "d"), SHAPES)
def test_lists_of_blocks(name, heads, kv_heads, d, path):
    rng, n = np.random.default_rng(9), 1000
    case = PagedCase.make(rng, n, kv_heads, d, F16)
    q = rng.standard_normal((n, heads, d)).astype(np.float16)
    host, device = rules(name, heads, np.arange(n), n)
    k, v = (kv_gather(one, case.table, n, F16) for one in (case.k_pages, case.v_pages))
    with forced_path(path):
        lists = FlashPrefill(alpha=0.3).select(cp.asarray(q), case.device(), d**-0.5)
        got = prefill_attention(cp.asarray(q), case.device(), d**-0.5, lists, rule=device)
    held = replace(lists, counts=lists.counts.get(), indices=lists.indices.get())
    want = block_sparse(*(one.astype(np.float64) for one in (q, k, v)), held, d**-0.5, None, host)
    assert nmse(got, want) < BOUND


def test_lists_of_blocks_are_not_for_wide_heads(path):
    case = PagedCase.make(np.random.default_rng(1), 300, 1, 512, F16)
    q = cp.zeros((300, 8, 512), np.float16)
    with forced_path(path), pytest.raises(ConfigError, match="sparse attention: heads of 512 values"):
        sparse_attention(q, case.device(), 1.0, FlashPrefill(alpha=0.3), ScoreRule(scale=1.0))


def test_the_reach_of_many_tokens():
    """More tokens than a block has threads, behind some that are stored, and a window that hides nothing."""
    positions = gapped(70_000)
    for n, window in ((50_000, 2048), (1, 5), (70_000, 1 << 40)):
        last, host = positions[len(positions) - n :], positions.copy()
        want = window_reach(last, host, len(positions), window)
        got = window_reach(cp.asarray(last), cp.asarray(host), len(positions), window)
        np.testing.assert_array_equal(got.get(), want)
