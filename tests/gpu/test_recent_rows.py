"""A cache with exact rows of its newest tokens against float64: runs of all lengths, windows, trees, dropped tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from captured import capture
from compare import nmse

cp = pytest.importorskip("cupy")

from sp.models import ModelConfig  # noqa: E402
from sp.models.cache.cache import Cache  # noqa: E402
from sp.models.cache.transfer import copy_cache  # noqa: E402
from sp.ops.attention.attention import attention, attention_output, paged_attention  # noqa: E402
from sp.ops.attention.key_basis import KeyBasis  # noqa: E402
from sp.ops.attention.masked_attention import masked_attention  # noqa: E402
from sp.ops.attention.recent_rows import NEAR  # noqa: E402
from sp.ops.attention.score_rule import PLAIN, ScoreRule  # noqa: E402
from sp.ops.attention.tree_attention import tree_attention, visible  # noqa: E402
from sp.ops.hadamard import hadamard  # noqa: E402
from sp.ops.rope import Rope  # noqa: E402

BOUND = 2e-5  # the kernels round probabilities and results


def caches(d: int, kv_heads: int = 2) -> tuple[Cache, Cache]:
    """One on the CPU and one on the device, with the same bases of keys in their two layers."""
    config = ModelConfig(
        "qwen3", 8, 9, 4096, (8, 8), ("attention", "attention"), 3 * kv_heads, kv_heads, d, Rope(1e6, d), 1e-6
    )
    rng = np.random.default_rng(d)
    bases = {
        layer: KeyBasis.measured(rng.standard_normal((kv_heads, d)), *np.exp(rng.standard_normal((2, kv_heads, d)) / 2))
        for layer in range(2)
    }
    return Cache(config, 3000, "4bit", bases=bases), Cache(config, 3000, "4bit", bases=bases, device="cuda")


def read(pair: tuple[Cache, Cache], rng, n: int, layer: int = 0) -> np.ndarray:
    """Store the same n tokens in both; returns queries of theirs."""
    near = pair[0].config
    for cache in pair:
        cache.end_run()  # these tokens are a run by themselves
    k, v, q = (
        rng.standard_normal((n, h, near.head_dim)).astype(np.float16) for h in (near.kv_heads,) * 2 + (near.heads,)
    )
    pair[0].append(layer, k.astype(np.float32), v.astype(np.float32))
    pair[1].append(layer, cp.asarray(k), cp.asarray(v))
    same_codes(pair, layer)
    return 2 * q


def same_codes(pair: tuple[Cache, Cache], layer: int) -> None:
    """Give both the codes of the device. Few differ: of two scales that cost a group the same, each takes one."""
    host, device = (cache.stored(layer) for cache in pair)
    every, table = np.arange(max(0, host.tokens - NEAR)), device.table.get()
    for mine, theirs in ((host.k, device.k), (host.v, device.v)):
        codes = theirs.get()[table[every // theirs.shape[1]], every % theirs.shape[1]]
        place = host.table[every // mine.shape[1]], every % mine.shape[1]
        assert not len(every) or (mine[place] != codes).mean() < 2e-3
        mine[place] = codes


def wanted(cache: Cache, q: np.ndarray, rule: ScoreRule = PLAIN) -> np.ndarray:
    """Attention in float64 of the last ``len(q)`` tokens."""
    at = cache.stored(0)
    exact, packed = at.gather(), replace(at, recent=None).gather()
    if len(q) <= NEAR:  # fewer than the run, perhaps, of which the first are then packed
        for rows, unpacked in zip(exact, packed, strict=True):
            first = max(0, at.tokens - len(q) - NEAR)
            rows[:first] = unpacked[:first]
    asked = at.queries(q.astype(np.float32)).astype(np.float64)
    return attention(asked, *(rows.astype(np.float64) for rows in exact), rule)


@pytest.mark.parametrize("d", [64, 128, 256, 512])
def test_runs_of_all_lengths(d):
    pair, rng = caches(d), np.random.default_rng(d)
    for n in (1, 2, 61, 1, 5, 64, 1, 65, 1, 300, 3, 1, 128, 1, 1000, 16, 1):
        q = read(pair, rng, n)
        got = paged_attention(cp.asarray(q), pair[1].stored(0))
        assert nmse(got, wanted(pair[0], q)) < BOUND, f"{n} of {pair[0].length(0)}"
        few = q[-min(n, 3) :]
        finished = attention_output(cp.asarray(few), pair[1].stored(0))
        assert nmse(finished.reshape(few.shape), hadamard(wanted(pair[0], few), 64)) < BOUND


@pytest.mark.parametrize("window", [20, 100, 700])
@pytest.mark.parametrize("d", [64, 256, 512])
def test_windows(d, window):
    pair, rng, rule = caches(d), np.random.default_rng(window), ScoreRule(window=window)
    for n in (500, 1, 17, 90, 2):
        q = read(pair, rng, n)
        got = paged_attention(cp.asarray(q), pair[1].stored(0), rule)
        assert nmse(got, wanted(pair[0], q, rule)) < BOUND, n


@pytest.mark.parametrize("stored", [0, 20, 64, 129, 1000])
def test_trees_and_what_is_kept_of_them(stored):
    pair, rng, nodes, path = caches(128), np.random.default_rng(stored), 40, np.array([0, 3, 4, 20])
    for layer in (0, 1) if stored else ():
        read(pair, rng, stored, layer)
    read(pair, rng, nodes, 1)
    q = read(pair, rng, nodes)
    seen = rng.integers(0, 1 << 40, nodes).astype(np.uint64) | np.uint64(1) << np.arange(nodes, dtype=np.uint64)
    at = pair[0].stored(0)
    rows = (x.astype(np.float64) for x in at.gather())
    asked = at.queries(q.astype(np.float32)).astype(np.float64)
    want = masked_attention(asked, *rows, visible(seen, stored + nodes), ScoreRule())
    got = tree_attention(cp.asarray(q), pair[1].stored(0), seen=cp.asarray(seen))
    assert nmse(got.reshape(q.shape), hadamard(want, 64)) < BOUND
    pair[0].move(nodes, path, np.array([len(path)]))
    pair[1].move(nodes, cp.asarray(path.astype(np.int32)), cp.array([len(path)], np.int32))
    for cache in pair:
        cache.count(len(path) - nodes)
        cache.advance(len(path) - nodes)
    for n in (1, 30, 1):
        q = read(pair, rng, n)
        assert nmse(paged_attention(cp.asarray(q), pair[1].stored(0)), wanted(pair[0], q)) < BOUND


def test_one_graph_serves_every_length():
    pair, rng = caches(256), np.random.default_rng(1)
    read(pair, rng, 300)
    q = read(pair, rng, 1)
    asked, at = cp.asarray(q), pair[1].stored(0)
    attention_output(asked, at)
    graph = capture(lambda: attention_output(asked, at))
    for _ in range(130):
        q = read(pair, rng, 1)
        asked.set(q)
        graph.replay()
        assert nmse(graph.made.reshape(q.shape), hadamard(wanted(pair[0], q), 64)) < BOUND


def test_dropped_and_copied_tokens():
    pair, rng = caches(64), np.random.default_rng(2)
    for layer in (0, 1):
        read(pair, rng, 700, layer)
    for cache in pair:
        cache.crop(333)
    for layer in (1, 0):
        q = read(pair, rng, 2, layer)
    assert nmse(paged_attention(cp.asarray(q), pair[1].stored(0)), wanted(pair[0], q)) < BOUND
    options = {"bases": {layer: replace(pair[0].stored(layer).basis, first=None) for layer in (0, 1)}}
    other = Cache(pair[1].config, 1000, "4bit", device="cuda", **options)
    copy_cache(pair[1], other, 335)
    both = [paged_attention(cp.asarray(q), cache.stored(0)).get() for cache in (pair[1], other)]
    np.testing.assert_array_equal(*both)
