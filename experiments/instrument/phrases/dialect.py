"""A dialect: the few frames, names and words that one document and all text around its stories are written in.

Held-out documents are like that: seven ways to write a function and thirty verbs, in stories and filler alike. A story
told in thousands of frames, among filler that shares no name with it, is found by what it looks like; in a dialect
only the name that is asked for tells passages apart. Odd words in place of some words of the frames make more of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sp.evals.tasks.code import HELD_OUT as CODE
from sp.evals.tasks.json import HELD_OUT, LARGEST, TOPS
from sp.evals.text import tables as words

from .crowd import PARTS, crowded
from .expand import NOISE, held
from .json import ENGLISH
from .names_b import coined
from .wide import TAKEN, Spliced

SLOTS = re.compile(r"(\{\w*\}|\{\{|\}\})")
WORD = re.compile(r"[A-Za-z]{2,}")
LEAST, MOST = 16, 240
"""Facts of a story that a dialect has names for."""
INDENTS = ("", " ", "   ", "    ", "    ", "     ", "      ", "        ", "\t", "\t\t", "> ", "| ")
FRAMES = {
    "fact": (),
    "nolima": ("facts", "before", "after"),
    "updates": ("stated", "raised", "lowered", "before", "after"),
    "multi_session": ("headers", "links", "facts", "before", "after"),
    "code": ("functions", "constants", "statements", "remarks", "calls", "function_names", "constant_names"),
    "json": ("layouts",),
}
"""By task, what a dialect has few of; questions stay as many as they are."""
LISTS = {"code": ("others", "locals")}
"""By task, words that story and filler share besides the parts of names."""
SPELT = {
    "fact": PARTS["fact"],
    "code": (*PARTS["code"], "others"),
    "json": ("names", "vocabularies", "tops"),
}
"""By task, what is now and then made of words of the dialect's own."""
OWN_WORDS = 0.6
"""Of dialects, those with words of their own."""
APART = {*TAKEN, *words.ADJECTIVES, *words.VERBS, *held(HELD_OUT.vocabularies), *HELD_OUT.tops, *CODE.locals}
POOL = Spliced([word for word in ENGLISH if word not in APART], APART)
"""Ordinary words and what they splice into: most of several tokens, as words are that no training drew."""
ODD_ONES = [word for word in NOISE if word not in APART]
MEANT = frozenset({"stated", "raised", "lowered", "links", "facts"})
"""Frames whose words mean something: fewer of them are exchanged."""


def some(rng: random.Random, least: int, most: int) -> int:
    """A number in between; small ones as likely as large ones."""
    return round(least * (most / least) ** rng.random())


def few(values: Sequence[Any], rng: random.Random, least: int, most: int) -> tuple[Any, ...]:
    """Some of the values."""
    return tuple(rng.sample(values, min(some(rng, least, most), len(values))))


def spoken(rng: random.Random, share: float) -> Callable[[str], str]:
    """Exchanges a share of the words outside of slots, the same ones everywhere.

    Examples
    --------
    >>> spoken(random.Random(0), 0.0)("def {name}()")
    'def {name}()'
    >>> other = spoken(random.Random(0), 1.0)
    >>> other("get {name}") == other("get {name}") != "get {name}"
    True
    """
    known: dict[str, str] = {}

    def exchange(found: re.Match[str]) -> str:
        word = found.group()
        if word not in known:
            other = rng.choice(ODD_ONES) if rng.random() < 0.6 else coined(rng).lower()
            known[word] = (other.capitalize() if word[0].isupper() else other) if rng.random() < share else word
        return known[word]

    return lambda frame: "".join(
        part if at % 2 else WORD.sub(exchange, part) for at, part in enumerate(SLOTS.split(frame))
    )


def spelt(rng: random.Random, size: int) -> list[str]:
    """So many different words, none in another list of the dialect."""
    found: dict[str, None] = {}
    while len(found) < size:
        found.setdefault(POOL[rng.getrandbits(39)])
    return list(found)


def own(name: str, parts: Sequence[str], rng: random.Random) -> dict[str, Any]:
    """Words of the dialect's own for what is made of words."""
    size = some(rng, 24, 200)
    found = spelt(rng, size * (len(parts) + 1))
    lists = {part: tuple(found[at * size : (at + 1) * size]) for at, part in enumerate(parts)}
    if name == "json":
        groups = [rng.sample(lists["vocabularies"], LARGEST) for _ in range(8)]
        lists |= {
            "names": (lists["names"], tuple(found[-size:])),
            "vocabularies": tuple(map(tuple, groups)),
            "tops": lists["tops"][: LARGEST + TOPS + rng.randrange(6)],
        }
    return lists


def dialect(name: str, phrases: Any, rng: random.Random) -> tuple[Any, int]:
    """Phrases of a task in a dialect, and how many facts their names suffice for."""
    facts = some(rng, LEAST, MOST)
    share = rng.choice((0.0, rng.random() ** 2))
    said, meant = spoken(rng, share), spoken(rng, min(share, 0.15))
    if name in SPELT and rng.random() < OWN_WORDS:
        phrases = replace(phrases, **own(name, SPELT[name], rng))

    def drawn(part: str, values: Any) -> Any:
        if isinstance(values, dict):
            return {kind: drawn(part, frames) for kind, frames in values.items()}
        chosen = few(values, rng, *((3, 60) if part in ("before", "after") else (1, 12)))
        say = meant if part in MEANT else said
        return tuple(map(say, chosen)) if isinstance(chosen[0], str) else chosen

    parts = {part: drawn(part, getattr(phrases, part)) for part in FRAMES[name]}
    parts |= {part: few(getattr(phrases, part), rng, 12, 200) for part in LISTS.get(name, ())}
    if name == "code":
        parts["indent"] = rng.choice(INDENTS)
    if name == "json":
        parts["vocabularies"] = few(phrases.vocabularies, rng, 1, 8)
    if name == "multi_session":
        parts["values"] = {sort: few(values, rng, 20, 200) for sort, values in phrases.values.items()}
    return crowded(name, replace(phrases, **parts), rng, facts), facts
