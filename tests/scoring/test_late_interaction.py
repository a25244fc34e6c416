"""Late interaction against a slow float64 reference that was written from its description, and from kept keys."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scorer_cases import random_head

from sp.errors import ConfigError
from sp.models import (
    ContextParallel,
    Hooks,
    LayerAttention,
    Model,
    RopeScaling,
    SessionCache,
    SparseAttention,
    dense_attention,
)
from sp.ops.attention import space
from sp.ops.rope import Rope, YarnScaling
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.parallel.host import HostGroup
from sp.scoring import SCORERS, PrefixKeys, ScoreRequest
from sp.scoring.attention.attention import read_prompt
from sp.scoring.trained.late_interaction import LateInteractionScorer, ScoringHead
from sp.session.loaded import embedded, load

FAR = 200_000
"""A position beyond the window of the embedded drafter."""


@pytest.fixture(scope="module")
def drafter() -> Model:
    return load(embedded("drafter"), device="cpu").model


@pytest.fixture(scope="module")
def far() -> Model:
    """The same, with YaRN for twice its window."""
    return load(embedded("drafter"), device="cpu", rope=RopeScaling("yarn", 2.0)).model


def prompt(model: Model, tokens: int, question: tuple[int, int] | None, seed: int = 0, first: int = 0) -> ScoreRequest:
    """Random tokens, with the range of the question."""
    ids = np.random.default_rng(seed).integers(100, 1000, tokens)
    mask = np.zeros(tokens, bool)
    mask[slice(*(question or (0, 0)))] = True
    return ScoreRequest(model, ids, first + np.arange(tokens), mask, np.zeros(tokens, bool))


def scorer_of(head: ScoringHead, folder: Path, **options: Any) -> LateInteractionScorer:
    path = folder / "head.safetensors"
    head.save(path, {})
    return LateInteractionScorer(weights=str(path), **options)


def frequencies(rope: Rope) -> list[float]:
    """Radians a position of each pair, by the papers of RoPE and YaRN."""
    plain = [rope.base ** (-2 * j / rope.dim) for j in range(rope.dim // 2)]
    if rope.scaling is None:
        return plain
    assert isinstance(rope.scaling, YarnScaling)
    factor, context = rope.scaling.factor, rope.scaling.original_context

    def pair_of(turns: float) -> float:
        return rope.dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = max(math.floor(pair_of(32)), 0), min(math.ceil(pair_of(1)), rope.dim - 1)
    slow = [min(max((j - low) / max(high - low, 1e-3), 0), 1) for j in range(rope.dim // 2)]
    return [f * (1 - share) + f / factor * share for f, share in zip(plain, slow, strict=True)]


def turned_back(x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
    """Heads (n, heads, d) in float64 before rotary embedding, pair by pair."""
    assert rope.pairing == "halves"
    size = 1.0 if rope.scaling is None else 0.1 * math.log(rope.scaling.factor) + 1  # type: ignore[attr-defined]
    y = x.astype(np.float64)
    for j, frequency in enumerate(frequencies(rope)):
        a, b = x[..., j].astype(np.float64), x[..., j + rope.dim // 2].astype(np.float64)
        cos, sin = np.cos(positions * frequency)[:, None], np.sin(positions * frequency)[:, None]
        y[..., j], y[..., j + rope.dim // 2] = (a * cos + b * sin) / size, (b * cos - a * sin) / size
    return y


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std() if values.std() > 0 else np.zeros(len(values))


def slow(request: ScoreRequest, head: ScoringHead, attend: LayerAttention = dense_attention) -> np.ndarray:
    """Scores by the formula, loop by loop, from what the drafter's layers show."""
    n, config, asked = len(request.ids), request.model.config, request.question.nonzero()[0]
    start = max(int(asked[0]) - 2, 0) if len(asked) else max(n - 32, 0)
    asking, last = range(max(start, n - 64), n), max(head.query)
    tokens, queries, gates = np.zeros((n, head.rank)), np.zeros((len(asking), head.rank)), np.zeros(len(asking))
    looked = np.zeros(start)

    def watch(layer: int, q: Any, cache: Any) -> None:
        k, v = cache.stored(layer).gather()
        rows = turned_back(q[len(q) - len(asking) :], request.positions[asking.start :], config.rope)
        k = turned_back(k, request.positions, config.rope)
        if layer in head.query:
            matrix, gate = head.query[layer].astype(np.float64), head.gate[layer].astype(np.float64)
            for i, row in enumerate(rows):
                queries[i] += row.ravel() @ matrix
                gates[i] += row.ravel() @ gate
        if layer in head.key:
            matrix = head.key[layer].astype(np.float64)
            for j in range(n):
                tokens[j] += np.concatenate([k[j].ravel(), v[j].ravel()]) @ matrix
        if layer == last and start:
            for row in rows:
                for h, query in enumerate(row):
                    dots = k[:start, h * config.kv_heads // config.heads] @ query / math.sqrt(config.head_dim)
                    looked[:] = np.maximum(looked, softmax(dots))

    read_prompt(request, Hooks(watch), attend=attend, rows=len(asking), depth=head.depth)
    scores = np.zeros(n)
    if not start:
        return scores
    shares = softmax(gates)

    def worth(unit: range) -> float:
        total = 0.0
        for share, query in zip(shares, queries, strict=True):
            total += share * max(query @ tokens[j] / (math.hypot(*query) * math.hypot(*tokens[j])) for j in unit)
        return total

    sentence = np.zeros(start)
    for unit in sentences(request, start):
        sentence[unit.start : unit.stop] = worth(unit)
    window = np.full(start, -np.inf)
    for first in range(-56, start, 8):
        inside = range(max(first, 0), min(first + 64, start))
        window[inside.start : inside.stop] = np.maximum(window[inside.start : inside.stop], worth(inside))
    near = [looked[max(j - 6, 0) : j + 7].mean() for j in range(start)]
    total = standard(sentence) + standard(window) + 0.25 * standard(np.array(near))
    scores[:start] = total - total.min()
    return scores


def sentences(request: ScoreRequest, start: int) -> list[range]:
    """Sentences of the first tokens, at most 64 tokens each; 16 tokens each where the text is not known."""
    if request.spans is None:
        return [range(first, min(first + 16, start)) for first in range(0, start, 16)]
    begins = [0] + [i for i in range(1, start) if request.text[request.spans[i - 1, 0]] == ord(".")]
    units = [range(first, end) for first, end in zip(begins, [*begins[1:], start], strict=True)]
    assert max(map(len, units)) <= 64
    return units


PROMPTS = {
    "one token": (1, None),
    "two, of which one asks": (2, (1, 2)),
    "no question, shorter than a chunk": (20, None),
    "no question": (173, None),
    "a question at once": (40, (0, 40)),
    "shorter than a chunk": (31, (22, 29)),
    "whole chunks": (160, (140, 154)),
    "odd length, markup behind the question": (197, (148, 187)),
    "a question beyond what asks": (300, (200, 297)),
}
HEADS: dict[str, dict[str, Any]] = {
    "every layer": {},
    "few layers, keys after queries": {"query": (0, 2), "key": (1, 3), "rank": 5},
    "one query layer, the last": {"query": (3,), "key": (0,), "rank": 1},
}


@pytest.mark.parametrize(("case", "shape"), [(case, list(HEADS)[at % len(HEADS)]) for at, case in enumerate(PROMPTS)])
def test_scores_are_those_of_the_formula(case, shape, drafter, tmp_path) -> None:
    head, (tokens, question) = random_head(drafter.config, **HEADS[shape]), PROMPTS[case]
    request = prompt(drafter, tokens, question)
    found = scorer_of(head, tmp_path).score(request)
    want = slow(request, head)
    np.testing.assert_allclose(found.scores, want, atol=2e-3)
    assert found.scores.dtype == np.float32
    assert not found.scores[request.question].any()
    assert found.by_layer is not None
    assert found.by_layer.shape == (1, -(-tokens // 32))
    assert found.fineness == 16


def test_sentences_are_compared_whole(drafter, tmp_path) -> None:
    """Each token is a letter, and a full stop ends a sentence."""
    request, rng = prompt(drafter, 300, (270, 290)), np.random.default_rng(5)
    text = bytes(ord(".") if stop else ord("a") for stop in rng.random(300) < 0.1)
    text = b"".join(b". " if letter == ord(".") else b"a" for letter in text)
    lengths = np.array([1 + (part == ord(".")) for part in text if part != ord(" ")])
    ends = np.cumsum(lengths)
    request = replace(request, text=text, spans=np.stack([ends - lengths, ends], axis=1))
    head = random_head(drafter.config)
    want = slow(request, head)
    np.testing.assert_allclose(scorer_of(head, tmp_path).score(request).scores, want, atol=2e-3)
    assert np.ptp(want[:270]) > 1


def test_scores_differ_from_prompt_to_prompt_and_head_to_head(drafter, tmp_path) -> None:
    """Else the comparison above would say little."""
    request = prompt(drafter, 389, (340, 379))
    other = prompt(drafter, 389, (340, 379), seed=1)
    pairs = [(request, 1), (request, 0), (other, 0)]
    found = [scorer_of(random_head(drafter.config, seed=seed), tmp_path).score(one).scores for one, seed in pairs]
    assert all(np.ptp(scores[:338]) > 0.1 for scores in found)
    assert min(np.abs(found[0] - found[1]).max(), np.abs(found[1] - found[2]).max()) > 0.1


@pytest.mark.parametrize("size", [32, 64, 352])
def test_slices_change_nothing(size, drafter, tmp_path, monkeypatch) -> None:
    request, scorer = prompt(drafter, 389, (340, 379)), scorer_of(random_head(drafter.config), tmp_path)
    want = scorer.score(request).scores
    monkeypatch.setattr(space, "SLICE", size)
    np.testing.assert_allclose(scorer.score(request).scores, want, atol=1e-5)


def test_the_same_every_time_and_nothing_is_changed(drafter, tmp_path) -> None:
    request, scorer = prompt(drafter, 389, (340, 379)), scorer_of(random_head(drafter.config), tmp_path)
    before = request.ids.copy(), request.positions.copy(), request.question.copy()
    first, second = scorer.score(request), scorer.score(request)
    np.testing.assert_array_equal(first.scores, second.scores)
    for was, now in zip(before, (request.ids, request.positions, request.question), strict=True):
        np.testing.assert_array_equal(was, now)


def test_beyond_the_window_with_yarn(far, tmp_path) -> None:
    head, request = random_head(far.config), prompt(far, 201, (180, 195), first=FAR)
    assert far.config.rope.magnitude > 1
    np.testing.assert_allclose(scorer_of(head, tmp_path).score(request).scores, slow(request, head), atol=2e-4)


def test_sparse_attention_is_that_of_the_options(drafter, tmp_path) -> None:
    head, request = random_head(drafter.config), prompt(drafter, 1100, (1060, 1090))
    found = scorer_of(head, tmp_path, sparse="alpha:0.9").score(request)
    want = slow(request, head, SparseAttention(FlashPrefill(0.9)))
    np.testing.assert_allclose(found.scores, want, atol=2e-4)
    assert len(found.densities) == head.depth - 1  # the last layer does not attend
    assert max(found.densities) < 1


@pytest.mark.parametrize("yarn", [False, True])
def test_kept_keys_change_nothing(yarn, drafter, far, tmp_path) -> None:
    """Three prompts, each longer, and one that goes another way: as read anew."""
    model, first = (far, FAR) if yarn else (drafter, 0)
    scorer = scorer_of(random_head(model.config, query=(1, 3), key=(0, 2)), tmp_path)
    layers = scorer.prefix_layers(model.config)
    assert layers is not None
    assert layers.layers == 4
    keys, whole = PrefixKeys(SessionCache(layers)), prompt(model, 390, None, first=first)
    for tokens in (150, 151, 390):
        question = np.arange(tokens) >= tokens - 17
        parts = {name: getattr(whole, name)[:tokens] for name in ("ids", "positions", "needle")}
        request = replace(whole, question=question, **parts)
        want, got = scorer.score(request), scorer.score(replace(request, keys=keys))
        np.testing.assert_allclose(got.scores, want.scores, atol=2e-3)
        assert keys.cache.tokens == tokens
    changed = whole.ids.copy()
    changed[100:] = (changed[100:] + 1) % 900
    keys.cache.rewind_to(100)
    request = replace(whole, ids=changed, question=np.arange(390) >= 300)
    want, got = scorer.score(request), scorer.score(replace(request, keys=keys))
    np.testing.assert_allclose(got.scores, want.scores, atol=2e-3)


def test_of_several_gpus_the_first_reads_alone(drafter, tmp_path) -> None:
    scorer = scorer_of(random_head(drafter.config, query=(1, 3), key=(0, 2, 3)), tmp_path)
    request, group = prompt(drafter, 900, (870, 896)), HostGroup(2)
    got = scorer.score(replace(request, gpus=ContextParallel(group, [drafter] * 2)))
    np.testing.assert_array_equal(got.scores, scorer.score(request).scores)
    assert group.runs == 0


@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_several_gpus_would_show_is_all_of_it(count, drafter) -> None:
    """Queries, keys and values that a head is given, in order, wherever their pages lie."""
    request, seen = prompt(drafter, 1300, (1270, 1296)), list[list[np.ndarray]]()
    gpus = None if count == 1 else ContextParallel(HostGroup(count), [drafter] * count)
    for given in (None, gpus):
        shown: list[np.ndarray] = []

        def watch(layer: int, q: Any, cache: Any, shown: list[np.ndarray] = shown) -> None:
            shown.extend([q[-32:].copy(), *replace(cache.stored(layer), tokens=1300).gather()])

        read_prompt(replace(request, gpus=given), Hooks(watch), attend=dense_attention, rows=32, depth=3)
        seen.append(shown)
    for one, other in zip(*seen, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-2)


def test_layers_behind_the_head_are_neither_run_nor_counted(drafter, tmp_path) -> None:
    scorer = scorer_of(random_head(drafter.config, query=(0,), key=(1,)), tmp_path)
    assert scorer.reading_depth(drafter.config) == 2
    tail = SCORERS.build("tail")
    assert 0 < scorer.flops(drafter.config, 1000) < tail.flops(drafter.config, 1000)
    seen: list[int] = []
    scorer.score(replace(prompt(drafter, 100, (80, 90)), progress=seen.append))
    assert sum(seen) == 100 * drafter.config.layers  # of those not run it says so too


def test_a_drafter_without_a_head_is_refused_in_one_line(drafter) -> None:
    for ask in (lambda s: s.score(prompt(drafter, 50, None)), lambda s: s.reading_depth(drafter.config)):
        with pytest.raises(ConfigError, match="no trained head for this drafter; use --scorer calibrated") as caught:
            ask(LateInteractionScorer())
        assert "\n" not in str(caught.value)
