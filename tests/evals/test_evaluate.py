"""Whole evaluations: on constructed retrievers, whose answers are known, and on the embedded pair at tiny lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from embedded_pair import known_task
from retriever_files import text_task

from sp.errors import PromptError
from sp.evals import FULL, Example, Row, Task, evaluate
from sp.evals.base import Count
from sp.evals.ppl import Passage, generated_text, log_probabilities, passages, perplexity
from sp.evals.run import counter
from sp.models import prefill
from sp.prompt import Prompt
from sp.scoring import SCORERS, Importance, ScoreRequest
from sp.scoring.attention.attention import TailScorer
from sp.selection import SELECTORS
from sp.session import Pipeline, RunOptions
from sp.studies.sweep.store import Store, read_results, session_line


@dataclass(frozen=True)
class Lines(Task):
    """Needles the retrievers can follow."""

    name = "lines"

    def example(self, index: int, tokens: int, count: Count) -> Example:
        made = text_task(tokens, needles=6, seed=index)
        return Example(
            self.example_id(index, tokens), self.name, made.document, made.question, "", (made.answer,),
            (made.needle,), tokens=tokens, max_new_tokens=6,
        )  # fmt: skip


SELECTOR = SELECTORS.build("top_chunks", {"chunk_size": 16, "neighbours": 1, "sink": 8, "tail": 8})


def cell(keep: float, scorer: str = "tail", **more: object) -> RunOptions:
    return RunOptions(keep_ratio=keep, scorer=SCORERS.build(scorer), selector=SELECTOR, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    return Pipeline.open(retriever_target, retriever_drafter, device="cpu")


@pytest.fixture(scope="module")
def rows(pair: Pipeline) -> list[Row]:
    examples = [Lines().example(index, 1400, len) for index in range(2)]
    cells = [
        cell(0.2),
        cell(0.2, "oracle"),
        cell(0.2, "random"),
        cell(1.0),
        cell(0.01),
        cell(0.2, positions="contiguous"),
    ]
    return list(evaluate(pair, examples, cells))


def test_facts_do_not_stand_in_place_of_what_records_say(pair: Pipeline, tmp_path: Path) -> None:
    made = replace(Lines().example(0, 400, len), facts={"kind": "odd", "depth": 0.5})
    [row] = evaluate(pair, [made], [])
    assert (row["fact_kind"], row["depth"], "kind" in row) == ("odd", 0.5, False)
    path = tmp_path / "rows.jsonl"
    with Store(path, session_line("s", None, "cpu")) as store:
        store.add("r", [row], seconds=1.0, config={}, models={})
    assert [each["fact_kind"] for each in read_results([path]).all_rows()] == ["odd"]


def test_every_example_is_read_in_full_and_in_every_cell(rows: list[Row]) -> None:
    for example in {row["example"] for row in rows}:
        mine = [row for row in rows if row["example"] == example]
        assert mine[0]["cell"] == -1
        assert sorted(row["cell"] for row in mine) == [-1, 0, 1, 2, 3, 4, 5]
    assert len({tuple(row) for row in rows}) == 1  # one set of columns
    assert [json.loads(json.dumps(row)) for row in rows] == rows


def test_what_is_kept_is_answered_as_in_full(rows: list[Row]) -> None:
    for row in rows:
        if row["cell"] in (-1, 0, 1, 3):
            assert (row["status"], row["correct"], row["given_kept"], row["needle_recall"]) == ("ok", 1, True, 1)
            assert row["answer"] == row["expected"][0]
        if row["cell"] == 1:
            assert row["needle_rank"] == 1
            assert row["needle_margin"] > 0
        if row["cell"] == -1:
            assert (row["scorer"], row["selector"], row["realised_keep"]) == (FULL, FULL, 1)
        if row["cell"] in (0, 1, 2, 5):
            assert row["kept_tokens"] / row["prompt_tokens"] == row["realised_keep"]
            assert 0.2 < row["realised_keep"] <= 0.2 + 40 / row["prompt_tokens"]  # question and markup on top


def test_random_draws_anew_for_every_example(pair: Pipeline) -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Watching(TailScorer):
        def score(self, request: ScoreRequest) -> Importance:
            seen.append(request.seed)
            return Importance(np.zeros(len(request.ids), np.float32))

    cells = [replace(cell(keep), scorer=scorer) for keep in (0.2, 0.4) for scorer in (Watching(), Watching(queries=4))]
    examples = [Lines().example(index, 700, len) for index in range(2)]
    found = list(evaluate(pair, examples, cells, full=False))
    assert len(found) == 8
    assert len(seen) == 4, "cells with one scorer share its scoring"
    assert len(set(seen)) == 2


def test_scorings_share_the_drafters_tokens_and_each_counts_their_time(
    pair: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    encode = pair.drafter.tokenizer.encode  # type: ignore[union-attr]

    def watch(text: str, *rest: object, **options: object) -> object:
        texts.append(text)
        return encode(text, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pair.drafter.tokenizer, "encode", watch)  # type: ignore[union-attr]
    example = Lines().example(0, 700, len)
    cells = [cell(0.3), cell(0.3, "head_tail"), cell(0.3, "target_attention")]
    rows = list(evaluate(pair, [example], cells, full=False))
    assert len(texts) == 1
    alone = [next(iter(evaluate(pair, [example], [one], full=False))) for one in cells]
    assert [row["answer"] for row in sorted(rows, key=lambda row: row["cell"])] == [row["answer"] for row in alone]


def test_the_question_takes_no_room_and_the_realised_ratio_counts_it(rows: list[Row]) -> None:
    for row in rows:
        if row["cell"] == 4:
            assert row["status"] == "ok"
            assert row["keep_ratio"] == 0.01
            assert 0.02 < row["realised_keep"] == row["kept_tokens"] / row["prompt_tokens"] < 0.1


def test_the_time_to_first_token_counts_the_shared_scoring(rows: list[Row]) -> None:
    for row in rows:
        if row["cell"] in (0, 3, 5):
            stages = sum(row[f"{name}_s"] for name in ("tokenise", "score", "select", "compress", "prefill"))
            assert row["score_s"] > 0
            assert row["ttft_s"] >= stages


def test_the_oracle_needs_a_needle_and_long_prompts_are_refused(pair: Pipeline) -> None:
    example = replace(Lines().example(0, 700, len), needles=())
    [found] = evaluate(pair, [example], [cell(0.2, "oracle")], full=False)
    assert found["status"] == "no_needle"
    reports: list[int] = []
    list(evaluate(pair, [example], [cell(0.2, "head_tail")], progress=reports.append))
    assert reports == [1, 1]
    config = pair.target.model.config
    long = replace(example, max_new_tokens=config.context)
    with pytest.raises(PromptError, match=rf"example {example.id}: .*context"):
        list(evaluate(pair, [long], [cell(0.2)]))
    rows = list(evaluate(pair, [long, example], [cell(0.2)], pass_over_long=True, progress=reports.append))
    assert [(row["cell"], row["status"]) for row in rows] == [(-1, "long"), (0, "long"), (-1, "ok"), (0, "ok")]
    assert len({tuple(row) for row in rows}) == 1
    assert [row["score"] for row in rows[:2]] == [None, None]
    assert len(reports) == 6


def test_the_embedded_pair_reads_what_is_kept() -> None:
    """512 tokens, whole sentences: larger pieces do not fit the budgets of prompts this short."""
    embedded = Pipeline.open(device="cpu")
    count = counter(embedded.target.tokenizer)
    selector = SELECTORS.build("sentence", {"neighbours": 0, "sink": 4, "tail": 0})
    oracle = SCORERS.build("oracle")
    cells = [RunOptions(0.3, selector=selector), RunOptions(0.3, oracle, selector)]
    found = list(evaluate(embedded, [known_task().example(index, 512, count) for index in range(2)], cells))
    by_cell = [[row for row in found if row["cell"] == cell] for cell in (-1, 0, 1)]
    assert all(sum(row["correct"] and row["given_kept"] for row in rows) >= 1 for rows in by_cell)
    assert all(row["given_kept"] for row in by_cell[-1])
    assert all(460 <= row["prompt_tokens"] <= 512 for row in found)


def test_predictions_are_those_of_reading_everything_anew(pair: Pipeline) -> None:
    """Teacher forcing from the cache against one prefill for each token, in the same gaps."""
    prompt = pair.tokenise(Prompt(text_task(300, seed=4).document))
    rng = np.random.default_rng(0)
    kept = rng.random(len(prompt)) < 0.5
    ids = rng.integers(97, 120, 4)
    found = log_probabilities(pair, prompt, kept, ids, cell(0.5, kv="f32"))
    for number in range(len(ids)):
        read = np.concatenate([prompt.ids[kept], ids[:number]])
        positions = np.concatenate([kept.nonzero()[0], len(prompt) + np.arange(number)])
        logits = np.asarray(prefill(pair.target.model, read, positions, pair.target.model.new_cache(len(read), "f32")))
        wanted = logits - np.log(np.exp(logits.astype(np.float64)).sum())
        np.testing.assert_allclose(found[number], wanted, atol=2e-3)


def test_perplexity_against_the_full_prefill(pair: Pipeline) -> None:
    text = text_task(900, seed=5).document
    found = passages(text, 300, 8, 2, pair.target.tokenizer)
    rows = list(perplexity(pair, found, [cell(1.0), cell(0.2, "random"), cell(0.2, "oracle")]))
    assert rows[0]["cell"] == -1
    full, whole, part, none = sorted(rows[:4], key=lambda row: row["cell"])
    assert (whole["nll"], whole["kl"], whole["agreement"]) == (
        pytest.approx(full["nll"], abs=1e-5),
        pytest.approx(0, abs=1e-5),
        1,
    )
    assert part["kl"] > 0.01
    assert part["realised_keep"] <= 0.21
    assert part["perplexity"] == pytest.approx(np.exp(part["nll"]))
    assert none["status"] == "no_needle"


def test_passages_are_pieces_of_the_text(pair: Pipeline) -> None:
    tokenizer = pair.target.tokenizer
    text = generated_text(600, counter(tokenizer), seed=3)
    found = passages(text, 256, 32, 3, tokenizer)
    for one in found:
        assert one.context + one.continuation in text
        assert one.continuation[0] in " \n"
        assert len(tokenizer.encode(one.context)) == pytest.approx(256, abs=24)
    assert isinstance(found[0], Passage)
    with pytest.raises(PromptError, match="a passage needs 5000"):
        passages(text, 4968, 32, 1, tokenizer)
