"""Needles in a haystack: facts at chosen depths of generated filler, and a question for one or several of them.

The retrieval task of Kamradt's "needle in a haystack" with the variants of RULER (arXiv 2404.06654), in several
phrasings, with distractors that share half of the key, and with control over what question and needle have in common.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Literal

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, Task, register_task
from sp.evals.text.filler import Sentence, filler
from sp.evals.text.haystack import haystack
from sp.evals.text.phrasing import (
    RULER_HEADER,
    RULER_PLURAL_HEADER,
    Phrasing,
    ValueType,
    draw_values,
    enumerate_keys,
    phrasings,
)
from sp.evals.text.words import compound_key, uuid

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

        slots = {"key": enumerate_keys(keys[: self.asked_keys]), "kind": self.value}
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
        return Example(
            id=self.example_id(index, tokens),
            task=self.name,
            document=found.text,
            question=question,
            answer_prefix=prefix,
            answers=tuple(values[:gold]),
            needles=tuple(needles[:gold]),
            facts=facts,
            tokens=tokens,
            max_new_tokens=8 + gold * ANSWER_TOKENS[self.value],
        )

    def draw_key(self, rng: random.Random) -> str:
        """One key."""
        return compound_key(rng) if self.key == "words" else uuid(rng)

    def draw_keys(self, rng: random.Random) -> list[str]:
        """Different keys: those asked for, then the distractors'."""
        keys = [self.draw_key(rng)]
        while len(keys) < self.asked_keys + self.distractors:
            key = self.draw_key(rng)
            if self.near and len(keys) >= self.asked_keys and (len(keys) - self.asked_keys) % 2 == 0:
                key = _near(keys[0], key, rng)
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


def _near(key: str, other: str, rng: random.Random) -> str:
    """`other` with its first or its last half replaced by that of `key`.

    Examples
    --------
    >>> _near("red-fox", "big-cow", random.Random(0)) in ("red-cow", "big-fox")
    True
    """
    mine, its = key.split("-"), other.split("-")
    half = len(mine) // 2 or 1
    return "-".join(mine[:half] + its[half:] if rng.random() < 0.5 else its[:half] + mine[half:])
