"""Compiled loops over heads against float64: norms and RoPE, pages, attention, and the powers that it takes."""

from __future__ import annotations

import numpy as np
import pytest

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.ops.activations import geglu, swiglu
from sp.ops.attention.attention import attention, paged_attention
from sp.ops.attention.attention_heads import HeadNorms, attention_heads, head_norm_rope
from sp.ops.attention.few_heads import FEW, few_attended, in_vectors
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.norms import rms_norm
from sp.ops.rope import Rope
from sp.quant import F16, F32, Q4_0, Q8_0, BlockFormat

PAGE = 8


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def paged(k: Floats, v: Floats, fmt: BlockFormat, value_fmt: BlockFormat | None = None) -> PagedKV:
    """All tokens of k and v in pages of 8, which lie in no order."""
    tokens, heads, d = k.shape
    blocks = -(-tokens // PAGE)
    pages = [np.full((blocks + 2, PAGE, heads, f.row_bytes(d)), 0xFF, np.uint8) for f in (fmt, value_fmt or fmt)]
    table = np.random.default_rng(9).permutation(blocks + 2)[:blocks]
    at = PagedKV(*pages, table, 0, fmt, value_fmt=value_fmt)
    at.append(k, v)
    return PagedKV(*pages, table, tokens, fmt, value_fmt=value_fmt)


def attended(q: Floats, k: Floats, v: Floats, rule: ScoreRule) -> Floats:
    """The formula, in float64."""
    (n, heads, d), tokens = q.shape, len(k)
    group = heads // k.shape[1]
    q, k, v = (each.astype(np.float64) for each in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    score = np.einsum("ihd,jhd->hij", q, k) * (rule.scale or d**-0.5)
    at, of = np.arange(tokens), np.arange(tokens - n, tokens)[:, None]
    hidden = (at > of) | (at < (0 if rule.window is None else of - rule.window + 1))
    score = np.where(hidden, -np.inf, score)
    sinks = np.full((heads, 1, 1), -np.inf) if rule.sinks is None else rule.sinks.astype(np.float64)[:, None, None]
    top = np.maximum(score.max(2, keepdims=True), sinks)
    weight = np.exp(score - top)
    return np.einsum("hij,jhd->ihd", weight / (weight.sum(2, keepdims=True) + np.exp(sinks - top)), v)


RULES = {
    "plain": PLAIN,
    "scaled": ScoreRule(scale=0.3),
    "window": ScoreRule(window=11),
    "sinks": ScoreRule(sinks=normal(6, seed=8) * 3),
    "window and sinks": ScoreRule(window=3, sinks=normal(6, seed=8)),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("n", "tokens"), [(1, 1), (1, 63), (1, 64), (1, 65), (1, 300), (3, 3), (FEW, 130), (5, 64)])
def test_few_queries_attend_as_the_formula_says(n: int, tokens: int, rule: ScoreRule) -> None:
    q, k, v = normal(n, 6, 32), normal(tokens, 2, 32, seed=1), normal(tokens, 2, 32, seed=2)
    actual = few_attended(q, paged(k, v, F32), rule)
    assert actual is not None
    np.testing.assert_allclose(actual, attended(q, k, v, rule), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("loud", [1e-3, 30.0, 3e3])
def test_scores_that_rise_and_fall_by_thousands(loud: float) -> None:
    q, k, v = normal(2, 2, 64) * loud, normal(200, 1, 64, seed=1), normal(200, 1, 64, seed=2)
    k[70:75] *= 4  # the maximum rises in the second tile
    actual = few_attended(q, paged(k, v, F32), PLAIN)
    want = attended(q, k, v, PLAIN)
    assert actual is not None
    assert np.abs(actual - want).max() < 2e-6 * max(1.0, 8 * loud)


@pytest.mark.parametrize("fmts", [(F16, None), (Q8_0, None), (Q8_0, Q4_0), (F16, F32)], ids=str)
@pytest.mark.parametrize("d", [32, 64, 128, 256])
def test_packed_pages_are_read_as_what_they_hold(d: int, fmts: tuple[BlockFormat, BlockFormat | None]) -> None:
    q, at = normal(1, 4, d), paged(normal(90, 2, d, seed=1), normal(90, 2, d, seed=2), *fmts)
    np.testing.assert_allclose(paged_attention(q, at), attention(q, *at.gather()), rtol=1e-4, atol=2e-6)


def test_attention_without_a_compiled_loop() -> None:
    at = paged(normal(20, 1, 24), normal(20, 1, 24, seed=1), F32)
    assert few_attended(normal(1, 1, 24), at, PLAIN) is None
    at = paged(normal(20, 1, 32), normal(20, 1, 32, seed=1), F32)
    assert few_attended(normal(FEW + 1, 1, 32), at, PLAIN) is None
    assert few_attended(normal(1, 1, 32), at, ScoreRule(softcap=30.0)) is None
    assert not in_vectors(64, Rope(1e4, 36))


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize(("d", "dim"), [(32, 32), (64, 32), (128, 128), (256, 64), (64, 0)])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("tokens", [1, 3, 1030])
def test_heads_are_normed_and_turned(tokens: int, normed: bool, d: int, dim: int, pairing: str) -> None:
    x, weight = normal(tokens, 3, 2 * d), normal(d, seed=1) if normed else None
    positions = np.random.default_rng(0).integers(0, 1_000_000, tokens)
    rotary = Rope(1e6, dim, pairing, magnitude=1.1)
    actual = head_norm_rope(x, d, weight, 1e-5, positions, rotary)
    want = x[..., :d].astype(np.float64)
    if weight is not None:
        want = want / np.sqrt((want**2).mean(2, keepdims=True) + 1e-5) * weight
    if dim:
        angle = (positions[:, None] * rotary.inverse_frequencies)[:, None]
        a, b = (each.copy() for each in rotary.pairs(want))
        first, second = rotary.pairs(want)
        first[...] = (a * np.cos(angle) - b * np.sin(angle)) * 1.1
        second[...] = (a * np.sin(angle) + b * np.cos(angle)) * 1.1
    np.testing.assert_allclose(actual, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("fmt", [F32, F16, Q8_0], ids=lambda fmt: fmt.name)
def test_keys_and_values_are_stored_where_they_belong(fmt: BlockFormat) -> None:
    q, k, v = (normal(11, heads, 32, seed=heads) for heads in (4, 2, 1))
    v = np.concatenate([v, v], axis=1)
    at = paged(normal(5, 2, 32), normal(5, 2, 32), fmt)
    at = PagedKV(at.k, at.v, np.array([2, 0, 1]), 5, fmt)
    positions, rotary = np.arange(5, 16), Rope(1e4, 32)
    before = at.k[2, :5].copy()
    attention_heads(q, k, v, HeadNorms(), positions, rotary, at)
    got = PagedKV(at.k, at.v, at.table, 16, fmt).gather()
    turned = head_norm_rope(k, 32, None, 0.0, positions, rotary)
    np.testing.assert_array_equal(got[0][5:], fmt.decode(fmt.encode(turned)))
    np.testing.assert_array_equal(got[1][5:], fmt.decode(fmt.encode(v)))
    np.testing.assert_array_equal(at.k[2, :5], before)


@pytest.mark.parametrize("value", [65520.0, -1e6, np.inf, np.nan])
@pytest.mark.parametrize("of", ["k", "v"])
def test_values_outside_of_float16_are_refused(value: float, of: str) -> None:
    q, k, v = (normal(1, 2, 32, seed=i) for i in range(3))
    (k if of == "k" else v)[0, 1, 7] = value
    at = PagedKV(*(np.zeros((1, PAGE, 2, 64), np.uint8) for _ in range(2)), np.array([0]), 0, F16)
    with np.errstate(all="ignore"), pytest.raises(ConfigError, match="take a cache of f32"):
        attention_heads(q, k, v, HeadNorms(), np.array([0]), Rope(1e4, 0), at)
    (k if of == "k" else v)[0, 1, 7] = 65504
    attention_heads(q, k, v, HeadNorms(), np.array([0]), Rope(1e4, 0), at)


@pytest.mark.parametrize("value", [65520.0, -1e6, np.inf, np.nan])
@pytest.mark.parametrize("d", [24, 32])
def test_it_is_refused_in_the_same_words_where_numpy_stores(d: int, value: float) -> None:
    """Heads of no whole vectors; and on a CPU that does not round to float16 by itself all others."""
    k = normal(1, 2, d)
    k[0, 1, 7] = value
    at = PagedKV(*(np.zeros((1, PAGE, 2, 2 * d), np.uint8) for _ in range(2)), np.array([0]), 0, F16)
    with np.errstate(all="ignore"), pytest.raises(ConfigError, match="take a cache of f32"):
        at.append(k, normal(1, 2, d))


def test_gates_are_exact_to_a_few_steps_at_any_size() -> None:
    ends = [0.0, -0.0, 1e-30, -1e-30, 300.0, -300.0, 1e4, 3e30, -3e30, -3e38, np.inf, -np.inf, np.nan]
    x = np.concatenate([np.linspace(-120, 120, 40_000), ends])
    x = np.resize(x, (3, 13_360)).astype(np.float32)
    up, wide = np.ones_like(x), x.astype(np.float64)
    with np.errstate(all="ignore"):
        silu = wide / (1 + np.exp(-wide))
        gelu = wide / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(swiglu(x, up), silu, rtol=2e-5, atol=1e-33)
    np.testing.assert_allclose(geglu(x[:, :8000], up[:, :8000]), gelu[:, :8000], rtol=2e-4, atol=1e-33)
    odd = x[:, :7]
    np.testing.assert_allclose(swiglu(odd, up[:, :7]), silu[:, :7], rtol=2e-5, atol=1e-33)


@pytest.mark.parametrize("shape", [(16,), (3, 48), (2, 5, 64), (4, 20), (0, 32)])
def test_norms(shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape) * 100, normal(shape[-1], seed=1)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(rms_norm(x, weight, 1e-5), want, rtol=2e-6, atol=1e-6)
