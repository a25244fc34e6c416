"""Answers judged as RULER judges them; evidence located by bytes; intervals against SciPy's and their formulas."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from sp.errors import ConfigError
from sp.evals.matches import Evidence, evidence_recall, score_answer
from sp.evals.summary import paired_difference, summarise, summarise_perplexity, wilson
from sp.prompt import Prompt, TokenisedPrompt
from sp.selection import Selection


def by_byte(text: str, needles: tuple[str, ...]) -> TokenisedPrompt:
    """One token a byte."""
    prompt = Prompt.from_document(text, "Q?", None, needle=needles)
    n = len(prompt.text.encode())
    return TokenisedPrompt(prompt, np.arange(n), np.stack([np.arange(n), np.arange(n) + 1], axis=1))


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=5), st.text("abc \x01", max_size=12))
def test_scores_are_rulers(answers: list[str], said: str) -> None:
    """string_match_all and string_match_part of the benchmark, for one sample, out of its 100."""
    every = sum(1.0 if r.lower() in said.lower() else 0.0 for r in answers) / len(answers)
    some = max(1.0 if r.lower() in said.lower() else 0.0 for r in answers)
    assert score_answer(said, answers, "all") == pytest.approx(every)
    assert score_answer(said, answers, "any") == some


def test_exact_minds_the_order() -> None:
    assert score_answer(" 12, 34.", ["12", "34"], "exact") == 1
    assert score_answer("34, 12.", ["12", "34"], "exact") == 0


def test_evidence_is_needles_and_the_values_in_them() -> None:
    text = "Grüße. Key a is 77. Filler 77 here. Key b is 88. End."
    prompt = by_byte(text, ("Key a is 77.", "Key b is 88."))
    found = Evidence.of(prompt, ("77", "88"))
    raw = prompt.prompt.text.encode()
    assert [bytes(np.frombuffer(raw, np.uint8)[mask]) for mask in found.needles] == [b"Key a is 77.", b"Key b is 88."]
    assert bytes(np.frombuffer(raw, np.uint8)[found.values]) == b"7788"
    whole = Evidence.of(prompt, ("absent",))
    assert whole.values.sum() == len("Key a is 77.Key b is 88.")


def test_the_worst_needle_counts() -> None:
    needles = (np.arange(12) // 4 == 0, np.arange(12) // 4 == 1)
    scores = np.array([9.0, 5.0, 7.0, np.nan], np.float32)
    bounds = np.array([0, 4, 8, 12, 16])
    kept = np.zeros(16, bool)
    kept[[0, 1, 2, 3, 12, 13, 14, 15]] = True
    needles = tuple(np.append(mask, [False] * 4) for mask in needles)
    values = np.zeros(16, bool)
    values[[1, 5]] = True
    found = evidence_recall(Selection(kept, kept, scores, bounds), Evidence(needles, values))
    assert found is not None
    assert (found.recall, found.complete, found.rank) == (0.5, False, 3)
    assert found.margin == pytest.approx((5 - 7) / (9 - 5))
    kept[5:8] = True
    found = evidence_recall(Selection(kept, kept, scores, bounds), Evidence(needles, values))
    assert found is not None
    assert found.complete
    assert found.recall == pytest.approx((1 + 3 / 4) / 2)
    assert evidence_recall(Selection(kept, kept, scores, bounds), Evidence((), values)) is None


def test_a_selection_that_leaves_nothing_out_has_no_margin() -> None:
    kept = np.ones(4, bool)
    found = evidence_recall(Selection(kept, kept, np.array([1.0, 1.0]), np.array([0, 2, 4])), Evidence((kept,), kept))
    assert found is not None
    assert (found.rank, found.margin) == (1, None)


@settings(deadline=None)
@given(st.integers(1, 400), st.sampled_from((0.9, 0.95, 0.99)), st.data())
def test_wilson_is_that_of_scipy(n: int, confidence: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    assert wilson(k, n, confidence) == pytest.approx(binomtest(k, n).proportion_ci(confidence, "wilson"), abs=1e-12)


def test_paired_difference_covers_and_needs_pairs() -> None:
    rng = random.Random(0)
    full = [float(rng.random() < 0.9) for _ in range(300)]
    less = [one * float(rng.random() < 0.8) for one in full]
    mean, low, high = paired_difference(less, full)
    error = np.subtract(less, full).std() / math.sqrt(300)
    assert mean == pytest.approx(np.mean(less) - np.mean(full))
    assert (low, high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.3 * error)
    assert paired_difference(less, full) == (mean, low, high)
    with pytest.raises(ConfigError, match="paired"):
        paired_difference([1.0], [])
    with pytest.raises(ConfigError, match="at least one"):
        wilson(0, 0)


def row(example: str, cell: int, correct: int | None, seconds: float = 1.0) -> dict[str, object]:
    measured = {
        "correct": correct, "score": correct, "needle_recall": 0.5, "given_kept": bool(correct), "needle_rank": 3,
        "needle_margin": None, "realised_keep": 0.1, "ttft_s": seconds,
    }  # fmt: skip
    ran = correct is not None
    return {
        "task": "needle", "tokens_asked": 512, "cell": cell, "scorer": "tail", "selector": "top_chunks",
        "keep_ratio": 0.1, "example": example, "status": "ok" if ran else "budget",
        **(measured if ran else dict.fromkeys(measured)),
    }  # fmt: skip


def test_lines_pair_cells_with_the_full_prefill() -> None:
    rows = [
        row("a", -1, 1, 4.0),
        row("a", 0, 1),
        row("b", -1, 1, 6.0),
        row("b", 0, 0),
        row("c", -1, 0),
        row("c", 0, None),
    ]
    full, cell = summarise(rows)
    assert (full["n"], full["correct"], full["not_run"]) == (3, 2, 0)
    assert (cell["n"], cell["correct"], cell["not_run"]) == (2, 1, 1)
    assert (cell["low"], cell["high"]) == pytest.approx(wilson(1, 2))
    assert cell["against_full"] == -0.5
    assert cell["speedup"] == 5
    assert cell["accuracy_given_kept"] == 1
    assert cell["needle_margin"] is None


def test_lines_stand_at_a_distance_from_the_best_oracle() -> None:
    """By example, from the one oracle that was right most often at that keep ratio, whatever its selector."""
    right = {  # (scorer, keep ratio): by example
        ("full", 1.0): (1, 1, 1, 1, 1, 1),
        ("tail", 0.1): (1, 0, 0, 1, None, 0),
        ("oracle", 0.1): (1, 1, None, 0, 0, 1),
        ("leave_one_out among=8", 0.1): (1, 1, 0, 1, 1, 0),
        ("tail", 0.2): (1, 1, 0, 1, 1, 0),
        ("target_attention", 0.2): (1, 1, 1, 1, 1, 1),
    }
    rows = [
        row(name, cell, correct) | {"scorer": scorer, "keep_ratio": keep}
        for cell, ((scorer, keep), given) in enumerate(right.items(), -1)
        for name, correct in zip("abcdef", given, strict=True)
    ]
    lines = {(line["scorer"], line["keep_ratio"]): line for line in summarise(rows)}
    tail = lines["tail", 0.1]
    found = tail["against_oracle"], tail["against_oracle_low"], tail["against_oracle_high"]
    assert found == paired_difference([1, 0, 0, 1, 0], [1, 1, 0, 1, 0])  # e was not read by tail
    assert found[0] == pytest.approx(-0.2)
    assert found[1] < found[0] < found[2]
    assert lines["leave_one_out among=8", 0.1]["against_oracle"] == 0
    assert lines["oracle", 0.1]["against_oracle"] == pytest.approx(np.subtract([1, 1, 0, 0, 1], [1, 1, 1, 1, 0]).mean())
    for without in (lines["tail", 0.2], lines["target_attention", 0.2], lines["full", 1.0]):
        assert without["against_oracle"] is without["against_oracle_low"] is without["against_oracle_high"] is None
    other = [each | {"task": "vt"} for each in rows if each["scorer"] == "tail"]
    apart = [line for line in summarise([*rows, *other]) if line["task"] == "vt"]
    assert [line["against_oracle"] for line in apart] == [None, None], "of another task"


def test_perplexity_of_a_line_is_that_of_all_tokens() -> None:
    rows = [
        row(name, cell, 1) | {"nll": nll, "kl": 0.1, "agreement": 1.0}
        for cell, values in ((-1, (1.0, 3.0)), (0, (2.0, 4.0)))
        for name, nll in zip("ab", values, strict=True)
    ]
    full, cell = summarise_perplexity(rows)
    assert full["perplexity"] == pytest.approx(math.exp(2))
    assert cell["nll_change"] == 1
