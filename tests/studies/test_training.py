"""`sp train scorer`: data files, labels, what is written, and that what was left out was never read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from retriever_files import text_task

from sp import cli
from sp.errors import ConfigError
from sp.evals import TASKS
from sp.prompt import Prompt
from sp.scoring import SCORERS
from sp.scoring.controls import OracleScorer
from sp.scoring.trained.base import ScorerFile, TrainedScorer
from sp.session.loaded import Loaded, embedded, load
from sp.studies.sweep.sweep import load_sweep
from sp.studies.training import (
    Labels,
    Trainer,
    TrainingModels,
    TrainingPrompt,
    best_chunks,
    file_name,
    labels_of,
    leave_one_out,
    load_plan,
    steps,
    trained_kinds,
    training_prompts,
)

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
DATA = """
kind: probe
tasks: [needle, {name: vt, hops: 1, shots: 0}]
lengths: [300]
n: 2
held_out: 1
"""


def plan_of(tmp_path: Path, text: str = DATA, **_: Any):
    path = tmp_path / "data.yaml"
    path.write_text(text)
    return load_plan(path)


@pytest.fixture(scope="module")
def drafter() -> Loaded:
    return load(embedded("drafter"), device="cpu")


@pytest.fixture(scope="module")
def models(drafter: Loaded) -> TrainingModels:
    return TrainingModels(drafter, drafter.tokenizer, drafter.template)


def test_a_plan_is_what_the_file_says(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, DATA + "leave_out: needle\nseed: 7\noptions: {chunk_size: 16, l2: 1}\n")
    assert plan.tasks == {
        "needle": TASKS.build("needle", {"seed": 7}),
        "vt hops=1 shots=0": TASKS.build("vt", {"hops": 1, "shots": 0, "seed": 7}),
    }
    assert plan.training_tasks == ("vt hops=1 shots=0",)
    assert (plan.options.chunk_size, plan.options.l2, plan.options.neighbours) == (16, 1.0, 1)
    assert str(plan.labels) == "evidence"
    assert plan_of(tmp_path, "kind: lines\ntasks: [{name: needle, seed: 3}]\n").tasks["needle seed=3"].seed == 3
    ruler = plan_of(tmp_path, "kind: lines\ntasks: [needle, {suite: ruler}]\n").tasks
    assert set(ruler) == {"needle", *(name for name in TASKS if TASKS.class_of(name).suite == "ruler")}
    assert plan_of(tmp_path).seed != 0, "evaluations draw with seed 0"
    oracle = plan_of(tmp_path, DATA + "labels: {scorer: tail, scorer.queries: 24, top: 0.1}\n").labels
    assert str(oracle) == "tail queries=24, top 0.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("- 1", "this must be a mapping"),
        ("kind: probe", "tasks is missing"),
        ("tasks: [needle]", "kind is missing"),
        (DATA.replace("probe", "tail"), "line 2: unknown kind of trained scorer 'tail'.*cross_attention, lines, probe"),
        (DATA.replace("probe", "[1]"), "kind must be str"),
        (DATA.replace("needle", "neelde"), "line 3: unknown task 'neelde'; did you mean 'needle'"),
        (DATA.replace("hops", "hop"), "did you mean 'hops'"),
        (DATA.replace("[300]", "[]"), "list is empty"),
        (DATA.replace("300", "0"), "length must be from 1"),
        (DATA.replace("300", "99999999"), "length must be from 1"),
        (DATA.replace("n: 2", "n: 0"), "n must be from 1"),
        (DATA.replace("n: 2", "n: yes"), "n must be int"),
        (DATA + "seed: -1", "seed must be from 0"),
        (DATA + "examples: 3", "unknown key of a training 'examples'"),
        (DATA + "leave_out: json", "unknown task to leave out 'json'"),
        (DATA + "leave_out: [needle, vt hops=1 shots=0]", "every task is left out"),
        (DATA + "options: {chunk: 3}", "did you mean 'chunk_size'"),
        (DATA + "options: {chunk_size: 0}", "chunk_size must be from 1"),
        (DATA + "options: {neighbours: 5}", "neighbours must be from 0 to 4"),
        (DATA + "options: 3", "this must be a mapping"),
        (DATA + "labels: truth", "labels must be evidence, or"),
        (DATA + "labels: {top: 0.1}", "labels need the name of a scorer"),
        (DATA + "labels: {scorer: tial}", "did you mean 'tail'"),
        (DATA + "labels: {scorer: tail, top: 2}", "top must be above 0"),
        (DATA + "labels: {scorer: tail, queries: 3}", "unknown key of labels 'queries'"),
        (DATA + "drafter: missing.gguf", "drafter missing.gguf is not a file; give the path"),
        (DATA + "kind: lines", "second time"),
        ("kind: probe\ntasks: [needle, needle]", "task needle is here a second time"),
        ("kind: probe\ntasks: [{hops: 1}]", "needs its name"),
        ("kind: probe\ntasks: [{suite: rulre}]", "unknown suite 'rulre'; did you mean 'ruler'"),
        (
            "kind: !!python/object/apply:os.system [ls]\ntasks: [needle]",
            "!!python/object/apply:.* is not supported",
        ),
        ("kind: [probe", "not YAML"),
    ],
)
def test_wrong_data_files_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "data.yaml" in str(caught.value)


def test_lessons_are_other_examples_than_those_to_judge_by(models: TrainingModels, tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    learnt = list(training_prompts(models, plan, plan.training_tasks, held_out=False))
    judged = list(training_prompts(models, plan, tuple(plan.tasks), held_out=True))
    assert [lesson.task for lesson in learnt] == ["needle"] * 2 + ["vt hops=1 shots=0"] * 2
    assert len(judged) == 2
    texts = [lesson.drafted.prompt.text for lesson in learnt + judged]
    assert len(set(texts)) == len(texts)
    for lesson in learnt:
        labels = labels_of(models, lesson, Labels(), 0)
        np.testing.assert_array_equal(labels > 0, lesson.drafted.mask("needle"))


def test_an_oracle_labels_its_best_chunks(retriever_drafter: Path, retriever_target: Path) -> None:
    """The target's tokens are not the drafter's; its oracle marks the needle in both."""
    drafter, target = load(retriever_drafter, device="cpu"), load(retriever_target, device="cpu")
    task = text_task(900, needles=3)
    prompt = Prompt.from_document(task.document, task.question, None, needle=task.needle)
    example = TrainingPrompt("x", 900, prompt.tokenise(drafter.tokenizer))
    both = TrainingModels(drafter, target.tokenizer, target.template, target)
    for labels in (Labels(OracleScorer(), 0.02), Labels(ReadsTarget(), 0.02)):
        found = labels_of(both, example, labels, 0) > 0
        needle = example.drafted.mask("needle")
        chunks = np.arange(len(found)) // 32
        assert set(chunks[found]) <= set(chunks[needle])
        assert 1 <= found.sum() <= 64
    scores = np.zeros(len(example.drafted), np.float32)
    scores[-5:] = 9  # the question, which is no part of the document
    scores[64:96] = 1
    assert best_chunks(scores, example.drafted, 0.001).nonzero()[0].tolist() == list(range(64, 96))


class ReadsTarget(OracleScorer):
    """An oracle in the target's tokens."""

    reads_target = True


def test_weights_never_see_the_task_left_out(
    models: TrainingModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one task the fit is the one of a file that does not name it, to the last bit."""
    plan = plan_of(tmp_path)
    told: list[int] = []
    trainer = Trainer(models, plan, told.append)
    found = leave_one_out(trainer)
    assert [name for name, _, _ in found] == ["needle", "vt hops=1 shots=0"]
    for name, file, rows in found:
        other = next(task for task in plan.tasks if task != name)
        assert (file.made["tasks"], file.made["left_out"]) == ([other], [name])
        assert [(row["task"], row["left_out"]) for row in rows] == [(name, True)]
    alone = plan_of(tmp_path, DATA.replace("needle, ", ""))
    monkeypatch.setattr(TASKS.class_of("needle"), "example", None)
    again = Trainer(models, alone).fit(alone)
    np.testing.assert_array_equal(again.arrays["weight"], found[0][1].arrays["weight"])
    assert np.abs(again.arrays["weight"]).max() > 0
    assert sum(told) <= steps(plan, True)


def test_names_of_files() -> None:
    assert trained_kinds() == ("cross_attention", "lines", "probe")
    assert file_name("lines", "json") == "lines-without-json.safetensors"
    assert "/" not in file_name("probe", "ruler_file path=/a/b.jsonl")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["sp", "train", "scorer", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_writes_a_file_that_a_scorer_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drafter: Loaded
) -> None:
    folder = tmp_path / "new" / "each"
    data, out = tmp_path / "data.yaml", folder / "scorer.safetensors"
    data.write_text(DATA.replace("probe", "cross_attention") + "options: {epochs: 1, rank: 4}\n")
    common = (str(data), "-o", str(out), "--device", "cpu")
    assert call(monkeypatch, *common, "--leave-one-out", str(folder), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["files"]) == 3
    assert {row["file"] for row in shown["held_out"]} == {path.name for path in folder.iterdir()}
    first = ScorerFile.load(out)
    assert first.model == shown["model"]
    assert first.made["tasks"] == ["needle", "vt hops=1 shots=0"]
    assert call(monkeypatch, *common) == 0
    table = capsys.readouterr().out
    assert "AUC" in table
    assert "written to" in table
    for name, array in ScorerFile.load(out).arrays.items():
        np.testing.assert_array_equal(array, first.arrays[name])
    SCORERS.build("cross_attention", {"weights": str(out)}).open_weights(out, drafter.model)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.yaml"], "nothing would be written"),
        (["missing.yaml", "-o", "x"], "cannot read missing.yaml"),
        (["data.yaml", "-o", "/dev/null/x"], "cannot write below"),
        (["data.yaml", "-o", "."], "is a folder; give --out"),
        (["data.yaml", "--leave-one-out", "/dev/null/x"], "cannot write below"),
        (["one.yaml", "--leave-one-out", "x"], "is the only task"),
        (["short.yaml", "-o", "x", "--device", "cpu"], "needle at 20 tokens: the needle"),
        (["data.yaml", "-o", "x", "--device", "gpu"], "device"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    files = {
        "data.yaml": DATA,
        "one.yaml": "kind: probe\ntasks: [needle]\n",
        "short.yaml": DATA.replace("300", "300, 20"),
    }
    for name, text in files.items():
        Path(name).write_text(text)
    assert call(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("sp: error: ")
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


@pytest.mark.parametrize("path", sorted((EXPERIMENTS / "scorers").glob("*.yaml")), ids=lambda p: p.name)
def test_the_data_files_of_the_experiments_are_sound(path: Path) -> None:
    assert load_plan(path).training_tasks


@pytest.mark.parametrize("name", ["leaderboard.yaml", "leaderboard_more.yaml"])
def test_every_file_that_the_leaderboard_opens_is_trained(name: str) -> None:
    sweep = load_sweep(EXPERIMENTS / name)
    scorers = [cell.options.scorer for run in sweep.runs for cell in run.cells]
    wanted = {Path(one.weights).name for one in scorers if isinstance(one, TrainedScorer) and one.weights}
    trained = set()
    for kind in trained_kinds():
        plan = load_plan(EXPERIMENTS / "scorers" / f"{kind}.yaml")
        assert plan.kind == kind
        trained |= {file_name(kind, task) for task in plan.tasks}
    assert wanted
    assert wanted <= trained
