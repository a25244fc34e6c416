"""What measures and tells of the instrument, tried on the embedded pair: prompts in tokens, logs, model card."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from embedded_pair import ROOT, known_task

sys.path.append(str(ROOT / "experiments" / "instrument"))
sys.path.append(str(ROOT / "experiments" / "needle_pair"))

import in_turns
import model_card
import parts
from feed import Stage
from fit_curves import points
from phrases.crowd import PARTS, crowded
from phrases.dialect import FRAMES, SLOTS, dialect, spoken
from phrases.expand import held
from sample_document import readable
from task_prompts import Reader
from teller import Teller

from sp.evals import TASKS, Example
from sp.evals.trained_for import note_of_file
from sp.session import embedded

ASSETS = ROOT / "sp" / "assets"


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader.of(embedded("target"))


def test_a_reference_answer_follows_its_prompt_and_is_what_the_rows_predict(reader: Reader) -> None:
    for example in reader.examples({"task": known_task().name}, 480, 3):
        item, prompt = reader.answered(example), reader.prompt(example)
        assert item["ids"][: len(prompt)].tolist() == prompt.tolist()
        assert item["rows"][0] == len(prompt) - 1
        predicted = item["ids"][item["rows"] + 1]
        assert predicted.tolist() == item["ids"][len(prompt) :].tolist()
        assert reader.tokenizer.decode(predicted.tolist()) == f"{example.answers[0]}.<|im_end|>"
        assert item["positions"].tolist() == list(range(len(item["ids"])))


def test_one_of_several_possible_answers_is_the_reference(reader: Reader) -> None:
    example = Example("a", "any", "Some text.", "Which?", "", ("one", "two"), match="any")
    both = Example("a", "all", "Some text.", "Which?", "", ("one", "two"))
    said = [reader.tokenizer.decode(reader.answered(each)["ids"][-4:].tolist()) for each in (example, both)]
    assert ["two" in text for text in said] == [False, True]


def test_options_of_a_case_reach_its_task(reader: Reader) -> None:
    [example] = reader.examples({"task": "needle", "options": {"depth": 0.0, "value": "uuid"}}, 300, 1)
    assert example.facts["value"] == "uuid"
    assert example.facts["depth"] == 0


def log(path: Path, starts: list[list[int]]) -> None:
    lines: list[dict[str, Any]] = []
    for tokens in starts:
        lines.append({"role": "drafter", "config": {}})
        seen = {"loss": 2.0, "lr": 0.1, "first_acc": 0.5, "asked_first": {"fact!": 0.5}}
        lines += [{"stage": "a", "step": n // 100, "tokens": n, "seconds": n / 10} | seen for n in tokens]
        lines.append({"stage_end": "a", "peak_gib": 1.0})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_tokens_of_later_starts_go_on_where_the_one_before_ended(tmp_path: Path) -> None:
    log(tmp_path / "fit_drafter.jsonl", [[100, 300], [100, 200]])
    assert [point["tokens"] for point in points(tmp_path / "fit_drafter.jsonl")] == [100, 300, 400, 500]
    lines = model_card.training_table(tmp_path).splitlines()[2:]
    assert [line.split("|")[2].strip() for line in lines] == ["1", "2"]


def rows(task: str) -> list[dict[str, Any]]:
    common = {"task": task, "tokens_asked": 1024, "selector": "top_chunks", "status": "ok", "needle_recall": 1.0}
    cells = [(-1, "full", 1.0, 1), (0, "tail", 0.1, 1), (1, "random", 0.1, 0)]
    return [
        {**common, "example": f"e{n}", "cell": cell, "scorer": scorer, "keep_ratio": keep, "correct": correct}
        for cell, scorer, keep, correct in cells
        for n in range(4)
    ]


def test_the_card_tells_what_records_and_files_say(tmp_path: Path) -> None:
    results, cpu, assets = (tmp_path / name for name in ("results", "cpu", "assets"))
    for folder in (results / "evals", cpu, assets):
        folder.mkdir(parents=True)
    for name in ("drafter.gguf", "target.gguf", "drafter_heads.json"):
        shutil.copy(ASSETS / name, assets)
    (assets / "draft.gguf").write_bytes(bytes(1234))
    log(results / "fit_target.jsonl", [[100, 5_000_000]])
    shape = {"layers": 3, "ffn": 256, "heads": 4, "target_layers": [2, 6, 8]}
    trained = {"config": {}, "shape": shape, "parameters": 5116672}
    (results / "train_draft.jsonl").write_text(json.dumps(trained) + "\n")
    told = {"task": "code", "length": 2048, "keep": 1.0, "n": 5, "tokens": 40, "accepted": 4.0, "interval": [3.0, 5.0]}
    checked = told | {"right": 4, "gpu": "some card", "depth_accuracy": {"1": 0.5}}
    (results / "check_draft.jsonl").write_text(json.dumps(checked) + "\n")
    said = {
        "decode": "ddtree",
        "one_pass": 1,
        "equal": 5,
        "machine": {"cpu": "some chip"},
        "date": "2026-01-02T00:00:00Z",
    }
    (cpu / "draft.jsonl").write_text(json.dumps(told | said) + "\n")
    for task in ("code", "json"):
        (results / "evals" / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(task)))
    model_card.main(results, assets, cpu, results / "evals")
    card = (assets / "MODEL_CARD.md").read_text()
    for line in (
        "| fit_target | 1 | a | 50000 | 5 M | 500000 |",
        "| code | 100.0 (51.0 to 100.0), n = 4 |",
        "| tail | 100.0 (51.0 to 100.0) | 100.0 (51.0 to 100.0) | 4 |",
        "| ddtree | code | 2048 | all | 5 | 8.0 | 4.00 | 3.00 to 5.00 | 1 | 5 |",
        "| dflash | code | 2048 | all | 4 of 5 | 10.0 | 4.00 | 3.00 to 5.00 | 50 % |",
    ):
        assert line in card.splitlines(), line
    assert card.count(note_of_file(assets / "drafter.gguf")) == 1
    assert f"{(assets / 'target.gguf').stat().st_size:,} bytes".replace(",", " ") in card
    assert "1 234 bytes" in card
    best = max((score, int(layer)) for layer, row in heads(assets).items() for score in row)
    assert f"of layer {best[1]} ({best[0]:.2f})" in card
    assert "{" not in card


def test_a_card_without_records_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("drafter.gguf", "target.gguf", "drafter_heads.json"):
        shutil.copy(ASSETS / name, tmp_path)
    model_card.main(*(tmp_path / name for name in ("none", ".", "none", "none")))
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert card.count(model_card.NOT_YET) == 3
    assert "{" not in card
    told = capsys.readouterr().err
    assert "no rows in" in told
    assert "check_draft.jsonl" in told


def heads(assets: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads((assets / "drafter_heads.json").read_text())["scores"]
    return found


def test_a_sample_has_one_sentence_of_evidence_in_its_second_half() -> None:
    filler = "Nothing to see. " * 20
    sample = Example("a", "t", f"{filler}It is 4711. {filler[:160]}", "What is it?", "", ("4711",), ("It is 4711.",))
    assert readable(sample)
    for change in (
        {"document": f"{filler[:160]}It is 4711. {filler}"},
        {"document": f"{sample.document} 4711"},
        {"needles": ("It is 4711.", "Nothing")},
        {"question": "Is it 4711?"},
    ):
        assert not readable(Example(**{**vars(sample), **change}))


RECORDS = ROOT / "results" / "nvidia-h200" / "instrument"


def test_the_page_shows_the_tables_of_the_logs_it_names() -> None:
    page = (ROOT / "experiments" / "instrument" / "README.md").read_text()
    [command] = [line for line in page.splitlines() if line.startswith("python parts.py")]
    names = command[command.index("{") + 1 : command.index("}")].split(",")
    files = [RECORDS / f"fit_{name}.jsonl" for name in names]
    assert f"{parts.by_task(files)}\n\n{parts.by_stage(files)}" in page
    assert {path.name for path in files} == {path.name for path in RECORDS.glob("fit_*.jsonl")}


def test_tables_of_parts_are_means_of_the_lines_that_a_stage_begins_and_ends_with(tmp_path: Path) -> None:
    path = tmp_path / "fit_drafter_9.jsonl"
    lines: list[dict[str, Any]] = [{"role": "drafter", "config": {}}]
    for n, right in enumerate((0.1, 0.2, 0.3, 0.5, 0.7, 0.9)):
        seen = {"loss": 1.0, "lr": 0.002, "first_acc": right, "asked_first": {"fact": 0.0, "fact!": right}}
        lines.append({"stage": "a", "step": n, "tokens": 2_000_000 * (n + 1), "seconds": 5.0 * (n + 1)} | seen)
    done = {"done": "drafter", "steps": 9, "tokens": 13_000_000, "seconds": 31.0}
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, done]))
    assert parts.by_stage([path]).splitlines()[2] == (
        "| drafter_9, a | 30 | 12.0 | 0.40 | 0.002 to 0.002 | 1.000 | 20.0 | 70.0 |"
    )
    cells = [cell.strip() for cell in parts.by_task([path]).splitlines()[2].split("|")[1:-1]]
    assert cells == ["drafter_9 (a)", "13.0", "31", "70.0", "", "70.0", *[""] * 7]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit, match="was cut"):
        parts.by_task([path])


@pytest.mark.parametrize("name", ["drafter-4", "drafter-6", "drafter-11", "target-11"])
def test_the_rate_of_a_last_part_falls_along_one_line(name: str) -> None:
    config = yaml.safe_load((ROOT / "experiments" / "instrument" / "configs" / f"{name}.yaml").read_text())
    stages, passed = config["stages"], 0.0
    whole = sum(stage["seconds"] for stage in stages)
    assert whole <= 480  # of 560 s: the rest is compiling, and the capture of five shapes
    first, last = stages[0]["lr"] * stages[0]["shape"][0], stages[-1]["lr"] * stages[-1]["shape"][1]
    assert last == pytest.approx(3e-5, rel=0.1)
    for stage in stages:
        for end, at in zip(stage["shape"], (passed, passed + stage["seconds"]), strict=True):
            assert stage["lr"] * end == pytest.approx(first + (last - first) * at / whole, rel=0.02), stage["name"]
        passed += stage["seconds"]
    assert stages[-1]["quantise"]


class Seen:
    """Takes steps of a second by a clock of its own, and counts them."""

    now, taken = 0.0, 0

    def __init__(self, rates: list[float]) -> None:
        self.rates, self.at = rates, list[float]()

    def __call__(self, batch: dict[str, Any]) -> None:
        Seen.now += 1.0
        self.at.append(self.rates[-1])

    def next(self) -> dict[str, Any]:
        return {}

    def seen(self) -> dict[str, Any]:
        return {"loss": 1.0}


def test_stages_in_turns_share_the_time_and_one_falling_rate() -> None:
    Seen.now = 0.0
    rates, told = list[float](), list[dict[str, Any]]()
    some = [
        Stage("long", 64, 1, 0.0, 0.5, turns=1, warmup=1, shape=(1.0, 0.0)),
        Stage("short", 8, 2, 0.0, 0.5, turns=4, warmup=1, shape=(1.0, 0.0), muon=2.0),
    ]
    steps = {stage.name: Seen(rates) for stage in some}

    def left() -> float:
        assert (Seen.now, set(rates)) == (2.0, {0.0}), "first steps come before the time, at a rate of 0"
        return 100.0

    tokens = list(
        in_turns.train(
            some, list(steps.values()), lambda stage: steps[stage.name], left,
            lambda adam, _: rates.append(adam), told.append, 10.0, lambda: None, lambda: Seen.now,
        )
    )  # fmt: skip
    assert [len(one.at) for one in steps.values()] == [21, 81]
    assert tokens[2:7] == [16, 16, 64, 16, 16]
    assert rates[1:] == pytest.approx([0.5 * (1 - i / 100) for i in range(100)])
    assert in_turns.rates(some[1], 1, 0.5) == (0.25, 0.5)
    assert [(one["stage"], one["step"]) for one in told[:2]] == [("long", 3), ("short", 10)]
    assert told[-1]["share"] == pytest.approx(0.98, abs=0.02)
    in_turns.check_finite(told[-1])
    with pytest.raises(SystemExit, match="loss is not finite"):
        in_turns.check_finite({"loss": float("nan")})


@pytest.mark.parametrize("name", [*PARTS, "babi", "json"])
@pytest.mark.parametrize("facts", [2, 40, 160])
def test_crowded_names_share_their_parts_and_suffice_for_a_story(name: str, facts: int) -> None:
    plain, task = import_module(f"phrases.{name}").TRAIN, TASKS.build(name, {})
    phrases = crowded(name, plain, random.Random(facts), facts)
    story = task.story(random.Random(1), phrases, facts)  # type: ignore[attr-defined]
    assert story.passages
    assert story.questions
    many = PARTS.get(name, ("people", "places") if name == "babi" else ("names",))
    sizes = [(len(getattr(phrases, part)), len(getattr(plain, part))) for part in many]
    if name == "json":
        sizes = [(len(few), len(all_)) for few, all_ in zip(phrases.names, plain.names, strict=True)]
    assert all(few < all_ for few, all_ in sizes), sizes
    if name == "babi":
        assert len({one[:3] for one in phrases.people}) < len(phrases.people) / 2
        heads = [place.split()[0] for place in phrases.places]
        assert len(set(heads)) < len(heads)


@pytest.mark.parametrize("name", FRAMES)
def test_a_dialect_has_few_frames_and_nothing_that_is_held_out(name: str) -> None:
    plain, task = import_module(f"phrases.{name}").TRAIN, TASKS.build(name, {})
    theirs = {one.lower() for one in held(task.held_out)}  # type: ignore[attr-defined]
    common = held(plain)
    for seed in range(10):
        phrases, facts = dialect(name, plain, random.Random(seed))
        assert not {one.lower() for one in held(phrases) - common} & theirs - {""}
        for part in FRAMES[name]:
            values = getattr(phrases, part)
            for frames in values.values() if isinstance(values, dict) else [values]:
                assert 1 <= len(frames) <= (60 if part in ("before", "after") else 12)
        story = task.story(random.Random(seed), phrases, facts)  # type: ignore[attr-defined]
        assert story.questions
        assert len(story.passages) >= min(facts, 12)


def test_words_are_exchanged_outside_of_slots_and_everywhere_alike() -> None:
    frame, other = "def {name}({arg}) -> total {{\n{body}  return {value}\n}}", spoken(random.Random(3), 1.0)
    said = other(frame)
    assert SLOTS.findall(said) == SLOTS.findall(frame)
    assert not {"def", "total", "return"} & set(said.replace("(", " ").split())
    assert other("return {x}").split()[0] in said


def test_filler_of_a_dialect_is_told_in_its_words() -> None:
    teller = Teller("code", random.Random(0))
    told = [one for one in (teller.told() for _ in range(8)) if one is not teller.plain]
    assert told
    for one in told:
        passages = " ".join(one.story(random.Random(1), 40).passages)
        filler = " ".join(next(one.stream).text for _ in range(60))  # type: ignore[arg-type]
        words = [set(re.findall("[a-z]{3,}", text.lower())) for text in (passages, filler)]
        assert len(words[0] & words[1]) > 0.2 * min(map(len, words))


def test_text_around_people_names_them() -> None:
    teller = Teller("nolima", random.Random(0))
    told = [one for one in (teller.told(0.5, 0.4) for _ in range(12)) if one is not teller.plain]
    assert told
    for one in told:
        assert one.running
        passages = " ".join(one.story(random.Random(1), 60).passages)
        filler = " ".join(next(one.stream).text for _ in range(200))  # type: ignore[arg-type]
        people = {first for first, _ in re.findall(r"([A-Z][a-z]+) ([A-Z][a-z]+)", passages)}
        assert len({name for name in people if name in filler}) > 0.2 * len(people)
    assert not Teller("multi_session", random.Random(0)).plain.running, "its sessions have lines of their own"
