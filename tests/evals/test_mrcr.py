"""The i-th of look-alikes: a second reader finds the answer in the text."""

from __future__ import annotations

import random
import re

import pytest
from story_cases import built, count, pattern, read

from sp.errors import ConfigError
from sp.evals.tasks.mrcr import FRESH, HELD_OUT, MrcrPhrases

CODE = r"\d{5}|[A-Z][a-z]{6,12}"
PLACE = {"first": 0, "second": 1, "third": 2, "last": -1}
SETS = {"held_out": HELD_OUT, "fresh": FRESH}
both = pytest.mark.parametrize("phrases", SETS)


def slots(phrases: MrcrPhrases) -> dict[str, str]:
    """What questions are filled with."""
    return {"kind": "|".join(phrases.kinds), "topic": "|".join(phrases.topics), "nth": "|".join(PLACE)}


def pieces(document: str, phrases: MrcrPhrases = HELD_OUT) -> list[tuple[str, str, str]]:
    """Kind, topic and code of every piece, by lines that look like a first and a closing one."""
    names = {"who": "|".join(phrases.people), "when": "|".join(phrases.times), "code": CODE}
    heads = [re.compile(pattern(one, **slots(phrases), **names), re.IGNORECASE) for one in phrases.headers]
    ends = [re.compile(r"(?:^|(?<=[.:] ))" + pattern(one, **names)) for one in phrases.closings]
    found = sorted(
        (match.start(), match.groupdict()) for one in (*heads, *ends) for match in one.finditer(document)
    )  # fmt: skip
    assert ["code" in each for _, each in found] == [False, True] * (len(found) // 2)
    return [
        (first["kind"].lower(), first["topic"].lower(), last["code"])
        for (_, first), (_, last) in zip(found[::2], found[1::2], strict=True)
    ]


def answer(document: str, question: str, phrases: MrcrPhrases = HELD_OUT) -> str:
    """What a reader of the whole text says."""
    asked = read(phrases.asks, question, **slots(phrases))
    assert asked, question
    wanted = asked["kind"], asked["topic"]
    codes = [code for kind, topic, code in pieces(document, phrases) if (kind, topic) == wanted]
    assert len(codes) >= 2
    return codes[PLACE[asked["nth"]]]


@both
def test_a_second_reader_agrees(phrases: str) -> None:
    for index in range(12):
        example = built("mrcr", phrases=phrases).example(index, 4096, count)
        assert (answer(example.document, example.question, SETS[phrases]),) == example.answers


@both
def test_the_evidence_alone_says_it(phrases: str) -> None:
    for index in range(20):
        example = built("mrcr", phrases=phrases).example(index, 2048, count)
        asked = read(SETS[phrases].asks, example.question, **slots(SETS[phrases]))
        assert asked
        heads, last = example.needles[:-1], example.needles[-1]
        assert all(f"{asked['kind']}" in one and asked["topic"] in one for one in heads)
        assert len(heads) == (PLACE[asked["nth"]] + 1 or 1)
        assert example.answers[0] in last


@both
def test_further_questions_agree_too(phrases: str) -> None:
    seen, written = set(), SETS[phrases]
    for seed in range(6):
        story = built("mrcr", body=20).story(random.Random(seed), written, 14)
        found = pieces("\n".join(story.passages), written)
        for one in story.questions:
            if one.kind in PLACE:
                assert (answer("\n".join(story.passages), one.text, written),) == one.answers
            elif one.kind == "only":
                asked = read(written.asks_only, one.text, **slots(written))
                assert asked
                assert [each[2] for each in found if each[:2] == (asked["kind"], asked["topic"])] == list(one.answers)
            else:
                assert (found[-1][2],) == one.answers
            seen.add(one.kind)
    assert seen == {*PLACE, "only", "final"}


@both
def test_a_piece_ends_with_what_is_asked_for(phrases: str) -> None:
    assert all(one.endswith("{code}.") for one in SETS[phrases].closings)


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="body must be at least 0"):
        built("mrcr", body=-1)
