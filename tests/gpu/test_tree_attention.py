"""Attention under masks against float64: trees, chains, stars, blocks, windows; graphs, reruns; moves of tokens."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from captured import capture
from compare import nmse, to_bf16, to_float64
from paged import MIXED, PLAIN, PagedCase, names

cp = pytest.importorskip("cupy")

from sp.kernels import current_path  # noqa: E402
from sp.models.cache.device_tables import DeviceTables  # noqa: E402
from sp.models.run.tree import ancestry  # noqa: E402
from sp.ops.attention.attention import attention_output  # noqa: E402
from sp.ops.attention.kv_pages import kv_commit  # noqa: E402
from sp.ops.attention.masked_attention import masked_attention  # noqa: E402
from sp.ops.attention.score_rule import ScoreRule  # noqa: E402
from sp.ops.attention.tree_attention import seen_words, tree_attention, visible  # noqa: E402
from sp.ops.input_tiles import InputTiles  # noqa: E402
from sp.quant import F16, Q4_0, Q4_K, Math  # noqa: E402
from sp.quant.cached import K5, V4  # noqa: E402

BOUND = 4e-6  # half of it is the rounding of the result to bf16
TARGET, DRAFT, PAIR = (24, 4, 256), (32, 8, 128), (12, 2, 128)  # query heads, KV heads, head size
captures = pytest.mark.no_sanitizer  # there every launch is waited for
MASKS = ("tree", "chain", "star", "block", "any")


@pytest.fixture(autouse=True)
def _guarded_outputs(guarded, monkeypatch):
    """What the op allocates starts as NaN between guard bands."""
    monkeypatch.setattr(cp, "empty", lambda shape, dtype=float: guarded(shape, dtype))


def seen_of(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    """Words of a mask of the last n tokens among themselves."""
    if kind == "tree":
        return ancestry(np.array([-1, *(rng.integers(0, i) for i in range(1, n))]))
    if kind == "star":
        return ancestry(np.array([-1, *(0,) * (n - 1)]))
    if kind == "any":
        return seen_words((rng.random((n, n)) < 0.3) | np.eye(n, dtype=bool))
    return seen_words(np.ones((n, n), bool) if kind == "block" else np.tri(n, dtype=bool))


def want(case: PagedCase, q: np.ndarray, seen: np.ndarray, window: int | None, wide: np.ndarray | None) -> np.ndarray:
    """Float64 over the stored values, rotated back and gated: (n, heads * d)."""
    q = case.queries(q)
    reach = None if window is None else ScoreRule(window=window).first_seen(len(q), case.tokens, q)
    out = masked_attention(q, *case.stored(), visible(seen, case.tokens, reach))
    out = case.finished(out, None if wide is None else to_float64(wide))
    return out.reshape(len(q), -1)


def check(case, heads, d, n, seen, window=None, gated=False, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((n, heads, d)).astype(np.float16)
    wide = to_bf16(rng.standard_normal((n, heads, 2 * d))) if gated else None
    given = cp.asarray(q), case.device()
    masked = {
        "seen": cp.asarray(seen),
        "rule": ScoreRule(window=window),
        "wide": None if wide is None else cp.asarray(wide),
    }
    got = tree_attention(*given, **masked)
    assert got.dtype == np.uint16
    assert got.shape == (n, heads * d)
    assert nmse(got, want(case, q, seen, window, wide)) < (2 * BOUND if gated else BOUND)
    np.testing.assert_array_equal(got.get(), tree_attention(*given, **masked).get())
    return given, got


SIZES = [
    *((n, start) for n in (1, 16, 23, 64) for start in (0, 1, 128, 2048)),
    *((2, 100), (15, 127), (17, 8191), (33, 100), (33, 8191), (64, 127), (16, 113), (17, 47)),
]


@pytest.mark.parametrize(
    ("fmt", "rotate", "shape"),
    [(F16, False, TARGET), (Q4_0, True, TARGET), ((K5, V4), True, TARGET), (F16, False, PAIR)],
    ids=names,
)
@pytest.mark.parametrize(("n", "start"), SIZES)
def test_trees_against_float64(fmt, rotate, shape, n, start):
    heads, kv_heads, d = shape
    kind = "any" if (n + start) % 2 else "tree"
    rng = np.random.default_rng(n + start)
    case = PagedCase.make(rng, start + n, kv_heads, d, fmt, rotate)
    check(case, heads, d, n, seen_of(rng, kind, n), gated=shape is TARGET)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("fmt", "rotate"), [*PLAIN[1:], *MIXED, (F16, True)], ids=names)
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(12, 2, 128), (2, 1, 64), (14, 2, 64), (5, 5, 256)])
def test_other_formats_and_shapes(fmt, rotate, heads, kv_heads, d, kind):
    rng = np.random.default_rng(d)
    case = PagedCase.make(rng, 700, kv_heads, d, fmt, rotate)
    check(case, heads, d, 21, seen_of(rng, kind, 21), gated=kind == "tree")


@pytest.mark.parametrize("window", [1, 5, 64, 100, 2048, 10**6])
@pytest.mark.parametrize(("n", "start"), [(16, 0), (16, 3), (16, 2041), (16, 5000), (64, 301)])
def test_windows_hide_what_is_further_back(window, n, start):
    heads, kv_heads, d = DRAFT
    kind = "block" if start % 2 else "chain"
    rng = np.random.default_rng(window + start)
    case = PagedCase.make(rng, start + n, kv_heads, d, F16)
    for page in (case.k_pages, case.v_pages):  # a page that the window does not reach is not looked at
        page[case.table[: max(0, start - window + 1) // 128]] = 0xFF
    reached = max(0, start - window + 1) // 128
    q = rng.standard_normal((n, heads, d)).astype(np.float16)
    seen = seen_of(rng, kind, n)
    got = tree_attention(cp.asarray(q), case.device(), seen=cp.asarray(seen), rule=ScoreRule(window=window))
    case.table, case.tokens = case.table[reached:], case.tokens - reached * 128
    assert nmse(got, want(case, q, seen, window, None)) < BOUND


def test_a_long_context():
    rng = np.random.default_rng(7)
    case = PagedCase.make(rng, 70_016, 4, 256, Q4_0, True)
    check(case, 24, 256, 16, seen_of(rng, "tree", 16))


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [TARGET, DRAFT])
@pytest.mark.parametrize("n", [9, 16, 23, 32, 33, 48, 64])
def test_tiles_for_the_next_product(heads, kv_heads, d, n):
    if current_path() != "sm_90a":
        pytest.skip("only the Hopper products take tiles")
    rng = np.random.default_rng(n)
    case = PagedCase.make(rng, 300 + n, kv_heads, d, Q4_0, True)
    q, seen = rng.standard_normal((n, heads, d)).astype(np.float16), seen_of(rng, "tree", n)
    wide = to_bf16(rng.standard_normal((n, heads, 2 * d)))
    given = cp.asarray(q), case.device()
    size = 5120 * Q4_K.row_bytes(heads * d)
    reader = SimpleNamespace(format=Q4_K, shape=(5120, heads * d), nbytes=size, math=Math.BF16)
    got = tree_attention(*given, seen=cp.asarray(seen), wide=cp.asarray(wide), reader=reader)
    assert isinstance(got, InputTiles)
    values = got.values()
    error = values - want(case, q, seen, None, wide)
    assert (error**2).mean() < BOUND * (values**2).mean()
    np.testing.assert_allclose(
        got.means(), values.reshape(n, -1, 16).mean(axis=2), rtol=0, atol=1e-5 * abs(values).max()
    )


@pytest.mark.parametrize(("fmt", "rotate"), [(F16, False), (Q4_0, True)])
@pytest.mark.parametrize("n", [3, 16, 64])
def test_a_chain_is_causal_attention(fmt, rotate, n):
    rng = np.random.default_rng(n)
    case = PagedCase.make(rng, 1500 + n, 4, 256, fmt, rotate)
    given, got = check(case, 24, 256, n, seen_words(np.tri(n, dtype=bool)))
    causal = attention_output(*given)
    if n * 6 > 16:  # the same kernel
        np.testing.assert_array_equal(got.get(), causal.get())
    assert nmse(got, to_float64(causal)) < BOUND


@captures
def test_one_graph_serves_every_mask_and_length():
    rng = np.random.default_rng(0)
    n, start = 16, 2500
    case = PagedCase.make(rng, start + n, 4, 256, Q4_0, True)
    q = rng.standard_normal((n, 24, 256)).astype(np.float16)
    device_q, total, seen = cp.asarray(q), cp.zeros(1, np.int32), cp.zeros(n, np.uint64)
    at = case.device(total)

    def run():
        return tree_attention(device_q, at, seen=seen)

    total.fill(start + n)
    seen.fill(1)
    run()
    graph = capture(run)
    for tokens, kind in (
        (start + n, "tree"),
        (n, "any"),
        (129, "star"),
        (2065, "chain"),
        (1999, "tree"),
        (80, "block"),
    ):
        words = seen_of(rng, kind, n)
        total.fill(tokens)
        seen.set(words)
        graph.replay()
        case.tokens = tokens
        assert nmse(graph.made, want(case, q, words, None, None)) < BOUND


@captures
@pytest.mark.parametrize(("fmt", "rotate"), [(F16, False), (Q4_0, True)])
def test_counts_that_move_in_the_graph_itself(fmt, rotate):
    """Early launches meet the count as it was before."""
    rng = np.random.default_rng(1)
    n, most, later = 16, 2700, 100
    case = PagedCase.make(rng, most, 4, 256, fmt, rotate)
    q, words = rng.standard_normal((n, 24, 256)).astype(np.float16), seen_of(rng, "tree", n)
    device_q, seen, tables = cp.asarray(q), cp.asarray(words), DeviceTables(1, len(case.table))
    at = case.device(tables.counts[0, 1:])

    def run():
        found = []
        for more in (n, later):
            tables.advance(more)
            found.append(tree_attention(device_q, at, seen=seen))
        return found

    run()
    graph = capture(run)
    for start in (0, 1, 90, 2031, 2100, most - n - later):
        tables.counts.fill(start)
        graph.replay()
        for out, tokens in zip(graph.made, (start + n, start + n + later), strict=True):
            case.tokens = tokens
            assert nmse(out, want(case, q, words, None, None)) < BOUND


@pytest.mark.parametrize(
    ("fmt", "kv_heads", "d"), [(F16, 4, 256), (Q4_0, 4, 256), (F16, 8, 128), ((K5, V4), 1, 64), (F16, 1, 512)]
)
@pytest.mark.parametrize("graph", [False, pytest.param(True, marks=captures)])
def test_moves_are_those_of_the_twin(fmt, kv_heads, d, graph):
    rng = np.random.default_rng(d)
    formats = fmt if isinstance(fmt, tuple) else (fmt, fmt)
    pools = [rng.integers(0, 256, (12, 128, kv_heads, one.row_bytes(d)), np.uint8) for one in formats]
    tables = rng.permutation(12).reshape(3, 4)
    path, kept, total = cp.zeros(64, np.int32), cp.zeros(1, np.int32), cp.zeros(1, np.int32)
    device, on_device = [cp.asarray(pool) for pool in pools], cp.asarray(tables.astype(np.int32))

    def move():
        kv_commit(*device, on_device, total, 64, path, kept)

    run = move
    if graph:
        total.fill(64)
        move()
        run = capture(move).replay
    for length, count in ((130, 1), (400, 9), (64, 64), (150, 17), (500, 0), (300, 33), (448, 5)):
        nodes = np.sort(rng.permutation(64)[: max(count, 1)])
        nodes -= nodes[0] * (count % 2)
        path[: len(nodes)].set(nodes.astype(np.int32))
        kept.fill(count)
        total.fill(length)
        run()
        kv_commit(*pools, tables, length, 64, nodes, count)
        for mine, twin in zip(device, pools, strict=True):
            np.testing.assert_array_equal(mine.get(), twin)
