"""Needles in a haystack: facts at chosen depths of generated filler, and a question for one or several of them.

The retrieval task of Kamradt's "needle in a haystack" with the variants of RULER (arXiv 2404.06654), in several
phrasings, with distractors that share half of the key, and with control over what question and needle have in common.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Literal

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, Task, register_task
from sp.evals.text.filler import Sentence, filler, haystack
from sp.evals.text.tables import NOUNS, compound_key, pseudo_word, uuid

WORD = re.compile(r"[^\W_]+")
KEY = "\0"  # stands for the whole key, so that a run may hold it but its parts are no words of their own


def words(text: str, key: str) -> list[str]:
    """Lower-case words of a text, every occurrence of the key one symbol.

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
    """Runs of `n` words that stand in both texts, the key counting as one word; the key alone is no such run. `key`:
    what both have to name. `n`: at least 1. Texts that share no run of n words share no longer one."""
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

# The first of each list is RULER's (arXiv 2404.06654); the rest is our own.
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
    """All pairs of needle and question, less those that share a run of `shared` words; 0 allows any. ConfigError if no
    pair is left."""
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


def draw_values(kind: ValueType, amount: int, rng: random.Random) -> list[str]:
    """So many different values: numbers of 7 digits, words, or UUIDs."""
    found: dict[str, None] = {}
    while len(found) < amount:
        if kind == "number":
            found.setdefault(str(rng.randrange(1_000_000, 10_000_000)))
        elif kind == "word":
            found.setdefault(rng.choice(NOUNS) if len(found) < len(NOUNS) // 2 else pseudo_word(rng))
        else:
            found.setdefault(uuid(rng))
    return list(found)


Haystack = Literal["grammar", "noise", "sample", "needles"]
KeyType = Literal["words", "uuid"]
ANSWER_TOKENS = {"number": 12, "word": 12, "uuid": 48}
"""Room for one value in the answer; vocabularies without runs of digits take a token a digit."""


@register_task("needle")
@dataclass(frozen=True)
class Needle(Task):
    """One fact, one question.

    Parameters
    ----------
    depth : float, optional
        Where the needle that is asked for stands, 0 to 1; anywhere if left out. Of several, the first one asked for.
    filler : {"grammar", "noise", "sample", "needles"}
        What the haystack is made of: varied prose, RULER's repeated line, the embedded sample shuffled, or lines that
        are needles of other keys.
    value, key : str
        Types of values (`number`, `word`, `uuid`) and keys (`words`: adjective-noun; `uuid`).
    phrasing : {"any", "ruler"}
        Drawn from all phrasings, or RULER's alone, its header included.
    answer_prefix : bool
        Begin the answer as RULER does, with words of the question.
    no_shared_ngrams : int
        Longest run of words plus one that question and needle may share besides the key; 0 forbids nothing.
    distractors : int
        Further needles with other keys.
    near : bool
        Every other distractor shares half of its key with the first key.

    Examples
    --------
    >>> made = Needle(depth=0.5, phrasing="ruler").example(0, 300, lambda text: len(text.split()))
    >>> made.needles[0] in made.document, made.answers[0] in made.needles[0], made.facts["keys"][0] in made.question
    (True, True, True)
    """

    depth: float | None = None
    filler: Haystack = "grammar"
    value: ValueType = "number"
    key: KeyType = "words"
    phrasing: Literal["any", "ruler"] = "any"
    answer_prefix: bool = False
    no_shared_ngrams: int = 0
    distractors: int = 0
    near: bool = True
    seed: int = 0

    asked_keys: ClassVar[int] = 1
    values_a_key: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ConfigError(f"depth must be from 0 to 1, not {self.depth:g}")
        for name in ("no_shared_ngrams", "distractors"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, not {getattr(self, name)}")
        self.allowed()

    @property
    def plural(self) -> bool:
        """Whether several values are asked for."""
        return self.asked_keys * self.values_a_key > 1

    def allowed(self) -> tuple[Phrasing, ...]:
        """Phrasings these options leave; ConfigError if there are none."""
        found = phrasings(plural=self.plural, prefix=self.answer_prefix, shared=self.no_shared_ngrams)
        if self.phrasing == "ruler":
            ruler = phrasings(plural=self.plural, prefix=self.answer_prefix)[:1]
            if ruler[0] not in found:
                raise ConfigError(f"RULER's question shares {self.no_shared_ngrams} words with its needle; use any")
            return ruler
        return found

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`."""
        rng = self.rng(index, tokens)
        phrasing = rng.choice(self.allowed())
        keys = self.draw_keys(rng)
        asked = [key for key in keys[: self.asked_keys] for _ in range(self.values_a_key)]
        hidden = asked + keys[self.asked_keys :]
        values = draw_values(self.value, len(hidden), rng)

        def said(key: str, value: str) -> str:
            return phrasing.needle.format(key=key, value=value, kind=self.value)

        *some, last = keys[: self.asked_keys]
        slots = {"key": f"{', '.join(some)}, and {last}" if some else last, "kind": self.value}
        question, prefix = phrasing.question.format(**slots), phrasing.prefix.format(**slots)
        needles = [said(key, value) for key, value in zip(hidden, values, strict=True)]
        depths = [rng.random() for _ in needles]
        if self.depth is not None:
            depths[0] = self.depth
        stream = self.other_needles(phrasing, keys, rng) if self.filler == "needles" else filler(self.filler, rng)
        announced = RULER_PLURAL_HEADER if self.plural else RULER_HEADER
        header = announced.format(kind=self.value) if self.phrasing == "ruler" else ""
        room = tokens - MARKUP - count(question) - count(prefix)
        found = haystack(stream, needles, depths, room, count, rng, header=header)
        gold = len(asked)
        facts = {
            "depth": found.depths[0],
            "depths": found.depths[:gold],
            "keys": keys[: self.asked_keys],
            "needle_template": phrasing.needle,
            "question_template": phrasing.question,
            "filler": self.filler,
            "value": self.value,
        }
        room, texts = 8 + gold * ANSWER_TOKENS[self.value], (found.text, question, prefix)
        told = tuple(needles[:gold])
        return self._made(index, tokens, texts, values[:gold], needles=told, facts=facts, max_new_tokens=room)

    def draw_key(self, rng: random.Random) -> str:
        """One key."""
        return compound_key(rng) if self.key == "words" else uuid(rng)

    def draw_keys(self, rng: random.Random) -> list[str]:
        """Different keys: those asked for, then the distractors'."""
        keys = [self.draw_key(rng)]
        while len(keys) < self.asked_keys + self.distractors:
            key = self.draw_key(rng)
            if self.near and len(keys) >= self.asked_keys and (len(keys) - self.asked_keys) % 2 == 0:
                mine, its = keys[0].split("-"), key.split("-")
                half = len(mine) // 2 or 1
                key = "-".join(mine[:half] + its[half:] if rng.random() < 0.5 else its[:half] + mine[half:])
            if key not in keys:
                keys.append(key)
        return keys

    def other_needles(self, phrasing: Phrasing, keys: list[str], rng: random.Random) -> Iterator[Sentence]:
        """Lines that are needles of other keys."""
        for _ in repeat(None):
            key = self.draw_key(rng)
            if key not in keys:
                [value] = draw_values(self.value, 1, rng)
                yield Sentence(phrasing.needle.format(key=key, value=value, kind=self.value), True)


@register_task("needle_multikey")
@dataclass(frozen=True)
class NeedleMultikey(Needle):
    """One of several facts is asked for; see `Needle`."""

    distractors: int = 3


@register_task("needle_multivalue")
@dataclass(frozen=True)
class NeedleMultivalue(Needle):
    """All four values of one key are asked for; see `Needle`."""

    values_a_key: ClassVar[int] = 4


@register_task("needle_multiquery")
@dataclass(frozen=True)
class NeedleMultiquery(Needle):
    """The values of four keys are asked for at once; see `Needle`."""

    asked_keys: ClassVar[int] = 4
