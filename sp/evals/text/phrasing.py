"""How a fact is hidden and how it is asked for: templates with the slots {key}, {value} and {kind}.

The first of each list is RULER's (arXiv 2404.06654); the rest is our own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sp.errors import ConfigError
from sp.evals.text.words import NOUNS, pseudo_word, uuid

WORD = re.compile(r"[^\W_]+")
KEY = "\0"
"""Stands for the whole key, so that a run may hold it but its parts are no words of their own."""


def words(text: str, key: str) -> list[str]:
    """Lower-case words of a text, every occurrence of the key one symbol.

    Examples
    --------
    >>> words("The code for Red-Fox, now.", "red-fox")
    ['the', 'code', 'for', '\\x00', 'now']
    """
    pieces = re.split(re.escape(key.lower()), text.lower()) if key else [text.lower()]
    found: list[str] = []
    for number, piece in enumerate(pieces):
        found += [KEY] if number else []
        found += WORD.findall(piece)
    return found


def shared_ngrams(question: str, needle: str, key: str, n: int) -> set[tuple[str, ...]]:
    """Runs of `n` words that stand in both texts, the key counting as one word; the key alone is no such run.

    `key`: what both have to name. `n`: at least 1. Texts that share no run of n words share no longer one.

    Examples
    --------
    >>> sorted(shared_ngrams("What is the code for red-fox?", "The code for red-fox is 7.", "red-fox", 3))
    [('code', 'for', '\\x00'), ('the', 'code', 'for')]
    >>> shared_ngrams("Which digits go with red-fox?", "The code for red-fox is 7.", "red-fox", 1)
    set()
    """
    asked, said = (
        {tuple(found[i : i + n]) for i in range(len(found) - n + 1)}
        for found in (words(question, key), words(needle, key))
    )
    return (asked & said) - {(KEY,)}


ValueType = Literal["number", "word", "uuid"]

RULER_NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
RULER_QUESTION = "What is the special magic {kind} for {key} mentioned in the provided text?"
RULER_PREFIX = " The special magic {kind} for {key} mentioned in the provided text is"
RULER_PLURAL_QUESTION = "What are all the special magic {kind}s for {key} mentioned in the provided text?"
RULER_PLURAL_PREFIX = " The special magic {kind}s for {key} mentioned in the provided text are"
RULER_HEADER = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n"
)
RULER_PLURAL_HEADER = (
    "Some special magic {kind}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind}s afterwards.\n"
)

NEEDLES = (
    RULER_NEEDLE,
    "The special magic {key} {kind} is: {value}.",
    "The secret {kind} of {key} is {value}.",
    "The access code for {key} is {value}.",
    "Remember that the {kind} for {key} is {value}.",
    "The password for {key} is now {value}.",
    "According to the register, {key} is listed under {value}.",
    "The record of {key} shows the {kind} {value}.",
)
QUESTIONS = (
    RULER_QUESTION,
    "What is the special magic {key} {kind}?",
    "Which {kind} belongs to {key}?",
    "Tell me the {kind} of {key}.",
    "What is the access code for {key}?",
    "What does the text say about {key}? Give the {kind} only.",
    "What was noted for {key}?",
)
PLURAL_QUESTIONS = (
    RULER_PLURAL_QUESTION,
    "What are all the {kind}s for {key}?",
    "List the {kind}s of {key}.",
    "Which {kind}s belong to {key}?",
)


@dataclass(frozen=True)
class Phrasing:
    """A needle and the question for it; `prefix` begins the answer and may be empty."""

    needle: str
    question: str
    prefix: str

    def shares(self, n: int) -> bool:
        """Whether question and prefix repeat a run of `n` words of the needle besides the key."""
        key = "{key}"
        needle = self.needle.replace("{value}", "")
        return any(shared_ngrams(asked, needle, key, n) for asked in (self.question, self.prefix))


def phrasings(*, plural: bool, prefix: bool, shared: int = 0) -> tuple[Phrasing, ...]:
    """All pairs of needle and question, less those that share a run of `shared` words; 0 allows any.

    Raises
    ------
    ConfigError
        If no pair is left.

    Examples
    --------
    >>> phrasings(plural=False, prefix=True)[0].needle
    'One of the special magic {kind}s for {key} is: {value}.'
    """
    start = (RULER_PLURAL_PREFIX if plural else RULER_PREFIX) if prefix else ""
    pairs = (
        Phrasing(needle, question, start)
        for needle in NEEDLES
        for question in (PLURAL_QUESTIONS if plural else QUESTIONS)
    )
    found = tuple(one for one in pairs if not (shared and one.shares(shared)))
    if not found:
        raise ConfigError(
            f"every phrasing shares a run of {shared} words between question and needle; raise no_shared_ngrams, "
            "or leave the answer prefix out"
        )
    return found


def enumerate_keys(keys: Sequence[str]) -> str:
    """Keys as RULER lists them.

    Examples
    --------
    >>> enumerate_keys(["a", "b", "c"])
    'a, b, and c'
    """
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])}, and {keys[-1]}"


def draw_values(kind: ValueType, amount: int, rng: random.Random) -> list[str]:
    """So many different values: numbers of 7 digits, words, or UUIDs.

    Examples
    --------
    >>> [len(value) for value in draw_values("number", 2, random.Random(0))]
    [7, 7]
    """
    found: dict[str, None] = {}
    while len(found) < amount:
        if kind == "number":
            found.setdefault(str(rng.randrange(1_000_000, 10_000_000)))
        elif kind == "word":
            found.setdefault(rng.choice(NOUNS) if len(found) < len(NOUNS) // 2 else pseudo_word(rng))
        else:
            found.setdefault(uuid(rng))
    return list(found)
