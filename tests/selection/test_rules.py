"""Rules and constraints one by one, on small prompts whose answer is plain to see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from selection_cases import PLAIN

from sp.errors import ConfigError
from sp.selection import SELECTORS, Selection, SelectionRequest
from sp.selection.ranking import sentence_bounds, spread_order, token_steps


def select(name: str, scores: Any, keep: float, protected: tuple[int, ...] = (), **options: object) -> Selection:
    mask = np.zeros(len(scores), bool)
    mask[list(protected)] = True
    request = SelectionRequest(np.asarray(scores, np.float32), mask, keep)
    return SELECTORS.build(name, PLAIN | options).select(request)


def kept(name: str, scores: Any, keep: float, protected: tuple[int, ...] = (), **options: object) -> list[int]:
    return select(name, scores, keep, protected, **options).indices.tolist()


def test_top_tokens_takes_single_tokens() -> None:
    assert kept("top_tokens", [1, 9, 2, 8, 3, 7, 0, 0], 3 / 8) == [1, 3, 5]
    assert kept("top_tokens", [1, 9, 2, 8, 3, 7, 0, 0], 3 / 8, neighbours=1) == [0, 1, 2]


def test_token_budget_caps_what_the_ratio_allows_and_the_ratio_what_it_asks() -> None:
    scores = np.arange(100)
    assert kept("token_budget", scores, 0.9, tokens=8, chunk_size=4) == list(range(92, 100))
    assert kept("token_budget", scores, 0.04, tokens=8, chunk_size=4) == list(range(96, 100))
    fixed = tuple(range(9))
    assert kept("token_budget", scores, 0.9, fixed, tokens=8, chunk_size=4) == [*fixed, *range(92, 100)]


def test_alpha_of_the_maximum_and_of_the_mean() -> None:
    scores = [10, 10, 6, 6, 4, 4, 0, 0]  # chunk means 10, 6, 4, 0; their mean is 5
    assert kept("alpha", scores, 0.99, chunk_size=2, alpha=0.5) == [0, 1, 2, 3]
    assert kept("alpha", scores, 0.99, chunk_size=2, alpha=0.4) == [0, 1, 2, 3]  # 4 is not above 4
    assert kept("alpha", scores, 0.99, chunk_size=2, alpha=0.75, of="mean") == [0, 1, 2, 3, 4, 5]
    assert kept("alpha", scores, 0.25, chunk_size=2, alpha=0.5) == [0, 1]


def test_top_p_is_the_smallest_set() -> None:
    scores = [5, 5, 1, 1, 3, 3, 1, 1]  # half of the mass is in the first chunk
    assert kept("top_p", scores, 0.99, chunk_size=2, p=0.5) == [0, 1]
    assert kept("top_p", scores, 0.99, chunk_size=2, p=0.51) == [0, 1, 4, 5]
    assert kept("top_p", np.zeros(8), 0.99, chunk_size=2, p=1.0) == []


@pytest.mark.parametrize(
    ("name", "options"), [("top_p", {"p": 0.5}), ("alpha", {"alpha": 0.5}), ("zscore", {"z": 1.0})]
)
def test_a_sink_sets_no_threshold(name: str, options: dict[str, Any]) -> None:
    scores = np.ones(64)
    scores[:2] = 1000
    scores[40:44] = 20
    assert set(range(40, 44)) <= set(kept(name, scores, 0.5, chunk_size=4, sink=4, **options))
    assert not {40} & set(kept(name, scores, 0.5, chunk_size=4, sink=0, **options))
    assert {40} <= set(kept(name, scores, 0.5, (0, 1), chunk_size=2, sink=0, **options))


def test_zscore_of_mean_and_of_median() -> None:
    scores = np.array([4, 6] * 10 + [1000, 20])  # one huge outlier hides a lesser one from the standard deviation
    assert kept("zscore", scores, 0.9, chunk_size=1, z=2.0) == [20]
    assert kept("zscore", scores, 0.9, chunk_size=1, z=2.0, spread="mad") == [20, 21]
    assert kept("zscore", np.ones(8), 0.9, chunk_size=1, z=0.0) == []


def test_adaptive_keeps_more_of_a_flat_prompt() -> None:
    flat, peaked = np.ones(64), np.where(np.arange(64) < 2, 50, 0)
    entropy = {"chunk_size": 1, "rule": "entropy", "least": 0.01}
    assert len(kept("adaptive", flat, 0.5, **entropy)) == 32
    assert kept("adaptive", peaked, 0.5, **entropy) == [0, 1]
    assert len(kept("adaptive", peaked, 0.5, **entropy | {"least": 0.25})) == 16


def test_adaptive_stops_at_the_elbow_between_its_bounds() -> None:
    scores = [90, 89, 88, 40, 39, 38, 37, 1, 0, 0]
    elbow = {"chunk_size": 1, "rule": "elbow"}
    assert kept("adaptive", scores, 0.9, least=0.1, **elbow) == [0, 1, 2]
    assert kept("adaptive", scores, 0.9, least=0.4, **elbow) == [0, 1, 2, 3, 4, 5, 6]
    assert kept("adaptive", scores, 0.5, least=0.9, **elbow) == [0, 1, 2, 3, 4]


def sentence_request(pieces: list[str], scores: Any, keep: float) -> SelectionRequest:
    ends = np.cumsum([len(piece.encode()) for piece in pieces])
    spans = np.stack([np.append(0, ends[:-1]), ends], 1)
    text = "".join(pieces).encode()
    return SelectionRequest(np.asarray(scores, np.float32), np.zeros(len(pieces), bool), keep, text, spans)


def test_sentences_end_at_stops_and_lines_but_not_inside_numbers() -> None:
    pieces = ["It", " is", " 3", ".", "14", ".", " No", '."', "\n\n", "Line", "\n", "é", "。", "後", "!", " x"]
    request = sentence_request(pieces, np.zeros(16), 0.5)
    assert sentence_bounds(request, 99).tolist() == [0, 6, 9, 11, 13, 15, 16]
    assert sentence_bounds(request, 4).tolist() == [0, 3, 6, 9, 11, 13, 15, 16]


def test_a_token_over_the_end_of_a_sentence_stays_in_it() -> None:
    assert sentence_bounds(sentence_request(["Go", ". N", "ow", "."], np.zeros(4), 0.5), 9).tolist() == [0, 2, 4]


def test_the_best_sentence_is_kept_whole() -> None:
    pieces = ["A", " b", ".", " C", " d", " e", ".", " F", "."]
    request = sentence_request(pieces, [0, 0, 0, 9, 0, 0, 0, 1, 1], 0.5)
    chosen = SELECTORS.build("sentence", PLAIN).select(request)
    assert chosen.indices.tolist() == [3, 4, 5, 6]
    np.testing.assert_allclose(chosen.chunk_scores, [0, 2.25, 1])
    with pytest.raises(ConfigError, match="needs the text"):
        select("sentence", np.zeros(9), 0.5)


def test_a_choice_is_widened_to_the_shortest_run_and_stays_in_the_prompt() -> None:
    for at, expected in ((0, [0, 1, 2]), (5, [4, 5, 6]), (9, [7, 8, 9])):
        scores = np.zeros(10)
        scores[at] = 1
        assert kept("top_tokens", scores, 0.3, min_run=3) == expected
    assert kept("top_tokens", np.zeros(10), 0.9, min_run=100) == []  # one choice is the prompt, which does not fit
    assert token_steps(np.array([1.0, 0.0]), np.array([0, 2, 4]), 3).tolist() == [1, 0, 0, 0]


def test_no_run_is_shorter_than_asked() -> None:
    scores = np.random.default_rng(0).random(500)
    mask = select("top_tokens", scores, 0.4, min_run=12).selected
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    assert (edges[1::2] - edges[::2]).min() >= 12


@pytest.mark.parametrize("units", [1, 2, 3, 100, 255, 1000])
def test_the_first_of_the_spread_order_lie_evenly(units: int) -> None:
    order = spread_order(units)
    assert sorted(order.tolist()) == list(range(units))
    for count in (1, 3, 10, 50):
        points = np.sort(np.append(order[:count], units))
        assert np.diff(points).max() <= 2 * units / min(count, units) + 1


def test_backbone_takes_its_share_of_the_choices() -> None:
    scores = np.where(np.arange(256) < 128, 1000 - np.arange(256), 0)  # the first half holds all importance
    half = select("top_chunks", scores, 0.25, chunk_size=4, backbone=0.5)
    assert half.selected.sum() == 64
    assert half.selected[128:].sum() == 4 * 4  # 8 of 16 chunks are spread, 4 of those over the second half
    assert select("top_chunks", scores, 0.25, chunk_size=4).selected[128:].sum() == 0


@pytest.mark.parametrize(("tokens", "reach"), [(3200, 64), (32768, 128), (65536, 256)])
def test_neighbours_by_length_reach_further_in_longer_prompts(tokens: int, reach: int) -> None:
    scores = np.zeros(tokens)
    middle = tokens // 2 // 32 * 32
    scores[middle : middle + 32] = 1
    budget = (2 * reach + 32) / tokens
    expected = list(range(middle - reach, middle + 32 + reach))
    assert kept("top_chunks", scores, budget, neighbours="by_length") == expected
