"""Where a thing is: the story is replayed from the text alone."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module

import pytest
from story_cases import built, count, pattern, read, train

from sp.evals.story import StoryQuestion
from sp.evals.tasks.babi import FRESH, HELD_OUT, BabiPhrases
from sp.evals.text.tables import ADJECTIVES, NOUNS

SETS = {"held_out": HELD_OUT, "fresh": FRESH}
both = pytest.mark.parametrize("phrases", SETS)


class Reading:
    """A set of phrases as patterns: slots, names of persons, and events with their kinds."""

    def __init__(self, phrases: BabiPhrases) -> None:
        who = "|".join(phrases.people)
        self.phrases, self.person = phrases, re.compile(rf"\b(?:{who})\b")
        self.slots = {"who": who, "whom": who, "what": "|".join(phrases.things), "place": "|".join(phrases.places)}
        how = r"(?i:" + "|".join(phrases.ways) + ")"
        self.events = [
            (kind, re.compile(pattern(frame, **self.slots, how=how)))
            for kind in ("moves", "takes", "drops", "gives")
            for frame in getattr(phrases, kind)
        ]


READINGS = {name: Reading(phrases) for name, phrases in SETS.items()}


@dataclass
class Replay:
    """State of the world after the events so far: places of people, holders of things, places of things put down."""

    stays: dict[str, list[str]] = field(default_factory=dict)
    holds: dict[str, str] = field(default_factory=dict)
    lies: dict[str, str] = field(default_factory=dict)

    def event(self, kind: str, who: str = "", whom: str = "", what: str = "", place: str = "") -> None:
        """What happens next; things that lie about or change hands are where the taker is."""
        if kind == "moves":
            assert self.stays.get(who, [""])[-1] != place
            self.stays.setdefault(who, []).append(place)
        elif kind == "takes":
            assert what not in self.holds
            assert self.lies.pop(what, self.stays[who][-1]) == self.stays[who][-1]
            self.holds[what] = who
        elif kind == "drops":
            assert self.holds.pop(what) == who
            self.lies[what] = self.stays[who][-1]
        else:
            assert self.holds[what] == who
            assert self.stays[who][-1] == self.stays[whom][-1]
            self.holds[what] = whom

    def where(self, what: str) -> str:
        """Place of a thing."""
        return self.lies[what] if what in self.lies else self.stays[self.holds[what]][-1]


def replayed(text: str, reading: Reading) -> Replay:
    """The world after every event of a text."""
    world = Replay()
    for sentence in re.split(r"(?<=[.?!])\s+", text):
        if not reading.person.search(sentence):
            continue
        matches = [(kind, one.fullmatch(sentence)) for kind, one in reading.events]
        [(kind, slots)] = [(kind, match.groupdict()) for kind, match in matches if match]
        del slots["how"]
        world.event(kind, **slots)
    return world


def answer(world: Replay, question: str, kind: str, reading: Reading) -> str:
    """What a reader who knows the whole story says."""
    phrases, slots = reading.phrases, reading.slots
    if kind in ("thing held", "thing put down"):
        asked = read(phrases.asks_thing, question, **slots)
        assert asked
        assert (asked["what"] in world.holds) == (kind == "thing held")
        return world.where(asked["what"])
    frames = {"holder": phrases.asks_holder, "person": phrases.asks_person, "before": phrases.asks_before}[kind]
    asked = read(frames, question, **slots)
    assert asked
    if kind == "holder":
        return world.holds[asked["what"]]
    return world.stays[asked["who"]][-1 if kind == "person" else -2]


@both
def test_a_second_reader_agrees(phrases: str) -> None:
    kinds, reading = set(), READINGS[phrases]
    for index in range(16):
        example = built("babi", phrases=phrases).example(index, 4096, count)
        kinds.add(example.facts["kind"])
        world = replayed(example.document, reading)
        assert (answer(world, example.question, example.facts["kind"], reading),) == example.answers
    assert kinds == {"thing held", "thing put down"}


@both
def test_further_questions_agree_too(phrases: str) -> None:
    seen, reading = set(), READINGS[phrases]
    for seed in range(8):
        story = built("babi").story(random.Random(seed), SETS[phrases], 40)
        world = replayed("\n".join(story.passages), reading)
        for one in story.questions:
            assert (answer(world, one.text, one.kind, reading),) == one.answers
            seen.add(one.kind)
    assert seen == {"thing held", "thing put down", "holder", "person", "before"}


@both
def test_the_evidence_alone_says_it(phrases: str) -> None:
    def told(one: StoryQuestion) -> str:
        matches = [(kind, frame.fullmatch(text)) for text in one.evidence for kind, frame in READINGS[phrases].events]
        events = [(kind, match.groupdict()) for kind, match in matches if match]
        assert len(events) == 2
        [place] = [slots["place"] for kind, slots in events if kind == "moves"]
        [holder] = [slots.get("whom") or slots["who"] for kind, slots in events if kind != "moves"]
        [mover] = [slots["who"] for kind, slots in events if kind == "moves"]
        assert holder == mover
        return place

    for seed in range(20):
        judged = built("babi").story(random.Random(seed), SETS[phrases], 30).questions[0]
        assert (told(judged),) == judged.answers


def test_every_shape_of_a_place_is_trained_in_other_names() -> None:
    def shape(place: str) -> tuple[bool, ...]:
        return tuple(word[0].isupper() for word in place.split())

    trained = Counter(map(shape, train("babi").places))
    assert min(trained[shape(one)] for one in (*HELD_OUT.places, *FRESH.places)) >= 800


def test_no_name_is_a_plain_trained_word() -> None:
    assert not {*HELD_OUT.things, *HELD_OUT.places, *FRESH.things, *FRESH.places, *NOUNS, *ADJECTIVES} & set(
        import_module("phrases.plain").PLAIN
    )
