"""Hopper prefill attention against softmax in float64, on pages full of NaN wherever no token is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from paged import PagedCase

from sp.errors import DeviceError
from sp.kernels.path import native_path
from sp.ops.attention.attention_sm90 import prefill
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PagedKV
from sp.quant import F16

try:
    HOPPER = native_path() == "sm_90a"
except DeviceError:
    HOPPER = False
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0")

BOUND = 6e-6  # NMSE: rounding the output to bf16 alone gives about 2.8e-6
PREFIXES = (0, 1, 127, 128, 129, 1000)
BLOCK = 128


def rounded(x: np.ndarray) -> np.ndarray:
    """Float32 values rounded to bf16."""
    return (to_bf16(x).astype(np.uint32) << 16).view(np.float32)


def visible(n: int, tokens: int, listed: list[list[int]] | None) -> np.ndarray:
    """Boolean (n, tokens): causal, and in the listed blocks of the row's query block."""
    seen = np.arange(tokens) <= np.arange(tokens - n, tokens)[:, None]
    if listed is not None:
        chosen = np.zeros((len(listed), -(-tokens // BLOCK)), bool)
        for i, some in enumerate(listed):
            chosen[i, some] = True
        seen &= chosen[np.arange(n)[:, None] // BLOCK, np.arange(tokens) // BLOCK]
    return seen


@dataclass
class Case:
    """Float16 inputs and what softmax in float64, and in bf16 at every step, makes of them."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    def reference(self, listed: list[list[list[int]]] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Out (n, heads, d) and lse (heads, n) in float64; `listed[head][query block]` names blocks."""
        n, heads, d = self.q.shape
        group = heads // self.k.shape[1]
        out, lse = np.empty((n, heads, d)), np.empty((heads, n))
        q, k, v = (a.astype(np.float64) for a in (self.q, self.k, self.v))
        for h in range(heads):
            score = q[:, h] @ k[:, h // group].T * d**-0.5
            score[~visible(n, len(k), listed and listed[h])] = -np.inf
            top = score.max(1, keepdims=True)
            top[np.isinf(top)] = 0
            weight = np.exp(score - top)
            total = weight.sum(1, keepdims=True)
            with np.errstate(divide="ignore"):
                lse[h] = (np.log(total) + top)[:, 0]
            out[:, h] = weight @ v[:, h // group] / np.where(total, total, 1)
        return out, lse

    def in_bf16(self) -> np.ndarray:
        """The dense attention of a framework that rounds every intermediate to bf16."""
        n, heads, d = self.q.shape
        group = heads // self.k.shape[1]
        q, k, v = (rounded(a.astype(np.float32)) for a in (self.q, self.k, self.v))
        out = np.empty((n, heads, d), np.float32)
        hidden = ~visible(n, len(k), None)
        for h in range(heads):
            score = rounded(rounded(q[:, h] @ k[:, h // group].T) * np.float32(d**-0.5))
            score[hidden] = -np.inf
            weight = np.exp(score - score.max(1, keepdims=True))
            out[:, h] = rounded(rounded(weight / weight.sum(1, keepdims=True)) @ v[:, h // group])
        return out


def random_case(n: int, tokens: int, group: int, d: int, kv_heads: int = 2, kind: str = "random") -> Case:
    """Inputs of one kind.

    `peaked` rows look at few keys, `sink` rows at the first one, `cliff` rows at a key e^100 above the rest; scores are
    `rising` or `falling` along the sequence.
    """
    rng = np.random.default_rng([n, tokens, group, d, len(kind)])
    q = rng.standard_normal((n, kv_heads * group, d))
    k, v = rng.standard_normal((2, tokens, kv_heads, d))
    direction = rng.standard_normal(d)
    direction /= np.linalg.norm(direction)
    if kind == "peaked":
        q *= 8
    elif kind == "sink":
        q += 20 * direction
        k[0] += 12 * direction
        v[0] *= 0.01
    elif kind == "cliff":
        q += 30 * direction
        k[70] += 60 * direction
    elif kind in ("rising", "falling"):
        slope = np.linspace(-60, 60, tokens)
        q += 20 * direction
        k += (slope if kind == "rising" else -slope)[:, None, None] * direction
    return Case(q.astype(np.float16), k.astype(np.float16), v.astype(np.float16))


def run(guarded, case: Case, listed: list[list[list[int]]] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Scatter K and V over a NaN pool, run, and bring back out and lse."""
    import cupy

    n, heads, d = case.q.shape
    tokens, kv_heads, _ = case.k.shape
    pages = -(-tokens // BLOCK)
    table = np.random.default_rng(tokens).permutation(pages + 3)[:pages].astype(np.int32)
    pools = []
    for values in (case.k, case.v):
        pool = np.full((pages + 3, BLOCK, kv_heads, d), np.nan, np.float16)
        padded = np.full((pages * BLOCK, kv_heads, d), np.nan, np.float16)
        padded[:tokens] = values
        pool[table] = padded.reshape(pages, BLOCK, kv_heads, d)
        pools.append(guarded(pool.shape, np.float16, pool))
    blocks = None
    if listed is not None:
        width = max((len(some) for rows in listed for some in rows), default=0) + 2
        counts = np.array([[len(some) for some in rows] for rows in listed], np.int32)
        indices = np.full((heads, counts.shape[1], width), 1 << 30, np.int32)
        for h, rows in enumerate(listed):
            for i, some in enumerate(rows):
                indices[h, i, : len(some)] = some
        blocks = BlockLists(cupy.asarray(counts), cupy.asarray(indices))
    out, lse = guarded((n, heads, d), np.uint16), guarded((heads, n), np.float32)
    q = guarded(case.q.shape, np.float16, case.q)
    at = PagedKV(pools[0], pools[1], cupy.asarray(table), tokens, F16)
    prefill(q, at, d**-0.5, blocks, out=out, lse=lse)
    return to_float64(out), lse.get()


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 127, 128, 129, 255, 1000])
def test_dense(guarded, d, group, n):
    for prefix in PREFIXES:
        case = random_case(n, n + prefix, group, d, kv_heads=1 if group == 6 else 2)
        out, lse = run(guarded, case)
        want, want_lse = case.reference()
        assert nmse(out, want) < BOUND, f"prefix {prefix}"
        np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-4, err_msg=f"prefix {prefix}")
        if prefix in (0, 129):
            low = np.abs(case.in_bf16() - want).max()
            assert np.abs(out - want).max() <= 2 * low, f"prefix {prefix}: {np.abs(out - want).max()}, bf16 {low}"


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("kind", ["peaked", "sink", "cliff", "rising", "falling"])
def test_extreme_scores(guarded, d, kind):
    for n, tokens in ((300, 300), (200, 1111), (1000, 1500)):
        case = random_case(n, tokens, 2, d, kind=kind)
        out, lse = run(guarded, case)
        want, want_lse = case.reference()
        assert nmse(out, want) < BOUND, f"{n} of {tokens}"
        np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("d", [64, 128, 256])
def test_long_prefix(guarded, d):
    case = random_case(257, 20_001, 2, d, kv_heads=1)
    out, _ = run(guarded, case)
    assert nmse(out, case.reference()[0]) < BOUND


def random_lists(heads: int, n: int, tokens: int, seed: int) -> list[list[list[int]]]:
    """Lists of every sort: empty, one block, the diagonal alone, without the diagonal, all."""
    rng = np.random.default_rng(seed)
    lists = []
    for _ in range(heads):
        rows = []
        for start in range(0, n, BLOCK):
            end = (tokens - n + min(start + BLOCK, n) - 1) // BLOCK + 1
            kind = rng.integers(6)
            some = np.flatnonzero(rng.random(end) < 0.4)
            few = [[], [int(rng.integers(end))], [end - 1], range(end)]
            rows.append([int(b) for b in few[kind]] if kind < 4 else [int(b) for b in some])
        lists.append(rows)
    return lists


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize(("n", "tokens"), [(1, 1), (100, 1000), (513, 513), (1000, 1000), (640, 2945), (130, 5000)])
def test_lists(guarded, d, n, tokens):
    case = random_case(n, tokens, 2, d)
    for seed in range(3):
        listed = random_lists(4, n, tokens, seed)
        out, lse = run(guarded, case, listed)
        want, want_lse = case.reference(listed)
        assert nmse(out, want) < BOUND or not want.any()
        empty = np.isinf(want_lse)
        assert (lse[empty] == -np.inf).all()
        assert not out.transpose(1, 0, 2)[empty].any()
        np.testing.assert_allclose(lse[~empty], want_lse[~empty], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("d", [64, 128, 256])
def test_all_blocks_listed_equals_dense(guarded, d):
    for n, tokens in ((1000, 1000), (300, 1429)):
        case = random_case(n, tokens, 2, d)
        ends = [(tokens - n + min(start + BLOCK, n) - 1) // BLOCK + 1 for start in range(0, n, BLOCK)]
        dense, listed = run(guarded, case), run(guarded, case, [[list(range(end)) for end in ends]] * 4)
        assert np.array_equal(dense[0], listed[0])
        assert np.array_equal(dense[1], listed[1])


@pytest.mark.parametrize("d", [64, 128, 256])
def test_runs_are_equal_bit_for_bit(guarded, d):
    case = random_case(1000, 3000, 6, d, kind="peaked")
    first = run(guarded, case)
    for _ in range(4):
        assert all(np.array_equal(a, b) for a, b in zip(first, run(guarded, case), strict=True))


def test_no_queries():
    import cupy

    pages, table = cupy.zeros((1, BLOCK, 1, 256), np.uint8), cupy.zeros(1, np.int32)
    out = prefill(cupy.empty((0, 1, 128), np.float16), PagedKV(pages, pages, table, 0, F16), 1.0)
    assert out.shape == (0, 1, 128)


@pytest.mark.parametrize("d", [64, 128, 256])
def test_tokens_are_counted_where_a_graph_can_read_them(d) -> None:
    import cupy

    rng = np.random.default_rng(d)
    case = PagedCase.make(rng, 300, 2, d, F16)
    q = cupy.asarray(rng.standard_normal((100, 4, d)).astype(np.float16))
    want = prefill(q, case.device(), d**-0.5)
    at = replace(case.device(cupy.full(1, 300, np.int32)), tokens=384)  # what the host counts is not looked at
    np.testing.assert_array_equal(prefill(q, at, d**-0.5).get(), want.get())
