"""Task `babi`: the place of a thing after people have moved and passed it on; its last holder took it along.

The idea is that of BABILong (arXiv 2406.10149; github.com/booydar/babilong, Apache-2.0), which hides the stories of
bAbI (arXiv 1502.05698) in other text; world, words and sentences are our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from sp.evals.base import register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
from sp.evals.text.filler import Sentence
from sp.evals.text.tables import ADJECTIVES, NOUNS, SYLLABLES, TOWNS, table

TABLES = table(__file__)

HELD_OUT_ROOMS = TABLES["held_out_rooms"]


@dataclass(frozen=True)
class BabiPhrases:
    """Words and frames of moves.

    `asks_thing`, `asks_holder`, `asks_person` and `asks_before` are frames of questions with {what} or {who}: for the
    place of a thing, its holder, the place of a person and the place before that. `around` are frames with {who},
    {what}, {place}, {other} (a place), {how} and {number} for the text between the facts, which says nothing about
    places; if empty, that text is prose.
    """

    people: tuple[str, ...]  # people, things, places: things and places without an article
    things: tuple[str, ...]
    places: tuple[str, ...]
    ways: tuple[str, ...]  # what {how} stands for in any frame of a fact
    moves: tuple[str, ...]  # moves, takes, drops: frames with {who}, and {place} or {what}
    takes: tuple[str, ...]
    drops: tuple[str, ...]
    gives: tuple[str, ...]  # frames with {who}, {what} and {whom}
    asks_thing: tuple[str, ...]
    asks_holder: tuple[str, ...]
    asks_person: tuple[str, ...]
    asks_before: tuple[str, ...]
    around: tuple[str, ...] = ()


def _people(*shifts: int) -> tuple[str, ...]:
    pairs = (
        (first, SYLLABLES[(index + shift) % len(SYLLABLES)])
        for shift in shifts
        for index, first in enumerate(SYLLABLES)
    )
    return tuple(sorted({f"{first}{second}".capitalize() for first, second in pairs if first != second}))


HELD_OUT = BabiPhrases(
    **TABLES["held_out"],
    people=_people(7, 19),
    things=tuple(
        f"{a} {b}"
        for a, b in zip(ADJECTIVES[::2], [noun for noun in NOUNS if noun not in HELD_OUT_ROOMS], strict=False)
    ),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("annex", "terrace") * 11, strict=True))),
)

FRESH = BabiPhrases(
    **TABLES["fresh"],
    people=_people(12),
    things=tuple(
        f"{a} {b}"
        for a, b in zip(
            ADJECTIVES[1::2], [noun for noun in reversed(NOUNS) if noun not in HELD_OUT_ROOMS], strict=False
        )
    ),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("quay", "lodge") * 11, strict=True))),
)
"""A second set, written later and without knowledge of the training data: training data up to part 15 cannot depend on
it. The authors of later parts had seen it; a filter keeps its frames out of them."""


FURTHER = 15  # questions of a story besides the first
NEAR = 2  # least distance, in passages, between the answer and any mention of the thing, where possible
EDGE = 8  # the answer is not in the last 1 / EDGE of a story, where possible


@dataclass
class World:
    """The state of a story.

    Attributes
    ----------
    passages : list of str
        Events in order.
    moves : dict of str to list of (int, str)
        By person, the passage and the place of each move.
    last : dict of str to (int, str, bool)
        By thing, its last passage, the person who holds it or put it down, and True if it is held.
    mentions : dict of str to list of int
        By thing, all passages that mention it.
    """

    passages: list[str]
    moves: dict[str, list[tuple[int, str]]]
    last: dict[str, tuple[int, str, bool]]
    mentions: dict[str, list[int]]

    def place(self, thing: str) -> tuple[int, str]:
        """Return passage and name of a thing's place: that of its holder, or of the person when it was put down."""
        last_passage, who, is_held = self.last[thing]
        return next(move for move in reversed(self.moves[who]) if is_held or move[0] < last_passage)


Ask = Callable[[random.Random, BabiPhrases, World, str], StoryQuestion]  # makes a question about a thing or a person


@register_task("babi", suite="unmatched")
@dataclass(frozen=True)
class Babi(StoryTask):
    """The place of a thing: one sentence gives its last holder, another, without the thing, where that person went.

    A thing that was put down stays at its place. People who take or get a thing go to its place first.
    """

    held_out: ClassVar[BabiPhrases] = HELD_OUT
    fresh: ClassVar[BabiPhrases] = FRESH
    spacing: ClassVar[int] = 160
    most: ClassVar[int] = 240

    def story(self, rng: random.Random, phrases: BabiPhrases, facts: int) -> Story:
        """Simulate at least four events, and ask for the place of a thing."""
        world = simulate(rng, phrases, max(4, facts))
        judged = ask_thing(rng, phrases, world, choose_thing(rng, world))
        further: list[tuple[Ask, str]] = [(ask_thing, thing) for thing in world.last]
        further += [(ask_holder, thing) for thing, (_, _, is_held) in world.last.items() if is_held]
        further += [(ask_person, who) for who in world.moves]
        further += [(ask_before, who) for who, moves in world.moves.items() if len(moves) > 1]
        rng.shuffle(further)
        others = tuple(ask(rng, phrases, world, name) for ask, name in further[:FURTHER])
        return Story(tuple(world.passages), (judged, *others))

    def filler(self, rng: random.Random, phrases: BabiPhrases) -> Iterator[Sentence]:
        """Yield sentences with people, things and places of the same lists, or prose if the phrases have none."""
        if not phrases.around:
            yield from super().filler(rng, phrases)
        while True:
            sentence = rng.choice(phrases.around).format(
                who=rng.choice(phrases.people),
                what=rng.choice(phrases.things),
                place=rng.choice(phrases.places),
                other=rng.choice(phrases.places),
                how=rng.choice(phrases.ways),
                number=rng.randrange(2, 2000),
            )
            yield Sentence(sentence[0].upper() + sentence[1:], rng.random() < 0.3)


def simulate(rng: random.Random, phrases: BabiPhrases, facts: int) -> World:
    """Simulate a number of events; the first ones are a move and a thing that is taken."""
    people = rng.sample(phrases.people, min(len(phrases.people), 2 + facts // 5))
    things = rng.sample(phrases.things, min(len(phrases.things), 1 + facts // 6))
    world = World([], {}, {}, {})

    def tell(frames: tuple[str, ...], **slots: str) -> int:
        sentence = rng.choice(frames).format(how=rng.choice(phrases.ways), **slots)
        world.passages.append(sentence[0].upper() + sentence[1:])
        return len(world.passages) - 1

    def move(who: str, place: str) -> None:
        world.moves.setdefault(who, []).append((tell(phrases.moves, who=who, place=place), place))

    def handle(thing: str, passage: int, who: str, is_held: bool) -> None:
        world.last[thing] = passage, who, is_held
        world.mentions.setdefault(thing, []).append(passage)

    def stands(who: str) -> str:
        return world.moves[who][-1][1] if who in world.moves else ""

    def wander(who: str) -> None:
        move(who, rng.choice([place for place in rng.sample(phrases.places, 2) if place != stands(who)]))

    def bring(who: str, place: str) -> None:
        if stands(who) != place:
            move(who, place)

    wander(people[0])
    handle(things[0], tell(phrases.takes, who=people[0], what=things[0]), people[0], True)
    while len(world.passages) < facts:
        event, who, thing = rng.random(), rng.choice(people), rng.choice(things)
        if event < 0.5 or who not in world.moves:
            wander(who)
        elif thing not in world.last:
            handle(thing, tell(phrases.takes, who=who, what=thing), who, True)
        elif len(world.passages) + 2 <= facts:
            _, holder, is_held = world.last[thing]
            if not is_held:
                bring(who, world.place(thing)[1])
                handle(thing, tell(phrases.takes, who=who, what=thing), who, True)
            elif event < 0.65:
                handle(thing, tell(phrases.drops, who=holder, what=thing), holder, False)
            elif who != holder:
                bring(who, stands(holder))
                handle(thing, tell(phrases.gives, who=holder, whom=who, what=thing), who, True)
    return world


def choose_thing(rng: random.Random, world: World) -> str:
    """Choose a thing whose place is in a passage far from all mentions of the thing, and not at the end of the story.

    Later events override earlier ones, so without the second condition a prompt's end alone would often be enough.
    """
    facts = len(world.passages)
    chosen = []
    for thing, mentions in world.mentions.items():
        passage, _ = world.place(thing)
        if passage < facts - facts // EDGE and min(abs(passage - mention) for mention in mentions) > NEAR:
            chosen.append(thing)
    return rng.choice(chosen or list(world.last))


def ask_thing(rng: random.Random, phrases: BabiPhrases, world: World, thing: str) -> StoryQuestion:
    """Ask for the place of a thing."""
    passage, _, is_held = world.last[thing]
    move, place = world.place(thing)
    evidence = tuple(world.passages[number] for number in sorted((passage, move)))
    text = rng.choice(phrases.asks_thing).format(what=thing)
    return StoryQuestion(text, (place,), evidence, kind="thing held" if is_held else "thing put down")


def ask_holder(rng: random.Random, phrases: BabiPhrases, world: World, thing: str) -> StoryQuestion:
    """Ask for the holder of a thing."""
    passage, who, _ = world.last[thing]
    return StoryQuestion(
        rng.choice(phrases.asks_holder).format(what=thing), (who,), (world.passages[passage],), kind="holder"
    )


def ask_person(rng: random.Random, phrases: BabiPhrases, world: World, who: str) -> StoryQuestion:
    """Ask for the place of a person."""
    passage, place = world.moves[who][-1]
    return StoryQuestion(
        rng.choice(phrases.asks_person).format(who=who), (place,), (world.passages[passage],), kind="person"
    )


def ask_before(rng: random.Random, phrases: BabiPhrases, world: World, who: str) -> StoryQuestion:
    """Ask for the place of a person before the last move."""
    (before, place), (last, _) = world.moves[who][-2:]
    evidence = world.passages[before], world.passages[last]
    return StoryQuestion(rng.choice(phrases.asks_before).format(who=who), (place,), evidence, kind="before")
