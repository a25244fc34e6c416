"""Tokens in the space of a trained head, and what parts of a text have of what is asked, on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare import nmse, to_float64
from paged import PagedCase, names

cp = pytest.importorskip("cupy")

from sp.ops.attention.attention_heads import unrotate  # noqa: E402
from sp.ops.attention.kv_pages import PagedKV  # noqa: E402
from sp.ops.attention.space import Units, padded_rank, space_rows, space_scores, space_worth  # noqa: E402
from sp.ops.rope import Rope, YarnScaling  # noqa: E402
from sp.quant import F16, Q4_0, Q8_0  # noqa: E402
from sp.quant.cached import K5, V4  # noqa: E402

BOUND = 2e-7
"""Keys are rounded to f16 once they are turned back: by 2^-12 of themselves at most, 4e-8 of the squares."""
PACKED = 1e-5  # what packed rows stand for is rounded to f16 too, before and after their rotation
YARN = Rope(1e4, 64, scaling=YarnScaling(4.0, 2048), magnitude=1.1386)
HEADS = [
    (64, 3, Rope(1e5, 64)),
    (64, 3, YARN),
    (64, 2, Rope(1e4, 24, "interleaved")),
    (64, 1, Rope(1e4, 0)),
    (128, 8, Rope(1e6, 128)),
    (128, 2, Rope(1e4, 128, "interleaved")),
    (256, 1, Rope(1e7, 64)),
    (512, 1, Rope(1e4, 512)),
]
"""Head size, KV heads and how they are turned."""


@pytest.fixture(autouse=True)
def _guarded_outputs(guarded, monkeypatch):
    """What an op allocates starts as NaN between guard bands."""
    monkeypatch.setattr(cp, "empty", lambda shape, dtype=float: guarded(shape, dtype))


def head_weights(rng: np.random.Generator, deep: int, rank: int) -> np.ndarray:
    """Of float16, some rows much larger than others, and zeros beyond the rank."""
    drawn = rng.standard_normal((deep, padded_rank(rank))) / deep**0.5
    drawn[rng.integers(0, deep, 4)] *= 20
    drawn[:, rank:] = 0
    return drawn.astype(np.float16)


def rows_of(case: PagedCase) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values as they were stored, in float64."""
    how: dict[str, Any] = {"value_fmt": case.value_fmt, "basis": case.basis}
    k, v = PagedKV(case.k_pages, case.v_pages, case.table, case.tokens, case.fmt, case.rotated, **how).model_rows()
    return k.astype(np.float64), v.astype(np.float64)


def check(seed: int, tokens: int, d: int, kv_heads: int, rotary: Rope, rank: int, fmt: Any, rotated: bool) -> float:
    """Squared error of two layers, the second added to the first."""
    rng, got, want = np.random.default_rng(seed), None, np.zeros((tokens, padded_rank(rank)))
    positions = np.sort(rng.integers(0, 200_000, tokens))
    for _ in range(2):
        case = PagedCase.make(rng, tokens, kv_heads, d, fmt, rotated)
        if fmt is F16:  # a token and a value much larger than others
            slot = case.table[tokens // 2 // 128], tokens // 2 % 128
            case.k_pages[slot] = F16.encode(30 * F16.decode(case.k_pages[slot]))
            loud = F16.decode(case.v_pages[case.table[0], 0])
            loud[..., 3] = 500
            case.v_pages[case.table[0], 0] = F16.encode(loud)
        weights = head_weights(rng, 2 * kv_heads * d, rank)
        got = space_rows(case.device(), cp.asarray(positions), rotary, cp.asarray(weights), got)
        k, v = rows_of(case)
        both = np.concatenate([unrotate(k, positions, rotary), v], axis=1).reshape(tokens, -1)
        want += both @ weights.astype(np.float64)
    assert not to_float64(got)[:, rank:].any()
    return nmse(got, want)


@pytest.mark.parametrize("tokens", [1, 16, 17, 127, 129, 1000, 5003])
@pytest.mark.parametrize(("d", "kv_heads", "rotary"), HEADS, ids=str)
def test_rows(d, kv_heads, rotary, tokens, path):
    error = check(tokens + d, tokens, d, kv_heads, rotary, 96, F16, False)
    print(f"{path}, heads of {d}, {tokens} tokens: {error:.1e}")
    assert error < BOUND


@pytest.mark.parametrize("rank", [1, 7, 16, 33, 64, 128, 130, 300])
def test_any_rank(rank):
    assert check(rank, 517, 64, 3, Rope(1e5, 64), rank, F16, False) < BOUND


FORMATS = [(Q4_0, False), (Q8_0, True), ((K5, V4), True), ((F16, Q4_0), True), (F16, True)]


@pytest.mark.parametrize(("fmt", "rotated"), FORMATS, ids=names)
@pytest.mark.parametrize(("d", "kv_heads"), [(64, 3), (128, 2)])
def test_rows_of_packed_pages(d, kv_heads, fmt, rotated):
    error = check(d, 1003, d, kv_heads, Rope(1e5, d), 96, fmt, rotated)
    print(f"{names(fmt)}, heads of {d}: {error:.1e}")
    assert error < PACKED


def test_only_the_first_tokens_are_taken():
    """A cache may hold more than is asked for; pages behind are full of NaN."""
    rng, tokens = np.random.default_rng(0), 300
    case, positions = PagedCase.make(rng, tokens, 3, 64, F16), np.arange(tokens)
    weights, rotary = cp.asarray(head_weights(rng, 384, 96)), Rope(1e5, 64)
    whole = space_rows(case.device(), cp.asarray(positions), rotary, weights).get()
    case.tokens = 133
    part = space_rows(case.device(), cp.asarray(positions)[:133], rotary, weights).get()
    np.testing.assert_array_equal(part, whole[:133])


def test_the_same_bits_at_any_place_in_memory():
    rng = np.random.default_rng(3)
    case, positions = PagedCase.make(rng, 9001, 3, 64, F16), cp.arange(9001)
    weights, rotary = cp.asarray(head_weights(rng, 384, 96)), Rope(1e5, 64)
    first = space_rows(case.device(), positions, rotary, weights).get()
    case.table = case.table[::-1].copy()
    for pages in (case.k_pages, case.v_pages):
        pages[case.table] = pages[case.table[::-1]]
    np.testing.assert_array_equal(space_rows(case.device(), positions, rotary, weights).get(), first)


@pytest.mark.parametrize("tokens", [1, 7, 8, 63, 65, 1000, 5003])
@pytest.mark.parametrize(("rows", "rank"), [(1, 16), (22, 96), (64, 96), (70, 256)])
def test_worth(tokens, rows, rank):
    """Of tokens of very different lengths, one of them and one that asks all zeros; rows behind the text are NaN."""
    rng = np.random.default_rng(tokens + rows)
    document = np.exp(2 * rng.standard_normal((tokens + 3, 1))) * rng.standard_normal((tokens + 3, rank))
    document[tokens:], document[tokens // 2] = np.nan, 0
    asking = rng.standard_normal((rows, rank + 1)) * 3
    asking[-1, :rank] = 0 if rows > 1 else 1
    cuts = rng.integers(0, tokens, tokens // 5 + 1)
    bounds = np.unique(np.concatenate([[0], np.sort(cuts), np.arange(0, tokens, 64), [tokens]]))
    document, asking = document.astype(np.float32), asking.astype(np.float32)
    got = space_worth(cp.asarray(document), cp.asarray(asking), Units.of(bounds, cp.zeros(1)))
    want = space_worth(document.astype(np.float64), asking.astype(np.float64), Units.of(bounds, document))
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == np.float32
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine.get(), theirs, atol=2e-6)


@pytest.mark.parametrize("tokens", [1, 2, 13, 1023, 1025, 5003, 300_001])
@pytest.mark.parametrize("pool", [1, 13])
def test_scores(tokens, pool):
    """Parts far from zero and close together, as cosines are and attention is; the same bits every time."""
    rng = np.random.default_rng(tokens)
    bounds = np.unique(np.concatenate([[0], rng.integers(0, tokens, tokens // 20 + 1), [tokens]]))
    worth = (0.7 + 0.01 * rng.standard_normal(len(bounds) - 1)).astype(np.float32)
    windows = (0.9 + 0.01 * rng.standard_normal(-(-tokens // 8) + 7)).astype(np.float32)
    looked = (1e-5 * rng.random(tokens) ** 9).astype(np.float32)
    weights = (1.0, 1.0, 0.25)
    places, *parts = Units.of(bounds, cp.zeros(1)), *map(cp.asarray, (worth, windows, looked))
    got = space_scores(places, *parts, pool, weights)
    want = space_scores(Units.of(bounds, worth), worth, windows, looked, pool, weights)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.get(), want, atol=2e-5)
    np.testing.assert_array_equal(space_scores(places, *parts, pool, weights).get(), got.get())


def test_what_is_the_same_for_all_tokens_counts_nothing():
    units = Units.of(np.array([0, 60, 100]), cp.zeros(1))
    parts = [cp.full(size, value, np.float32) for size, value in ((2, 0.1), (20, 0.3), (100, 1e-5))]
    assert not space_scores(units, *parts, 1, (1.0, 1.0, 1.0)).get().any()
