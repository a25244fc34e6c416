"""The task updates: the last value by a second reading of the text, unknown where nothing was told."""

from __future__ import annotations

import random
import re

import pytest
from story_cases import check, example, train

from sp.errors import ConfigError
from sp.evals.tasks.updates import HELD_OUT, UNKNOWN, Updates
from sp.evals.text.world import RELATIONS, Relation

STEMS = {thing.split()[0].lower(): thing for relation in RELATIONS for thing in relation.things}


def asked(question: str) -> tuple[Relation, str]:
    """The relation and kind that a question describes."""
    for relation in RELATIONS:
        for frame in HELD_OUT.by_kind[relation.name]:
            before, after = map(re.escape, frame.split("{kind}"))
            said = re.search(rf"{before}(\w+){after}(?:\W|$)", question, re.IGNORECASE)
            if said and said[1] in relation.kinds:
                return relation, said[1]
    raise AssertionError(question)


def values(document: str, relation: Relation, kind: str) -> list[tuple[str, str]]:
    """Every value that a thing of a kind was given, in order, with its sentence."""
    things = [relation.named(thing).lower() for thing in relation.things if relation.kind_of(thing) == kind]
    sentences = re.split(r"(?<=[.!?])\s", document)
    told = [one for one in sentences if any(re.search(rf"\b{thing}\b", one.lower()) for thing in things)]
    return [(found, one) for one in told for found in re.findall(r"\d+", one)]


@pytest.mark.parametrize("index", range(6))
def test_the_last_one_counts(index: int) -> None:
    one = example("updates", index, never=0)
    check(one, 2048)
    assert one == example("updates", index, never=0)
    found = values(one.document, *asked(one.question))
    assert len(found) >= 2
    assert found[-1] == (one.answers[0], one.needles[0])


def test_what_was_never_told_is_unknown() -> None:
    for index in range(4):
        one = example("updates", index, never=1)
        relation, kind = asked(one.question)
        assert one.answers == (UNKNOWN,)
        assert one.facts["kind"] == "never"
        assert values(one.document, relation, kind) == []
        assert one.needles
        assert all(one.document.count(text) == 1 for text in one.needles)
    kinds = [Updates().story(random.Random(at), HELD_OUT, 6).questions[0].kind for at in range(960)]
    assert 8 <= kinds.count("never") <= 36
    with pytest.raises(ConfigError, match="never must be at least 0"):
        Updates(never=-1)


@pytest.mark.parametrize("facts", [1, 2, 3, 6, 24, 160])
def test_every_question_of_a_story(facts: int) -> None:
    for phrases in (HELD_OUT, train("updates")):
        story = Updates().story(random.Random(facts), phrases, facts)
        assert len(story.passages) == facts
        last: dict[str, str] = {}
        for text in story.passages:
            thing = next(STEMS[word] for word in re.findall(r"\w+", text.lower()) if word in STEMS)
            last[thing] = text
            value = re.findall(r"\d+", text)
            assert len(value) == 1
        for question in story.questions:
            if question.kind.startswith("last"):
                assert question.evidence[0] in last.values()
            if question.kind == "often":
                thing = next(STEMS[word] for word in re.findall(r"\w+", question.text.lower()) if word in STEMS)
                stem = thing.split()[0].lower()
                told = [text for text in story.passages if stem in re.findall(r"\w+", text.lower())]
                assert question.answers == (str(len(told)),)
                assert set(question.evidence) == set(told)
            elif not question.kind.startswith("never"):
                assert question.answers[0].lower() in question.evidence[0].lower()


def test_a_value_that_is_said_to_rise_rises() -> None:
    ups = re.compile("climbed|is up at|moved .* up to|has risen|^up to|put .* up to", re.IGNORECASE)
    downs = re.compile("dropped|is down at|moved .* down to|has sunk|^down to|put .* down to", re.IGNORECASE)
    seen, rises, falls = dict[str, int](), 0, 0
    for seed in range(20):
        seen.clear()
        for text in Updates().story(random.Random(seed), HELD_OUT, 24).passages:
            thing = next(STEMS[word] for word in re.findall(r"\w+", text.lower()) if word in STEMS)
            value = int(re.findall(r"\d+", text)[0])
            up, down = bool(ups.search(text)), bool(downs.search(text))
            assert not up or value > seen[thing]
            assert not down or value <= seen[thing]
            rises, falls, seen[thing] = rises + up, falls + down, value
    assert min(rises, falls) > 20


def test_nothing_but_order_tells_what_is_last() -> None:
    frames = (*HELD_OUT.stated, *HELD_OUT.raised, *HELD_OUT.lowered, *HELD_OUT.before, *HELD_OUT.after)
    assert not [one for one in frames if re.search("day|week|month|morning|noon|evening|night|ago", one)]


def test_a_value_is_told_once() -> None:
    for seed in range(4):
        found = re.findall(r"\d+", " ".join(Updates().story(random.Random(seed), HELD_OUT, 160).passages))
        assert len(set(found)) == len(found) == 160
