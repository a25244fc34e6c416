"""The task multi_session: answers by a second reading of the log."""

from __future__ import annotations

import random
import re
from datetime import datetime

import pytest
from story_cases import check, example, train

from sp.evals.tasks.multi_session import HELD_OUT, KIN, MultiSession

DAY = re.compile(r"\d+ [A-Z][a-z]+ 20\d\d")
KINS = "|".join(KIN)
PERSON = r"[A-Z]\w+ [A-Z]\w+"


def asked(question: str) -> tuple[str, str]:
    """Speaker and kin that a question names."""
    said = re.search(rf"the (?P<kin>{KINS}) of (?P<who>{PERSON})|(?P<who2>{PERSON})'s (?P<kin2>\w+)", question)
    assert said
    return said["who"] or said["who2"], said["kin"] or said["kin2"]


def log(document: str) -> list[tuple[str, str, str]]:
    """Day, speaker and words of every turn."""
    turns, day = [], ""
    for line in document.split("\n"):
        who = re.match(rf"({PERSON}): (.*)", line)
        if who:
            turns.append((day, who[1], who[2]))
        elif DAY.search(line):
            day = DAY.search(line)[0]  # type: ignore[index]
    return turns


@pytest.mark.parametrize("index", range(10))
def test_two_sessions_are_joined(index: int) -> None:
    one = example("multi_session", index)
    check(one, 2048)
    assert one == example("multi_session", index)
    speaker, kin = asked(one.question)
    turns = log(one.document)
    links = [said for _, who, said in turns if who == speaker and re.search(rf"\b[Mm]y {kin}\b", said)]
    assert len(links) == 1
    name = re.search(rf"(?<!^)({PERSON})|{PERSON}", links[0])[0]  # type: ignore[index]
    known = [(day, who, said) for day, who, said in turns if name in said and said != links[0]]
    assert len(known) == 1
    (day, who, said), (answer,) = known[0], one.answers
    assert who != speaker
    assert answer == day if one.facts["kind"] == "day" else answer in said
    assert answer not in links[0]


def test_days_follow_each_other() -> None:
    days = [datetime.strptime(one, "%d %B %Y") for one in DAY.findall(example("multi_session", 0, 8192).document)]
    assert len(days) == 64
    assert days == sorted(set(days))


def test_every_sort_is_asked_for() -> None:
    stories = [MultiSession().story(random.Random(at), HELD_OUT, 6) for at in range(200)]
    first = [story.questions[0].kind for story in stories]
    assert {"number", "town", "trade", "day"} == set(first)
    assert 20 <= first.count("day") <= 80


@pytest.mark.parametrize("facts", [1, 2, 3, 6, 24, 160])
def test_every_question_of_a_story(facts: int) -> None:
    for phrases in (HELD_OUT, train("multi_session")):
        story = MultiSession().story(random.Random(facts), phrases, facts)
        assert len(story.passages) == max(2, facts // 2 * 2)
        text = "\n".join(story.passages)
        for question in story.questions:
            assert all(text.count(said) == 1 for said in question.evidence)
            assert question.answers[0] in question.evidence[-1]
            assert len(question.evidence) == 1 + (question.kind in ("number", "town", "trade", "day"))


def test_only_one_session_fits_a_question_for_a_day() -> None:
    assert all(re.search("introduc|merely the name", frame) for frame in HELD_OUT.asked["day"])


def test_a_turn_ends_with_one_mark() -> None:
    text = "\n".join(MultiSession().story(random.Random(0), HELD_OUT, 160).passages)
    assert not re.search(r"[?!.][?!.,]|\? [a-z]", text)


def test_no_kin_is_a_trade() -> None:
    assert set(KIN).isdisjoint(HELD_OUT.values["trade"])
