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
KEY = "\0"  # symbol for the whole key, so that runs may contain it, but not its parts as words


def words(text: str, key: str) -> list[str]:
    """Return the words of a text in lower case, with every occurrence of the key as one symbol.

    >>> words("The code for Red-Fox, now.", "red-fox")
    ['the', 'code', 'for', '\\x00', 'now']
    """
    pieces = re.split(re.escape(key.lower()), text.lower()) if key else [text.lower()]
    symbols: list[str] = []
    for number, piece in enumerate(pieces):
        symbols += [KEY] if number else []
        symbols += WORD.findall(piece)
    return symbols


def shared_ngrams(question: str, needle: str, key: str, n: int) -> set[tuple[str, ...]]:
    """Return the runs of `n` words, at least 1, that occur in both texts; the key counts as one word.

    The key alone is not such a run, because both texts have to name it. Texts that share no run of n words share no
    longer one.
    """
    question_runs, needle_runs = (
        {tuple(symbols[i : i + n]) for i in range(len(symbols) - n + 1)}
        for symbols in (words(question, key), words(needle, key))
    )
    return (question_runs & needle_runs) - {(KEY,)}


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
    """A needle, the question for it, and the start of the answer, which may be empty."""

    needle: str
    question: str
    prefix: str

    def shares(self, n: int) -> bool:
        """Return True if question or prefix share a run of `n` words with the needle besides the key."""
        key = "{key}"
        needle = self.needle.replace("{value}", "")
        return any(shared_ngrams(text, needle, key, n) for text in (self.question, self.prefix))


def phrasings(*, plural: bool, prefix: bool, shared: int = 0) -> tuple[Phrasing, ...]:
    """Return all pairs of needle and question, except those that share a run of `shared` words; 0 allows any.

    ConfigError: no pair remains.
    """
    start = (RULER_PLURAL_PREFIX if plural else RULER_PREFIX) if prefix else ""
    pairs = (
        Phrasing(needle, question, start)
        for needle in NEEDLES
        for question in (PLURAL_QUESTIONS if plural else QUESTIONS)
    )
    allowed = tuple(phrasing for phrasing in pairs if not (shared and phrasing.shares(shared)))
    if not allowed:
        raise ConfigError(
            f"every phrasing shares a run of {shared} words between question and needle; raise no_shared_ngrams, "
            "or omit answer_prefix"
        )
    return allowed


def draw_values(kind: ValueType, amount: int, rng: random.Random) -> list[str]:
    """Draw different values: numbers of 7 digits, words, or UUIDs."""
    values: dict[str, None] = {}
    while len(values) < amount:
        if kind == "number":
            values.setdefault(str(rng.randrange(1_000_000, 10_000_000)))
        elif kind == "word":
            values.setdefault(rng.choice(NOUNS) if len(values) < len(NOUNS) // 2 else pseudo_word(rng))
        else:
            values.setdefault(uuid(rng))
    return list(values)


Haystack = Literal["grammar", "noise", "sample", "needles"]
KeyType = Literal["words", "uuid"]
ANSWER_TOKENS = {"number": 12, "word": 12, "uuid": 48}
"""Tokens for one value in the answer; vocabularies without runs of digits need a token for each digit."""


@register_task("needle")
@dataclass(frozen=True)
class Needle(Task):
    """One fact in a haystack, and a question for it.

    Parameters
    ----------
    depth : float, optional
        Position of the needle, 0 to 1; random by default. Of several needles, that of the first in the question.
    filler : {"grammar", "noise", "sample", "needles"}
        Text of the haystack: varied prose, RULER's repeated line, the embedded sample shuffled, or lines that are
        needles of other keys.
    value, key : str
        Types of values (`number`, `word`, `uuid`) and keys (`words`: adjective-noun; `uuid`).
    phrasing : {"any", "ruler"}
        All phrasings, or RULER's alone, its header included.
    answer_prefix : bool
        Begin the answer as RULER does, with words of the question.
    no_shared_ngrams : int
        Length of runs of words that question and needle must not share besides the key; 0 for no limit.
    distractors : int
        Further needles with other keys.
    near : bool
        Let every second distractor share half of its key with the first key.

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
        """True if the answer has several values."""
        return self.asked_keys * self.values_a_key > 1

    def allowed(self) -> tuple[Phrasing, ...]:
        """Return the phrasings that the options allow; ConfigError if there are none."""
        allowed = phrasings(plural=self.plural, prefix=self.answer_prefix, shared=self.no_shared_ngrams)
        if self.phrasing == "ruler":
            ruler = phrasings(plural=self.plural, prefix=self.answer_prefix)[:1]
            if ruler[0] not in allowed:
                raise ConfigError(f"RULER's question shares {self.no_shared_ngrams} words with its needle; use any")
            return ruler
        return allowed

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Draw keys, values and a phrasing, and hide the needles."""
        rng = self.rng(index, tokens)
        phrasing = rng.choice(self.allowed())
        keys = self.draw_keys(rng)
        asked_keys = [key for key in keys[: self.asked_keys] for _ in range(self.values_a_key)]
        hidden = asked_keys + keys[self.asked_keys :]
        values = draw_values(self.value, len(hidden), rng)

        def needle_text(key: str, value: str) -> str:
            return phrasing.needle.format(key=key, value=value, kind=self.value)

        *some, last = keys[: self.asked_keys]
        slots = {"key": f"{', '.join(some)}, and {last}" if some else last, "kind": self.value}
        question, prefix = phrasing.question.format(**slots), phrasing.prefix.format(**slots)
        needles = [needle_text(key, value) for key, value in zip(hidden, values, strict=True)]
        depths = [rng.random() for _ in needles]
        if self.depth is not None:
            depths[0] = self.depth
        stream = self.other_needles(phrasing, keys, rng) if self.filler == "needles" else filler(self.filler, rng)
        announced = RULER_PLURAL_HEADER if self.plural else RULER_HEADER
        header = announced.format(kind=self.value) if self.phrasing == "ruler" else ""
        room = tokens - MARKUP - count(question) - count(prefix)
        document = haystack(stream, needles, depths, room, count, rng, header=header)
        gold = len(asked_keys)
        facts = {
            "depth": document.depths[0],
            "depths": document.depths[:gold],
            "keys": keys[: self.asked_keys],
            "needle_template": phrasing.needle,
            "question_template": phrasing.question,
            "filler": self.filler,
            "value": self.value,
        }
        room, texts = 8 + gold * ANSWER_TOKENS[self.value], (document.text, question, prefix)
        evidence = tuple(needles[:gold])
        return self._made(index, tokens, texts, values[:gold], needles=evidence, facts=facts, max_new_tokens=room)

    def draw_key(self, rng: random.Random) -> str:
        """Draw a key."""
        return compound_key(rng) if self.key == "words" else uuid(rng)

    def draw_keys(self, rng: random.Random) -> list[str]:
        """Draw different keys: those of the question, then those of the distractors."""
        keys = [self.draw_key(rng)]
        while len(keys) < self.asked_keys + self.distractors:
            key = self.draw_key(rng)
            if self.near and len(keys) >= self.asked_keys and (len(keys) - self.asked_keys) % 2 == 0:
                own_parts, other_parts = keys[0].split("-"), key.split("-")
                half = len(own_parts) // 2 or 1
                key = "-".join(
                    own_parts[:half] + other_parts[half:]
                    if rng.random() < 0.5
                    else other_parts[:half] + own_parts[half:]
                )
            if key not in keys:
                keys.append(key)
        return keys

    def other_needles(self, phrasing: Phrasing, keys: list[str], rng: random.Random) -> Iterator[Sentence]:
        """Yield lines that are needles of other keys."""
        for _ in repeat(None):
            key = self.draw_key(rng)
            if key not in keys:
                [value] = draw_values(self.value, 1, rng)
                yield Sentence(phrasing.needle.format(key=key, value=value, kind=self.value), True)


@register_task("needle_multikey")
@dataclass(frozen=True)
class NeedleMultikey(Needle):
    """Needle task with three distractors; see `Needle`."""

    distractors: int = 3


@register_task("needle_multivalue")
@dataclass(frozen=True)
class NeedleMultivalue(Needle):
    """Needle task for all four values of one key; see `Needle`."""

    values_a_key: ClassVar[int] = 4


@register_task("needle_multiquery")
@dataclass(frozen=True)
class NeedleMultiquery(Needle):
    """Needle task for the values of four keys at once; see `Needle`."""

    asked_keys: ClassVar[int] = 4
