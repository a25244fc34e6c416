"""A scorer, a selector and a task from one plain file outside the package: in a run, in `sp eval` and in a sweep."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from retriever_files import text_task

from sp import cli
from sp.evals import TASKS
from sp.prompt import Prompt
from sp.scoring import SCORERS
from sp.selection import SELECTORS
from sp.session import Pipeline, RunOptions

FILE = """
from dataclasses import dataclass

import numpy as np

from retriever_files import text_task
from sp.evals import Example, Task, register_task
from sp.scoring import Importance, Scorer, register_scorer
from sp.selection import Selection, Selector, register_selector


@register_scorer("outside_needle")
@dataclass(frozen=True)
class OutsideNeedle(Scorer):
    gain: float = 1.0

    def score(self, request):
        return Importance(request.needle * np.float32(self.gain))


@register_selector("outside_best")
@dataclass(frozen=True)
class OutsideBest(Selector):
    most: int = 1000

    def select(self, request):
        kept = request.protected.copy()
        order = np.argsort(-request.scores - 2 * request.scores.max() * kept, kind="stable")
        kept[order[: min(request.budget, self.most + int(kept.sum()))]] = True
        return Selection(kept, request.protected, request.scores, np.arange(len(kept) + 1))


@register_task("outside_lines")
@dataclass(frozen=True)
class OutsideLines(Task):
    needles: int = 4

    def example(self, index, tokens, count):
        made = text_task(tokens, needles=self.needles, seed=index)
        return Example(
            self.example_id(index, tokens), self.name, made.document, made.question, "", (made.answer,),
            (made.needle,), tokens=tokens, max_new_tokens=6,
        )
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The file, imported; the registries are as before afterwards."""
    (tmp_path / "strategies_from_outside.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    for registry in (SCORERS, SELECTORS, TASKS):
        monkeypatch.setattr(registry, "_classes", dict(registry._known()))
    yield import_module("strategies_from_outside")
    del sys.modules["strategies_from_outside"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["sp", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code


@pytest.mark.usefixtures("outside")
def test_in_a_run(retriever_target: Path, retriever_drafter: Path) -> None:
    task = text_task(900, needles=4, seed=3)
    pair = Pipeline.open(retriever_target, retriever_drafter, device="cpu")
    prompt = Prompt.from_document(task.document, task.question, pair.target.template, needle=task.needle)
    options = RunOptions(
        keep_ratio=0.2,
        scorer=SCORERS.build("outside_needle", {"gain": 2.0}),
        selector=SELECTORS.build("outside_best", {"most": 300}),
        compress="always",
        max_new_tokens=6,
    )
    result = pair.run(prompt, options, full=False)
    assert result.needle_recall == 1
    assert result.importance is not None
    assert np.unique(result.importance.scores).tolist() == [0, 2]


@pytest.mark.usefixtures("outside")
def test_in_cells_of_an_evaluation_and_of_a_sweep(
    retriever_target: Path,
    retriever_drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = ["--target", retriever_target, "--drafter", retriever_drafter, "--device", "cpu"]
    cells = ["--scorer", "outside_needle[gain=3]", "--selector", "outside_best[most=300]", "--no-controls"]
    asked = ["-t", "outside_lines", "-p", 700, "-n", 1, "--keep-ratio", 0.3, "--json"]
    call(monkeypatch, "eval", "ruler", *models, *cells, *asked)
    _, line = json.loads(capsys.readouterr().out)["results"]
    assert (line["scorer"], line["selector"]) == ("outside_needle gain=3.0", "outside_best most=300")
    assert line["needle_recall"] == 1
    sweep = tmp_path / "outside.yaml"
    sweep.write_text(
        f"device: cpu\nout: {tmp_path / 'rows'}\n"
        f"pairs: {{target: {retriever_target}, drafter: {retriever_drafter}}}\n"
        "tasks: {task: outside_lines, task.needles: 3, tokens: 700, examples: 2}\n"
        "cells: {scorer: {name: outside_needle, gain: 3.0}, selector: outside_best, keep_ratio: 0.3}\n"
    )
    call(monkeypatch, "sweep", sweep, "--json")
    assert json.loads(capsys.readouterr().out)["failed"] == []
    lines = [json.loads(line) for path in (tmp_path / "rows").glob("*.jsonl") for line in path.read_text().splitlines()]
    rows = [line for line in lines if line["kind"] == "row" and line["cell"] == 0]
    assert [(row["task"], row["scorer"], row["needle_recall"]) for row in rows] == [
        ("outside_lines needles=3", "outside_needle gain=3.0", 1)
    ] * 2


@pytest.mark.usefixtures("outside")
def test_a_task_from_outside_is_no_part_of_a_suite() -> None:
    ruler = [name for name in TASKS if TASKS.class_of(name).suite == "ruler"]
    assert len(ruler) == 13
    assert "outside_lines" in TASKS
