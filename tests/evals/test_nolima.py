"""The task nolima: one person fits by the world, and no name of it was trained."""

from __future__ import annotations

import random
import re

import pytest
from story_cases import check, example, train

from sp.evals.tasks.nolima import HELD_OUT, Nolima
from sp.evals.text.world import RELATIONS, Relation


def asked(question: str) -> tuple[Relation, str]:
    """What a question asks for, by the frames alone."""
    found = []
    for relation in RELATIONS:
        for frame in HELD_OUT.asked[relation.name]:
            before, after = map(re.escape, frame.split("{kind}"))
            found += [(relation, said[1]) for said in [re.fullmatch(f"{before}(.+){after}", question)] if said]
    return next((relation, kind) for relation, kind in found if kind in relation.kinds)


def whose(document: str, relation: Relation, kind: str) -> list[str]:
    """Sentences of a text that name a thing of a kind."""
    things = [relation.named(thing) for thing in relation.things if relation.kind_of(thing) == kind]
    sentences = re.split(r"(?<=[.!?])\s", document)
    return [one for one in sentences if any(thing.lower() in one.lower() for thing in things)]


@pytest.mark.parametrize("index", range(6))
def test_one_person_fits(index: int) -> None:
    one = example("nolima", index)
    check(one, 2048)
    assert one == example("nolima", index)
    assert whose(one.document, *asked(one.question)) == list(one.needles)
    assert one.answers[0] in one.needles[0]


@pytest.mark.parametrize("facts", [1, 2, 3, 6, 24, 160])
def test_every_question_of_a_story(facts: int) -> None:
    for phrases in (HELD_OUT, train("nolima")):
        story = Nolima().story(random.Random(facts), phrases, facts)
        assert len(story.passages) == facts
        text = " ".join(story.passages)
        for question in story.questions:
            assert all(text.count(said) == 1 for said in question.evidence)
            answer, kind = question.answers[0], question.kind
            if kind in ("kind_by_who", "known"):
                of = {r.named(thing).lower(): k for r in RELATIONS for thing, k in r.of.items()}
                told = question.evidence[0] if question.evidence else question.text
                assert answer in {k for thing, k in of.items() if thing in told.lower()}
            else:
                assert answer.lower() in question.evidence[0].lower()


def test_names_are_held_out() -> None:
    rng, phrases = random.Random(0), train("nolima")
    for ours, theirs in ((HELD_OUT.first, phrases.first), (HELD_OUT.last, phrases.last)):
        drawn = {rng.choice(theirs).lower() for _ in range(20_000)}
        assert len(drawn) > 10_000
        assert drawn.isdisjoint(one.lower() for one in ours)
