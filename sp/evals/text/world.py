"""A closed world: about 2,400 things, each of one kind, from a small generator, the same on every machine.

An evaluation pair memorises it (the city of a tower, the craft of a tool), so that a question can name the kind and a
text the thing, without words in common. Only the world is shared between training and examples; persons, phrases and
texts are not. The module also has the names of persons, and makes sentences from frames.
"""

# ruff: noqa: SIM905
from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

SEED = 20_261
THINGS = 600
KINDS = 50  # number of things of a relation, and of kinds

ONSETS = "b br c d dr f fr g gr j n p pl pr qu r v w z".split()
CODAS = "b bb ck d ff g gg m nd nk nx pp sh sk v x zz".split()  # beginnings and ends of the syllables of a thing

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
    """Things of one sort, each of one kind.

    Attributes
    ----------
    name : str
        The sort, such as landmark.
    genus : str
        The sort of its kinds, such as city.
    article : str
        Text before the name of a thing in a sentence, with a space; may be empty.
    kinds : tuple of str
        All kinds.
    of : dict of str to str
        Kind of every thing.
    """

    name: str
    genus: str
    article: str
    kinds: tuple[str, ...]
    of: dict[str, str] = field(repr=False, hash=False)
    things: tuple[str, ...] = field(init=False, repr=False, hash=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "things", tuple(self.of))

    def kind_of(self, thing: str) -> str:
        """Return the kind of a thing; KeyError if there is no such thing."""
        return self.of[thing]

    def named(self, thing: str) -> str:
        """Return the thing with its article, for a sentence."""
        return self.article + thing


def runs(text: str, n: int = 3) -> set[str]:
    """Return every run of `n` letters in the words of a text."""
    return {word[start : start + n] for word in text.lower().split() for start in range(len(word) - n + 1)}


def invented(draw: Callable[[], str], amount: int, apart: set[str], used: set[str]) -> list[str]:
    """Draw new words without the runs of letters in `apart`, and with first five letters that are not in `used`."""
    words: list[str] = []
    while len(words) < amount:
        word = draw()
        if word[:5] not in used and runs(word).isdisjoint(apart):
            used.add(word[:5])
            words.append(word)
    return words


def build() -> tuple[Relation, ...]:
    """Build the relations, from the seed alone."""
    rng, used = random.Random(SEED), set[str]()
    choose = rng.choice

    def places(ends: Sequence[str]) -> list[str]:
        def draw() -> str:
            return choose("hklmsty") + choose("aeou") + choose("lnr") + choose("bdkpt") + choose(ends)

        return [word.capitalize() for word in invented(draw, KINDS, set(), used)]

    def stem() -> str:
        return choose(ONSETS) + choose("aeio") + choose("lmnrv") + choose(ONSETS) + choose("aeio") + choose(CODAS)

    def relation(name: str, genus: str, article: str, kinds: Sequence[str], tails: Sequence[str] = ()) -> Relation:
        stems = invented(stem, THINGS, set().union(*map(runs, kinds)), used)
        things = [f"{word.capitalize()} {choose(tails)}" if tails else word for word in stems]
        return Relation(
            name, genus, article, tuple(kinds), {word: kinds[number % KINDS] for number, word in enumerate(things)}
        )

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
    """Draw different names, first and last, without the words in `apart`; an empty last name is omitted."""
    names: dict[str, None] = {}
    while len(names) < amount:
        name = f"{rng.choice(first)} {rng.choice(last)}".strip()
        if not apart or not any(word in apart for word in name.split()):
            names.setdefault(name)
    return list(names)


def capital(text: str) -> str:
    """Return the text with a capital letter."""
    return text[:1].upper() + text[1:]


def tell(rng: random.Random, frame: str, before: Sequence[str], after: Sequence[str], **slots: object) -> str:
    """Make a sentence: a beginning, the frame with its slots filled, an end, and a full stop.

    >>> tell(random.Random(0), "{who} sings", ["by all accounts "], [" at noon"], who="Eve")
    'By all accounts Eve sings at noon.'
    """
    return capital(f"{rng.choice(before)}{frame.format(**slots)}{rng.choice(after)}.")
