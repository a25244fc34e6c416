"""The closed world stays what instruments were trained on, and no letters lead from a thing to its kind."""

from __future__ import annotations

import random
import zlib
from importlib import import_module

import pytest
from story_cases import train

from sp.evals.text import tables as words
from sp.evals.text.filler import TOPICS
from sp.evals.text.world import RELATIONS, Relation


def test_it_is_the_same_everywhere() -> None:
    listed = "\n".join(f"{r.name} {thing} {kind}" for r in RELATIONS for thing, kind in r.of.items())
    assert listed.count("\n") + 1 == 2400
    assert zlib.crc32(listed.encode()) == 1484093612


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda one: one.name)
def test_a_relation(relation: Relation) -> None:
    assert len(relation.things) == len(set(relation.things)) == 600
    assert {relation.kind_of(thing) for thing in relation.things} == set(relation.kinds)
    assert all(list(relation.of.values()).count(kind) == 12 for kind in relation.kinds)
    threes = {kind.lower()[at : at + 3] for kind in relation.kinds for at in range(len(kind) - 2)}
    stems = [thing.split()[0].lower() for thing in relation.things]
    assert not [stem for stem in stems if any(stem[at : at + 3] in threes for at in range(len(stem) - 2))]
    known = {one.lower() for some in (words.NAMES, words.SURNAMES, words.NOUNS, words.TOWNS) for one in some}
    assert known.isdisjoint(stems)
    assert (known | set(TOPICS)).isdisjoint(kind.lower() for kind in relation.kinds)  # filler tells of no kind


@pytest.mark.parametrize("facts", [1, 6, 24])
def test_stories_that_teach_it(facts: int) -> None:
    train("nolima")  # puts the training phrases on the path
    story = import_module("phrases.world").world_story(random.Random(facts), facts)
    assert len(story.passages) == facts
    kinds = {thing.lower(): kind for relation in RELATIONS for thing, kind in relation.of.items()}
    told = 0
    for question in story.questions:
        named = [kind for thing, kind in kinds.items() if thing in question.text.lower()]
        assert named == list(question.answers)
        assert all(said in story.passages and named[0].lower() in said.lower() for said in question.evidence)
        told += len(question.evidence)
    assert told == facts <= len(story.questions)


def test_things_begin_each_in_its_own_way() -> None:
    begins = [thing[:5].lower() for relation in RELATIONS for thing in relation.things]
    assert len(begins) == len(set(begins))
