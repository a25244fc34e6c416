"""Retrieval scores: known for a constructed retriever, whose last layer copies and whose first does not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from embedded_pair import known_task
from retriever_files import token_task

from sp import cli
from sp.errors import ConfigError
from sp.evals import Example
from sp.evals.heads import copy_shares, measure_heads, value_tokens
from sp.models import load_model
from sp.scoring import ScoreRequest
from sp.scoring.attention.heads import HeadMap, model_key
from sp.session.loaded import embedded, load


def test_the_matching_layer_copies_and_the_layer_before_does_not(retriever_drafter: Path) -> None:
    model = load_model(retriever_drafter)
    task = token_task(400, 6, seed=3)
    value = np.zeros(400, bool)
    value[task.start + 3 : task.start + 7] = True
    nothing = np.zeros(400, bool)
    request = ScoreRequest(model, task.ids, np.arange(400), nothing, nothing)
    found = copy_shares(request, value, 4)
    assert list(found.generated) == task.value
    first, last = model.config.attention_layers
    assert found.share[last].max() == 1
    assert not found.share[first].any()
    half = copy_shares(request, value, 2)
    assert half.share[last].max() == 0.5
    other = np.roll(value, 60)
    assert not copy_shares(request, other, 4).share[last].any()


@pytest.mark.parametrize("others", [(), ("Some words.",)], ids=["one needle", "a second that leads to it"])
def test_the_value_is_found_where_the_needle_stands(others: tuple[str, ...]) -> None:
    tokenizer = load(embedded("drafter"), device="cpu").tokenizer
    needle = "The number for grey-fox is 4711."
    document = f"The number 4711 is no answer. Some words. {needle} More words."
    example = Example("x", "needle", document, "What is the number for grey-fox?", "", ("4711",), (*others, needle))
    prompt = example.prompt(None).tokenise(tokenizer)
    inside = value_tokens(prompt, example)
    spans = prompt.bytes[inside]
    start = document.rindex("4711")
    assert spans[0, 0] <= start
    assert spans[-1, 1] == start + 4
    assert spans[-1, 1] - spans[0, 0] <= 5  # a space before it may belong to its first token


def test_an_answer_that_stands_in_two_needles_is_refused() -> None:
    tokenizer = load(embedded("drafter"), device="cpu").tokenizer
    needles = ("It is 4711.", "Truly 4711.")
    example = Example("x", "any", " ".join(needles), "What is it?", "", ("4711",), needles)
    with pytest.raises(ConfigError, match="needs one answer in one needle"):
        value_tokens(example.prompt(None).tokenise(tokenizer), example)


def test_the_embedded_drafters_heads() -> None:
    drafter = load(embedded("drafter"), device="cpu")
    task = known_task()
    count = lambda text: len(drafter.tokenizer.encode(text).ids)  # noqa: E731
    told: list[int] = []
    examples = [task.example(index, 600, count) for index in range(3)]
    found = measure_heads(drafter.model, drafter.tokenizer, drafter.template, examples, told.append)
    assert found.model == model_key(drafter.model)
    assert found.made["prompts"] == sum(told) == 3
    shipped = HeadMap.load(embedded("drafter").with_name("drafter_heads.json"))
    pairs = [pair for layer, row in shipped.scores.items() for pair in zip(row, found.scores[layer], strict=True)]
    retrieving, others = ([now for kept, now in pairs if (kept > 0.1) == told] for told in (True, False))
    assert max(pairs)[1] > 0.1
    assert np.mean(retrieving) > 3 * np.mean(others)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "heads", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_writes_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "heads.json"
    asked = ["--task", known_task().name, "-t", "400", "-n", "3", "--device", "cpu"]
    assert call(monkeypatch, *asked, "-o", str(out), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    found = HeadMap.load(out)
    assert shown["model"] == found.model
    assert {int(layer) for layer in shown["scores"]} == set(found.scores)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "4x"], "whole numbers"),
        (["-t", "0"], "no prompt length"),
        (["-t", "1k,9000k"], "reads 1048576 tokens at most"),
        (["-t", "40"], "tokens"),
        (["--task", "nothing"], "nothing"),
        (["--task", "needle_multiquery", "-t", "400"], "measuring heads needs one answer in one needle"),
        (["no.gguf"], "no.gguf"),
        (["-o", "/dev/null/heads.json"], "cannot write below /dev/null"),
        (["--device", "gpu"], "device"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("sp: error: ")
    assert said.count("\n") == 1
