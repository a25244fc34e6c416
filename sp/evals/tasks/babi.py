"""Where a thing is, after people moved about and passed it on: whoever holds it last took it along.

The idea is that of BABILong (arXiv 2406.10149; github.com/booydar/babilong, Apache-2.0), which hides the stories of
bAbI (arXiv 1502.05698) in other text; world, words and sentences are our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from sp.evals.base import register_task
from sp.evals.story import Question, Story, StoryTask
from sp.evals.text.filler import Sentence
from sp.evals.text.tables import ADJECTIVES, NOUNS, SYLLABLES, TOWNS, table

TABLES = table(__file__)

HELD_OUT_ROOMS = TABLES["held_out_rooms"]


@dataclass(frozen=True)
class BabiPhrases:
    """Words and frames of moves. `asks_thing`, `asks_holder`, `asks_person`, `asks_before`: frames with {what} or
    {who}: place of a thing, its holder, place of a person and the one before; `around`: frames with {who}, {what},
    {place}, {other} (a place), {how} and {number}, of what stands between the facts and tells of nobody's place;
    without any, prose does."""

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
    pairs = ((one, SYLLABLES[(at + shift) % len(SYLLABLES)]) for shift in shifts for at, one in enumerate(SYLLABLES))
    return tuple(sorted({f"{one}{other}".capitalize() for one, other in pairs if one != other}))


HELD_OUT = BabiPhrases(
    **TABLES["held_out"],
    people=_people(7, 19),
    things=tuple(
        f"{a} {b}" for a, b in zip(ADJECTIVES[::2], [one for one in NOUNS if one not in HELD_OUT_ROOMS], strict=False)
    ),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("annex", "terrace") * 11, strict=True))),
)

FRESH = BabiPhrases(
    **TABLES["fresh"],
    people=_people(12),
    things=tuple(
        f"{a} {b}"
        for a, b in zip(ADJECTIVES[1::2], [one for one in reversed(NOUNS) if one not in HELD_OUT_ROOMS], strict=False)
    ),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("quay", "lodge") * 11, strict=True))),
)
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""


FURTHER = 15  # questions of a story besides the first
NEAR = 2  # places in the order of telling by which what answers is parted from the thing's own mentions, where possible
EDGE = 8  # the last of so many parts of a story does not tell what is asked for, where possible


@dataclass
class World:
    """Who stands where, who holds what, and which sentence said so. `passages`: what happened, in order; `moves`: of
    every person, passage and place; `last`: of every thing, the passage that told of it last, its holder or whoever put
    it down, and whether it is held; `told`: all passages that mention it."""

    passages: list[str]
    moves: dict[str, list[tuple[int, str]]]
    last: dict[str, tuple[int, str, bool]]
    told: dict[str, list[int]]

    def place(self, thing: str) -> tuple[int, str]:
        """Passage and name of the place a thing is in: where its holder is, or was when it was put down."""
        at, who, held = self.last[thing]
        return next(move for move in reversed(self.moves[who]) if held or move[0] < at)


Ask = Callable[[random.Random, BabiPhrases, World, str], Question]  # makes a question about a thing or a person


@register_task("babi", suite="unmatched")
@dataclass(frozen=True)
class Babi(StoryTask):
    """Where a thing is: its last holder is one sentence, where that person went another one that does not name it.

    A thing that was put down stays where it is. Whoever takes or is given one is at its place first.
    """

    held_out: ClassVar[BabiPhrases] = HELD_OUT
    fresh: ClassVar[BabiPhrases] = FRESH
    spacing: ClassVar[int] = 160
    most: ClassVar[int] = 240

    def story(self, rng: random.Random, phrases: BabiPhrases, facts: int) -> Story:
        """See `StoryTask.story`; at least four facts."""
        world = simulate(rng, phrases, max(4, facts))
        judged = ask_thing(rng, phrases, world, choose_thing(rng, world))
        further: list[tuple[Ask, str]] = [(ask_thing, thing) for thing in world.last]
        further += [(ask_holder, thing) for thing, (_, _, held) in world.last.items() if held]
        further += [(ask_person, who) for who in world.moves]
        further += [(ask_before, who) for who, moves in world.moves.items() if len(moves) > 1]
        rng.shuffle(further)
        others = tuple(ask(rng, phrases, world, name) for ask, name in further[:FURTHER])
        return Story(tuple(world.passages), (judged, *others))

    def filler(self, rng: random.Random, phrases: BabiPhrases) -> Iterator[Sentence]:
        """Prose, or sentences with people, things and places of the same lists, where the phrases have such."""
        if not phrases.around:
            yield from super().filler(rng, phrases)
        while True:
            said = rng.choice(phrases.around).format(
                who=rng.choice(phrases.people),
                what=rng.choice(phrases.things),
                place=rng.choice(phrases.places),
                other=rng.choice(phrases.places),
                how=rng.choice(phrases.ways),
                number=rng.randrange(2, 2000),
            )
            yield Sentence(said[0].upper() + said[1:], rng.random() < 0.3)


def simulate(rng: random.Random, phrases: BabiPhrases, facts: int) -> World:
    """So many events; the first ones are a move and a thing taken."""
    people = rng.sample(phrases.people, min(len(phrases.people), 2 + facts // 5))
    things = rng.sample(phrases.things, min(len(phrases.things), 1 + facts // 6))
    world = World([], {}, {}, {})

    def tell(frames: tuple[str, ...], **slots: str) -> int:
        made = rng.choice(frames).format(how=rng.choice(phrases.ways), **slots)
        world.passages.append(made[0].upper() + made[1:])
        return len(world.passages) - 1

    def move(who: str, place: str) -> None:
        world.moves.setdefault(who, []).append((tell(phrases.moves, who=who, place=place), place))

    def handle(thing: str, at: int, who: str, held: bool) -> None:
        world.last[thing] = at, who, held
        world.told.setdefault(thing, []).append(at)

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
            _, holder, held = world.last[thing]
            if not held:
                bring(who, world.place(thing)[1])
                handle(thing, tell(phrases.takes, who=who, what=thing), who, True)
            elif event < 0.65:
                handle(thing, tell(phrases.drops, who=holder, what=thing), holder, False)
            elif who != holder:
                bring(who, stands(holder))
                handle(thing, tell(phrases.gives, who=holder, whom=who, what=thing), who, True)
    return world


def choose_thing(rng: random.Random, world: World) -> str:
    """A thing to ask for: one whose place is told apart from every mention of the thing, and not at the very end. What
    is told last is what counts, so without the second condition a prompt's end alone would often answer."""
    facts = len(world.passages)
    chosen = []
    for thing, told in world.told.items():
        at, _ = world.place(thing)
        if at < facts - facts // EDGE and min(abs(at - one) for one in told) > NEAR:
            chosen.append(thing)
    return rng.choice(chosen or list(world.last))


def ask_thing(rng: random.Random, phrases: BabiPhrases, world: World, thing: str) -> Question:
    """Where a thing is."""
    at, _, held = world.last[thing]
    move, place = world.place(thing)
    evidence = tuple(world.passages[one] for one in sorted((at, move)))
    text = rng.choice(phrases.asks_thing).format(what=thing)
    return Question(text, (place,), evidence, kind="thing held" if held else "thing put down")


def ask_holder(rng: random.Random, phrases: BabiPhrases, world: World, thing: str) -> Question:
    """Who holds a thing."""
    at, who, _ = world.last[thing]
    return Question(rng.choice(phrases.asks_holder).format(what=thing), (who,), (world.passages[at],), kind="holder")


def ask_person(rng: random.Random, phrases: BabiPhrases, world: World, who: str) -> Question:
    """Where a person is."""
    at, place = world.moves[who][-1]
    return Question(rng.choice(phrases.asks_person).format(who=who), (place,), (world.passages[at],), kind="person")


def ask_before(rng: random.Random, phrases: BabiPhrases, world: World, who: str) -> Question:
    """Where a person was before."""
    (before, place), (last, _) = world.moves[who][-2:]
    evidence = world.passages[before], world.passages[last]
    return Question(rng.choice(phrases.asks_before).format(who=who), (place,), evidence, kind="before")
