"""Windows, sinks, softcap and scale of scores, in all that attends on the host, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops import kv_append
from sp.ops.attention.attention import attention, attention_output
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.score_rule import ScoreRule, window_reach
from sp.ops.attention.tree_attention import seen_words, tree_attention
from sp.ops.sparse.block_sparse import block_sparse
from sp.quant import F32

HEADS, KV_HEADS, D = 4, 2, 64
SINKS = np.array([-3.0, 0.5, 4.0, 30.0], np.float32)
RULES = {
    "plain": ScoreRule(),
    "scaled": ScoreRule(scale=0.03),
    "capped": ScoreRule(softcap=1.5),
    "sinks": ScoreRule(sinks=SINKS),
    "window": ScoreRule(window=70),
    "all": ScoreRule(scale=0.2, softcap=5.0, sinks=SINKS, window=33),
}


def formula(q, k, v, rule: ScoreRule, seen: np.ndarray) -> np.ndarray:
    """Compute the attention output of each query: float64 (n, heads, d)."""
    q, k, v = (one.astype(np.float64) for one in (q, k, v))
    out = np.zeros(q.shape)
    for i, h in np.ndindex(q.shape[:2]):
        keys = np.flatnonzero(seen[i])
        score = k[keys, h * KV_HEADS // HEADS] @ q[i, h] * (D**-0.5 if rule.scale is None else rule.scale)
        if rule.softcap is not None:
            score = rule.softcap * np.tanh(score / rule.softcap)
        weight = np.exp(score)
        total = weight.sum() + (0 if rule.sinks is None else np.exp(float(rule.sinks[h])))
        out[i, h] = weight @ v[keys, h * KV_HEADS // HEADS] / total
    return out


def made(n: int, tokens: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    shapes = (n, HEADS, D), (tokens, KV_HEADS, D), (tokens, KV_HEADS, D)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    k[tokens // 3] *= 8  # an outlier, which takes all the weight where it is seen
    return q, k, v


def gapped(tokens: int, seed: int = 1) -> np.ndarray:
    """Positions as a compressed prompt has them."""
    rng = np.random.default_rng(seed)
    return np.cumsum(np.where(rng.random(tokens) < 0.1, rng.integers(2, 90, tokens), 1))


def within(positions: np.ndarray, n: int, window: int | None) -> np.ndarray:
    """Return the mask of keys that the last n tokens see: bool (n, tokens)."""
    back = positions[len(positions) - n :, None] - positions
    return (back >= 0) & (back < (1 << 60 if window is None else window))


def ruled(rule: ScoreRule, positions: np.ndarray, n: int) -> ScoreRule:
    """The rule with what its window reaches by position."""
    if rule.window is None:
        return rule
    places = positions.copy()
    places[len(positions) - n :] = -1
    reach = window_reach(positions[len(positions) - n :], places, len(positions), rule.window)
    np.testing.assert_array_equal(places, positions)
    return ScoreRule(rule.scale, rule.softcap, rule.sinks, rule.window, reach)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("n", "tokens"), [(1, 1), (1, 300), (40, 40), (64, 700), (1100, 1300)])
@pytest.mark.parametrize("by", ["token", "position"])
def test_attention_is_the_formula(name: str, n: int, tokens: int, by: str) -> None:
    q, k, v = made(n, tokens)
    positions = np.arange(tokens) if by == "token" else gapped(tokens)
    rule = RULES[name] if by == "token" else ruled(RULES[name], positions, n)
    want = formula(q, k, v, rule, within(positions, n, rule.window))
    np.testing.assert_allclose(attention(q, k, v, rule), want, rtol=2e-5, atol=2e-6)
    table = np.random.default_rng(2).permutation(tokens // 16 + 2)
    pages = [np.full((len(table), 16, KV_HEADS, F32.row_bytes(D)), 0xFF, np.uint8) for _ in range(2)]
    for page, values in zip(pages, (k, v), strict=True):
        kv_append(page, table, 0, values, F32)
    at = PagedKV(*pages, table, tokens, F32)
    actual = attention_output(q, at, None, rule).reshape(q.shape)
    np.testing.assert_allclose(actual, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", RULES)
def test_a_tree_of_branches_sees_by_position(name: str) -> None:
    """Siblings have one position: none pushes a key out of the other's window."""
    start, parents = 90, [-1, 0, 0, 1, 1, 2, 5]
    depth, mask = np.zeros(7, np.int64), np.eye(7, dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            depth[node], mask[node] = depth[parent] + 1, mask[node] | mask[parent]
    context = gapped(start)
    positions = context[-1] + 1 + depth
    q, k, v = made(7, start + 7)
    pages = [np.zeros((13, 8, KV_HEADS, F32.row_bytes(D)), np.uint8) for _ in range(2)]
    for page, values in zip(pages, (k, v), strict=True):
        kv_append(page, np.arange(13), 0, values, F32)
    rule, places = RULES[name], np.concatenate([context, np.zeros(7, np.int64)])
    if rule.window is not None:
        reach = window_reach(positions, places, start + 7, rule.window, tree=True)
        rule = ScoreRule(rule.scale, rule.softcap, rule.sinks, rule.window, reach)
        assert places[start:].tolist() == [context[-1] + 1 + i for i in range(7)]  # what is kept of it is a chain
    seen = np.zeros((7, start + 7), bool)
    window = 1 << 60 if rule.window is None else rule.window
    seen[:, :start] = positions[:, None] - context < window
    seen[:, start:] = mask
    actual = tree_attention(q, PagedKV(*pages, np.arange(13), start + 7, F32), seen=seen_words(mask), rule=rule)
    np.testing.assert_allclose(actual.reshape(q.shape), formula(q, k, v, rule, seen), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["capped", "sinks"])
def test_lists_of_blocks_take_cap_and_sinks(name: str) -> None:
    q, k, v = made(300, 500)
    rule, lists = RULES[name], BlockLists(np.full((HEADS, 3), 2, np.int32), np.zeros((HEADS, 3, 2), np.int32))
    for block in range(3):
        lists.indices[:, block] = [0, block + 1]
    seen = within(np.arange(500), 300, None)
    for block in range(3):
        rows = slice(128 * block, 128 * block + 128)
        seen[rows] &= np.isin(np.arange(500) // 128, [0, block + 1])
    actual = block_sparse(q, k, v, lists, D**-0.5, None, rule)
    np.testing.assert_allclose(actual, formula(q, k, v, rule, seen), rtol=2e-5, atol=2e-6)


def test_nothing_is_the_same_without_it() -> None:
    """Each part of the rule changes what comes out."""
    q, k, v = made(64, 700)
    plain = attention(q, k, v)
    for name in ("scaled", "capped", "sinks", "window"):
        assert np.abs(attention(q, k, v, RULES[name]) - plain).max() > 0.01, name
