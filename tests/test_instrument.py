"""The instrument's training: rates along one line, stages in turns, phrases that are crowded or of a dialect."""

from __future__ import annotations

import random
import re
import sys
from importlib import import_module
from typing import Any

import pytest
import yaml
from embedded_pair import ROOT

sys.path.append(str(ROOT / "experiments" / "instrument"))

import in_turns
from feed import Stage
from phrases.crowd import PARTS, crowded
from phrases.dialect import FRAMES, SLOTS, dialect, spoken
from phrases.expand import held
from teller import Teller

from sp.evals import TASKS


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
