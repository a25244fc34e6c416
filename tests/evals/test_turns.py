"""Ways through the turns of a transcript: the same answers with a prefix cache, rows once, lines that add up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sp.arrays import Bools
from sp.errors import ConfigError, PromptError
from sp.evals import TASKS
from sp.evals.run import Row, counter
from sp.evals.transcripts.turns import Transcript, Turns
from sp.evals.turns import ways as all_ways
from sp.evals.turns.ways import (
    KEY,
    CachedPrompt,
    Key,
    TurnMethod,
    TurnsRun,
    asking,
    key_of,
    known_rows,
    rounds,
    summarise_turns,
)
from sp.gguf import ChatTemplate
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring import SCORERS
from sp.session import Answer, Pipeline, RunOptions
from sp.trace import Trace

TURNS = 2
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def shown_by(target: Path, drafter: Path) -> Pipeline:
    """A pair whose templates show every message."""
    pair = Pipeline.open(target, drafter, device="cpu")
    assert pair.drafter
    template = ChatTemplate(CHATML)
    return Pipeline(replace(pair.target, template=template), replace(pair.drafter, template=template))


@pytest.fixture(scope="module")
def pipeline(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    """A pair that copies; its target has recurrent states."""
    return shown_by(retriever_target, retriever_drafter)


@pytest.fixture(scope="module")
def attention(retriever_drafter: Path) -> Pipeline:
    """A pair of attention layers alone."""
    return shown_by(retriever_drafter, retriever_drafter)


@pytest.fixture(scope="module")
def transcript(pipeline: Pipeline) -> Transcript:
    return of_tokens(2000, pipeline)


@pytest.fixture(scope="module")
def short(pipeline: Pipeline) -> Transcript:
    """One whose evidence no budget need hold."""
    return of_tokens(1600, pipeline)


def of_tokens(tokens: int, pipeline: Pipeline) -> Transcript:
    task = TASKS.build("turns", {"turns": TURNS})
    assert isinstance(task, Turns)
    return task.transcript(0, tokens, counter(pipeline.target.tokenizer))


def cells(*names: str, keep: float = 0.4) -> list[RunOptions]:
    return [RunOptions(keep_ratio=keep, scorer=SCORERS.build(name)) for name in names]


def made(
    pipeline: Pipeline,
    transcript: Transcript,
    ways: Sequence[str],
    asked: Sequence[RunOptions],
    layout: str = "chat",
    done: Mapping[Key, Row] | None = None,
) -> list[Row]:
    work = TurnsRun(pipeline, rounds(ways, asked), layout)
    return list(work.rows(transcript, counter(pipeline.target.tokenizer), done or {}))


@pytest.mark.parametrize(("pair", "layout"), [("pipeline", "chat"), ("attention", "plain")])
def test_a_prefix_cache_changes_no_answer(
    pair: str, layout: str, short: Transcript, request: pytest.FixtureRequest
) -> None:
    rows = made(request.getfixturevalue(pair), short, ["full", "prefix"], [RunOptions(kv="f32")], layout=layout)
    assert {row["kv"] for row in rows} == {"f32"}
    full, prefix = rows[:TURNS], rows[TURNS:]
    # Its first word: behind that several places are as alike as can be, and the last bit of a product decides.
    assert [row["answer"].split()[:1] for row in full] == [row["answer"].split()[:1] for row in prefix]
    assert [row["prompt_tokens"] for row in full] == [row["prompt_tokens"] for row in prefix]
    assert [row["read_tokens"] for row in full] == [row["prompt_tokens"] for row in full]
    assert prefix[0]["cached_tokens"] == 0
    for before, row in pairwise(prefix):
        assert row["cached_tokens"] + row["read_tokens"] == row["prompt_tokens"]
        if layout == "chat":
            assert row["cached_tokens"] == before["prompt_tokens"]
        else:
            assert 0 < before["prompt_tokens"] - row["cached_tokens"] < 200, "only the question is read again"


@pytest.mark.parametrize("pair", ["attention", "pipeline"])
def test_a_prompt_that_differs_further_in_is_cut_back(pair: str, request: pytest.FixtureRequest) -> None:
    """Or read anew where there are recurrent states, which cannot be cut back."""
    models = request.getfixturevalue(pair)
    held = CachedPrompt(models, 600, RunOptions())
    ids = np.arange(400) % 200
    for given, known in ((ids[:300], 0), (ids, 300), (np.where(np.arange(400) == 150, 7, ids), 150), (ids, 150)):
        prompt = TokenisedPrompt(Prompt("x"), given, np.zeros((400, 2), np.int64))
        answer, cached = held.answer(prompt, 4, Trace())
        assert cached == (known if pair == "attention" or known == 300 else 0)
        fresh, _ = CachedPrompt(models, 600, RunOptions()).answer(prompt, 4, Trace())
        assert answer.tokens == fresh.tokens


def test_cold_rows_tell_turn_kind_and_tokens(pipeline: Pipeline, transcript: Transcript) -> None:
    rows = sorted(made(pipeline, transcript, ["cold"], cells("tail", "oracle")), key=lambda row: row["cell"])
    assert [(row["scorer"], row["turn"]) for row in rows] == [
        (one, t) for one in ("tail", "oracle") for t in range(TURNS)
    ]
    for row, asked in zip(rows, transcript.questions * 2, strict=True):
        assert (row["fact_kind"], row["thread"], row["age"]) == (asked.kind, asked.thread, asked.age)
        assert row["status"] == "ok"
        assert row["read_tokens"] == row["kept_tokens"] < row["prompt_tokens"]
        assert (row["cached_tokens"], row["new_tokens"]) == (0, row["prompt_tokens"])
        assert row["outdated"] in (0, 1)
    assert all(row["given_kept"] for row in rows[TURNS:]), "the oracle keeps the evidence"
    json.dumps(rows)


def test_what_is_protected_is_kept_on_top_of_any_keep_ratio(pipeline: Pipeline, transcript: Transcript) -> None:
    small, large = (made(pipeline, transcript, ["cold"], cells("tail", keep=keep)) for keep in (0.01, 0.4))
    for one, other in zip(small, large, strict=True):
        assert one["status"] == other["status"] == "ok"
        free = (other["kept_tokens"] - one["kept_tokens"]) / 0.39  # what the ratios are of, a chunk at most aside
        assert one["kept_tokens"] > 0.01 * one["prompt_tokens"]
        assert 0.2 * one["prompt_tokens"] < free < one["prompt_tokens"]
    [line, *_] = summarise_turns(small)
    assert (line["n"], line["not_run"]) == (TURNS, 0)


def test_rounds_run_what_matters_once() -> None:
    found = rounds(["full", "prefix", "cold"], cells("tail", "random", "lookahead"))
    assert [(one.way, [place for place, _ in one.cells]) for one in found] == [
        ("full", [-1]),
        ("prefix", [-1]),
        ("cold", [0, 1, 2]),
    ]


def test_what_is_done_is_not_done_again(pipeline: Pipeline, short: Transcript) -> None:
    asked = cells("recency", "random")
    rows = made(pipeline, short, ["cold"], asked)
    assert len({key_of(row) for row in rows}) == len(rows) == 2 * TURNS
    done = {key_of(row): row for row in rows}
    assert made(pipeline, short, ["cold"], asked, done=done) == []
    lost = key_of(rows[-1])
    again = made(pipeline, short, ["cold"], asked, done={key: row for key, row in done.items() if key != lost})
    assert [key_of(row) for row in again] == [lost]
    assert again[0]["cell"] == rows[-1]["cell"]
    assert again[0]["answer"] == rows[-1]["answer"]
    work = TurnsRun(pipeline, rounds(["cold"], asked))
    assert set(work.all_keys(short, counter(pipeline.target.tokenizer))) == set(done)


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = dict.fromkeys(KEY, 1) | {"models": {"target": "a"}}
    other = row | {"example": 2, "models": {"target": "b"}}
    path.write_text("\n".join(map(json.dumps, (row, other, {"task": "needle"}))) + '\n{"example": 3')
    assert list(known_rows(path, {"target": "a"}).values()) == [row]
    assert path.read_text().endswith('"needle"}\n'), "the line that was cut off is gone"
    path.write_text("no row\n")
    with pytest.raises(ConfigError, match="line 1: not a row of results"):
        known_rows(path, {})


def test_lines_add_up() -> None:
    def row(way: str, kind: str, correct: int, turn: int, seconds: float) -> Row:
        return {
            "tokens_asked": 9, "way": way, "cell": -1, "scorer": way, "selector": way, "keep_ratio": 1.0,
            "example": f"e{turn}", "fact_kind": kind, "words_match": kind == "named", "status": "ok",
            "correct": correct, "outdated": 0, "given_kept": True, "prompt_tokens": 10, "kept_tokens": 10,
            "cached_tokens": 0, "new_tokens": 10, "read_tokens": 10, "recalled_tokens": 0, "ttft_s": seconds,
        }  # fmt: skip

    rows = [row("full", kind, 1, turn, 4.0) for turn, kind in enumerate(("old", "named", "old"))]
    rows += [row("cold", kind, kind == "named", turn, 1.0) for turn, kind in enumerate(("old", "named", "old"))]
    lines = summarise_turns(reversed(rows))
    assert [(line["way"], line["kind"]) for line in lines] == [
        (way, kind) for way in ("full", "cold") for kind in ("all", "old", "named")
    ]
    cold = {line["kind"]: line for line in lines[3:]}
    assert cold["all"]["accuracy"] == pytest.approx(1 / 3)
    assert (cold["old"]["correct"], cold["old"]["n"], cold["named"]["correct"]) == (0, 2, 1)
    assert cold["all"]["low"] == pytest.approx(0.0615, abs=1e-3)  # Wilson, 1 of 3
    assert cold["old"]["against_full"] == -1
    assert cold["all"]["speedup"] == 4
    assert [line["words_match"] for line in lines[3:]] == [False, False, True]


@pytest.mark.slow
def test_conversations_go_on_from_turn_to_turn(pipeline: Pipeline, short: Transcript) -> None:
    rows = made(pipeline, short, ["conversation", "recall"], cells("tail", "random"))
    assert [(row["way"], row["turn"], row["scorer"]) for row in rows] == [
        (way, turn, "tail") for way in ("conversation", "recall") for turn in range(TURNS)
    ]
    for row in rows:
        assert row["status"] == "ok"
        assert row["cached_tokens"] + row["new_tokens"] == row["prompt_tokens"]
        assert (row["cached_tokens"] > 0) == (row["turn"] > 0)
        assert 0 < row["read_tokens"] < row["prompt_tokens"]
        assert row["kept_tokens"] < row["prompt_tokens"]
    assert all(row["recalled_tokens"] == 0 for row in rows[:TURNS])
    assert rows[TURNS]["answer"] == rows[0]["answer"], "nothing was left out before the first turn"


def test_what_no_conversation_can_have_is_told_at_once(pipeline: Pipeline) -> None:
    [options] = cells("lookahead")
    for name, way in all_ways.WAYS.items():
        if name not in ("conversation", "recall"):
            way.check(pipeline, options)
            continue
        with pytest.raises(ConfigError, match="lookahead cannot reuse keys"):
            way.check(pipeline, options)


@dataclass(frozen=True)
class _Usage:
    cached: int
    new: int
    read: int
    recalled: int = 0


@dataclass(frozen=True)
class _Told:
    answer: Answer
    usage: _Usage
    present: Bools


class _Talk:
    """Reads everything at every turn, and refuses the second."""

    def __init__(self, pipeline: Pipeline, options: RunOptions) -> None:
        self.pipeline, self.options, self.asked = pipeline, options, 0

    def answer(self, prompt: Prompt, *, max_new_tokens: int | None = None) -> _Told:
        self.asked += 1
        if self.asked == 2:
            raise PromptError("no room")
        assert max_new_tokens
        tokenised = self.pipeline.tokenise(prompt)
        everything = np.ones(len(tokenised), bool)
        answer = self.pipeline.read(tokenised, everything, self.options, Trace())
        return _Told(answer, _Usage(self.asked - 1, 7, 5, 2), everything)


def test_a_way_that_asks_a_conversation(
    pipeline: Pipeline, transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(all_ways.WAYS, "talk", TurnMethod(asking(_Talk)))
    rows = made(pipeline, transcript, ["talk"], cells("tail", "random"))
    assert {row["scorer"] for row in rows} == {"tail"}, "controls keep nothing between turns"
    assert [row["status"] for row in rows] == ["ok", "budget"]
    assert [row["cached_tokens"] for row in rows] == [0, None]
    assert (rows[0]["read_tokens"], rows[0]["recalled_tokens"], rows[0]["given_kept"]) == (5, 2, True)
    assert rows[0]["kept_tokens"] == rows[0]["prompt_tokens"]
    assert rows[0]["ttft_s"] > 0
