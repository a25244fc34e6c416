"""docs/results/kept-text.md holds what the records say, and the scripts of real weights do it by their rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp.bench.record import newest
from sp.evals.natural.questions import NaturalQuestion
from sp.selection import Selection
from sp.session import Pipeline, RunOptions, load
from sp.session.loaded import embedded

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "real"))
import kept_text as script
import ranks

ROOT = Path(__file__).parents[2]

FACT = "The second key hangs behind the clock."
TEXT = "The road was long and the evening came early that year.\n" * 60


def question(kind: str = "manual", document: str = "one", asked: str = "Where is it?", **facts: Any) -> NaturalQuestion:
    at = facts.pop("at", len(TEXT) // 2 // 56 * 56)
    text = f"{TEXT[:at]}{FACT}\n{TEXT[at:]}"
    return NaturalQuestion("q", asked, ("clock",), (((at, at + len(FACT)),),), document, text, text_kind=kind, **facts)


def test_the_page_holds_what_the_records_say() -> None:
    records = script.newest(ROOT / "results")
    assert "\n".join(script.page_lines(records)) in script.PAGE.read_text(), "run experiments/real/kept_text.py --page"
    assert len({record["config"]["kind"] for record in records}) == len(records) // len(script.BEST) == 5


def test_the_page_of_real_weights_counts_the_heads_that_find_the_evidence() -> None:
    records = newest(ROOT / "results" / "intel-r-xeon-r-processor-2core" / "evidence_ranks.jsonl")
    counts, best = [], []
    for rotary in ("none", "post"):
        samples = [each for record in records if record["config"]["rotary"] == rotary for each in record["samples"]]
        shares = ranks.above(samples)
        counts.append(int((np.median(shares, axis=0) <= 0.05).sum()))
        best.append(int((shares <= 0.05).sum(axis=0).max()))
    page = " ".join((ROOT / "docs" / "results" / "real.md").read_text().split())
    assert f"Without rotation {counts[0]} of {shares[0].size} heads rank the evidence" in page
    assert f"in the median, with it {counts[1]}." in page
    assert f"the best has {best[0]} of {len(samples)} within 5 % un-rotated, and {best[1]} rotated" in page


def test_of_every_kind_the_first_hard_question_about_a_short_document() -> None:
    easy = question(asked="Where does the second key hang?")
    long = question(document="long")
    first, second = question(), question(document="three")
    code = question("code")
    lengths = {"one": 10, "long": 99, "three": 10}
    texts = {id(each.text): lengths[each.document] for each in (easy, long, first, second, code)}
    chosen = script.first_hard_ones([easy, long, first, second, code], lambda text: texts[id(text)], most=50)
    assert [id(each) for each in chosen] == [id(first), id(code)]


def test_runs_by_their_best_chunk_without_protected_text() -> None:
    kept = np.array([mark == "x" for mark in "xx..xxxxxx..x"])
    free = np.arange(13) > 0
    scores = np.array([0.1, np.nan, 0.3, 0.2, 0.9, 0.0, np.nan])
    selection = Selection(kept, ~kept & kept, scores, np.array([0, 2, 4, 6, 8, 10, 12, 13]))
    runs = script.runs_of(selection, free)
    assert [(run.start, run.end, run.chunk) for run in runs] == [(4, 10, (8, 10)), (1, 2, (1, 2)), (12, 13, (12, 13))]


@pytest.mark.parametrize(
    "parts", [("", "short", ""), ("a " * 300, "the fact itself", " b" * 300), ("x" * 500, "y", "")]
)
def test_a_cut_is_short_and_holds_the_middle(parts: tuple[str, str, str]) -> None:
    text = script.cut(*parts)
    assert len(text) <= script.SIZE
    assert parts[1] in text


def test_records_of_a_question_and_their_lines() -> None:
    pipeline = Pipeline.open(device="cpu")
    options = [RunOptions(scorer=scorer, keep_ratio=0.1) for scorer in ("bm25", "random")]
    records = list(script.records(pipeline, question(asked="Where does the second key hang?"), options))
    found, _ = (json.loads(json.dumps(record)) for record in records)
    assert found["metrics"]["whole"]
    assert found["metrics"]["rank"] == 1
    (run, *_) = found["samples"]
    assert run["number"] == 1
    assert run["evidence"]
    assert FACT in run["text"]
    lines = "\n".join(script.page_lines([found]))
    assert f"evidence  {FACT}" in lines
    assert "bm25      hit; rank 1 of" in lines
    assert "   1 *    " in lines
    assert max(map(len, lines.splitlines())) <= script.WIDTH


def test_ranks_of_every_head_both_ways() -> None:
    one = question(asked="Where does the second key hang?", at=len(TEXT) // 56 // 4 * 56)
    asked = ranks.first_of_each([one, one, question("code"), one], 1)
    assert [each.text_kind for each in asked] == ["manual", "code"]
    loaded = load(embedded("drafter"), device="cpu")
    bare, turned = ranks.records(loaded, asked[:1], "own")
    assert (bare["config"]["rotary"], turned["config"]["rotary"]) == ("none", "post")
    heads = len(loaded.model.config.attention_layers), loaded.model.config.heads
    for record in (bare, turned):
        assert np.array(record["samples"][0]["above"]).shape == heads
        shares = ranks.above(record["samples"])
        assert 0 <= shares.min() == pytest.approx(record["metrics"]["best_share"], abs=1e-4)
        assert shares.max() <= 1
