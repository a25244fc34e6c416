"""A closed world: some 2,400 things, each of one kind, written down by a small generator, the same on every machine.

An instrument learns it by heart (the tower stands in that city, the tool serves that craft), so that a question can
name the kind and a text the thing, and no word leads from one to the other. Only the world is shared between training
and examples; persons, phrases and texts are not. Below, how stories are told: names of persons, and frames that become
sentences.
"""

# ruff: noqa: SIM905
from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

SEED = 20_261
THINGS = 600
KINDS = 50  # things of a relation, and kinds

ONSETS = "b br c d dr f fr g gr j n p pl pr qu r v w z".split()
CODAS = "b bb ck d ff g gg m nd nk nx pp sh sk v x zz".split()  # how the syllables of a thing begin and end

CRAFTS = """bleaching bottling brewing carving caulking churning climbing combing cooking digging drawing
drilling dyeing engraving farming felling fishing fletching forging gardening gilding glazing grinding
hunting joining knitting mending milking mining mowing painting plastering plumbing polishing printing
reaping roofing sewing shearing skating smelting spinning surgery swimming tanning thatching threshing
weaving welding whittling""".split()
GOODS = """amber barley brass burlap cement charcoal cheese clay cocoa coffee copper coral cotton feathers flour fruit
furs glass glue grain granite herbs honey ink ivory leather linen marble milk oil paper pearls pepper perfume
potash rice rope rubber salt silk slate soap spices steel sugar tea timber tobacco wine wool""".split()
BUILDINGS = """Tower Bridge Arch Gate Fountain Chapel Mill Lighthouse Obelisk Palace Theatre Market Temple Castle
Museum""".split()
HOUSES = ("Brothers", "Works", "Partners", "Company", "Sons")


@dataclass(frozen=True)
class Relation:
    """Things of one sort, each of one kind. `name`: the sort: what a thing of it is; `genus`: what its kinds are;
    `article`: what stands before a thing that is named, with a space; may be empty; `of`: kind of every thing."""

    name: str
    genus: str
    article: str
    kinds: tuple[str, ...]
    of: dict[str, str] = field(repr=False, hash=False)
    things: tuple[str, ...] = field(init=False, repr=False, hash=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "things", tuple(self.of))

    def kind_of(self, thing: str) -> str:
        """The kind of a thing; KeyError for what is none."""
        return self.of[thing]

    def named(self, thing: str) -> str:
        """The thing as a sentence names it."""
        return self.article + thing


def runs(text: str, n: int = 3) -> set[str]:
    """Every run of `n` letters in the words of a text."""
    return {one[at : at + n] for one in text.lower().split() for at in range(len(one) - n + 1)}


def invented(draw: Callable[[], str], amount: int, apart: set[str], used: set[str]) -> list[str]:
    """So many new words; none holds a run of letters of `apart`, or begins with five letters of a word before it."""
    found: list[str] = []
    while len(found) < amount:
        one = draw()
        if one[:5] not in used and runs(one).isdisjoint(apart):
            used.add(one[:5])
            found.append(one)
    return found


def build() -> tuple[Relation, ...]:
    """The relations, from the seed alone."""
    rng, used = random.Random(SEED), set[str]()
    choose = rng.choice

    def places(ends: Sequence[str]) -> list[str]:
        def draw() -> str:
            return choose("hklmsty") + choose("aeou") + choose("lnr") + choose("bdkpt") + choose(ends)

        return [one.capitalize() for one in invented(draw, KINDS, set(), used)]

    def stem() -> str:
        return choose(ONSETS) + choose("aeio") + choose("lmnrv") + choose(ONSETS) + choose("aeio") + choose(CODAS)

    def relation(name: str, genus: str, article: str, kinds: Sequence[str], tails: Sequence[str] = ()) -> Relation:
        stems = invented(stem, THINGS, set().union(*map(runs, kinds)), used)
        things = [f"{one.capitalize()} {choose(tails)}" if tails else one for one in stems]
        return Relation(name, genus, article, tuple(kinds), {one: kinds[at % KINDS] for at, one in enumerate(things)})

    return (
        relation("landmark", "city", "the ", places(("a", "os", "ey", "ow", "une")), BUILDINGS),
        relation("tool", "craft", "the ", CRAFTS),
        relation("dish", "country", "", places(("ia", "istan", "mark", "eth", "uay"))),
        relation("firm", "trade", "", GOODS, HOUSES),
    )


RELATIONS = build()
"""Landmarks and their cities, tools and their crafts, dishes and their countries, firms and the goods they trade in."""


def people(
    rng: random.Random, first: Sequence[str], last: Sequence[str], amount: int, apart: Collection[str] = ()
) -> list[str]:
    """So many different names, first and last, without a word of `apart`; the first alone where the last is empty."""
    found: dict[str, None] = {}
    while len(found) < amount:
        name = f"{rng.choice(first)} {rng.choice(last)}".strip()
        if not apart or not any(word in apart for word in name.split()):
            found.setdefault(name)
    return list(found)


def capital(text: str) -> str:
    """The text with a capital letter."""
    return text[:1].upper() + text[1:]


def tell(rng: random.Random, frame: str, before: Sequence[str], after: Sequence[str], **slots: object) -> str:
    """A sentence: what it begins with, the frame with its slots filled, what it ends with, and a full stop.

    >>> tell(random.Random(0), "{who} sings", ["by all accounts "], [" at noon"], who="Eve")
    'By all accounts Eve sings at noon.'
    """
    return capital(f"{rng.choice(before)}{frame.format(**slots)}{rng.choice(after)}.")
