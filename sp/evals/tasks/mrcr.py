"""The i-th of several pieces that look alike: all of them match the question's words, and only their order decides.

The idea is that of MRCR (Michelangelo, arXiv 2409.12640; its generator google-deepmind/eval_hub is Apache-2.0), where a
model wrote the pieces; here templates do, and what is asked for is how a piece closes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import register_task
from sp.evals.story import Question, Story, StoryTask
from sp.evals.text.tables import NAMES, SURNAMES, SYLLABLES, table

TABLES = table(__file__)


@dataclass(frozen=True)
class MrcrPhrases:
    """Words and frames of pieces. `asks`, `asks_only`, `asks_final`: frames with {nth}, {kind} and {topic}; with {kind}
    and {topic}; and without any, for the last piece of all; `prose`: beginnings, middles and ends of the sentences of a
    body."""

    kinds: tuple[str, ...]  # kinds, topics, people, times: kinds begin with a consonant
    topics: tuple[str, ...]
    people: tuple[str, ...]
    times: tuple[str, ...]
    headers: tuple[str, ...]  # frames with {kind} and {topic}, and {who} and {when} if they like
    closings: tuple[str, ...]  # frames with {code}
    asks: tuple[str, ...]
    asks_only: tuple[str, ...]
    asks_final: tuple[str, ...]
    prose: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    syllables: tuple[str, ...]  # what codes are made of, where they are no numbers


HELD_OUT = MrcrPhrases(**TABLES["held_out"], people=tuple(NAMES), syllables=tuple(SYLLABLES))

FRESH = MrcrPhrases(**TABLES["fresh"], people=tuple(SURNAMES), syllables=tuple(SYLLABLES))
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""


ALIKE = 4  # pieces of the kind and topic that are asked for, in a story that has room for them
ORDINALS = ("first", "second", "third")
JUDGED = (0, 1, -1)  # which of them examples ask for; a third would take more evidence than 5 % of 8,000 tokens hold
SENTENCE_WORDS = 11  # words of a sentence of a body, about
EDGE = 8  # the first and last of so many parts of a story have none of those pieces, where it is long enough for that
FURTHER = 15  # questions of a story besides the first
Pair = tuple[str, str]  # kind and topic of a piece


@register_task("mrcr", suite="unmatched")
@dataclass(frozen=True)
class Mrcr(StoryTask):
    """How the first, second or last of four pieces of one kind and topic closes, among pieces that share one of both.

    A piece is a line that says what it is, a body, and a closing line. The closing line lies further from the first
    than a scorer of matching words reaches, and the lines of all pieces look alike.

    Parameters
    ----------
    seed, facts : int
        See `StoryTask`.
    body : int
        Words of a piece's body, about; shorter ones are for training on short texts.
    """

    body: int = 120

    held_out: ClassVar[MrcrPhrases] = HELD_OUT
    fresh: ClassVar[MrcrPhrases] = FRESH
    spacing: ClassVar[int] = 380
    fewest: ClassVar[int] = 5

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        super().__post_init__()
        if self.body < 0:
            raise ConfigError(f"body must be at least 0, not {self.body}")

    def story(self, rng: random.Random, phrases: MrcrPhrases, facts: int) -> Story:
        """See `StoryTask.story`; at least three pieces."""
        labels, asked = draw_pairs(rng, phrases, max(3, facts))
        headers = draw_headers(rng, phrases, labels)
        codes = draw_codes(rng, phrases.syllables, len(labels))
        closings = [rng.choice(phrases.closings).format(code=code) for code in codes]
        passages = [
            f"{header} {self.prose(rng, phrases)}{closing}" for header, closing in zip(headers, closings, strict=True)
        ]
        places: dict[Pair, list[int]] = {}
        for at, pair in enumerate(labels):
            places.setdefault(pair, []).append(at)

        def question(pair: Pair, nth: int) -> Question:
            alike = places[pair]
            at = alike[nth]
            slots = {"kind": pair[0], "topic": pair[1]}
            if len(alike) == 1:
                text, kind = rng.choice(phrases.asks_only).format(**slots), "only"
            else:
                word = "last" if nth < 0 else ORDINALS[nth]
                text, kind = rng.choice(phrases.asks).format(nth=word, **slots), word
            # Nothing later stands in the evidence, so the last one needs no earlier ones to be known for it.
            before = alike[-1:] if nth < 0 else alike[: nth + 1]
            return Question(text, (codes[at],), (*(headers[one] for one in before), closings[at]), kind=kind)

        judged = question(asked, rng.choice(JUDGED if len(places[asked]) > 2 else (0, -1)))
        final = Question(rng.choice(phrases.asks_final), (codes[-1],), (headers[-1], closings[-1]), kind="final")
        wanted = [(pair, nth) for pair, alike in places.items() for nth in (*range(min(len(alike), 3)), -1)]
        wanted = [(pair, nth) for pair, nth in wanted if nth >= 0 or len(places[pair]) > 1]
        rng.shuffle(wanted)
        if rng.random() < 0.5:
            wanted.sort(key=lambda one: len(places[one[0]]) == 1)
        return Story(tuple(passages), (judged, final, *(question(*one) for one in wanted[: FURTHER - 1])))

    def prose(self, rng: random.Random, phrases: MrcrPhrases) -> str:
        """A body, with a space behind it; empty if it has no words."""
        choose, (starts, middles, ends) = rng.choice, phrases.prose
        sentences = round(self.body / SENTENCE_WORDS * rng.uniform(0.9, 1.1))
        return "".join(f"{choose(starts)} {choose(middles)} {choose(ends)} " for _ in range(sentences))


def draw_pairs(rng: random.Random, phrases: MrcrPhrases, facts: int) -> tuple[list[Pair], Pair]:
    """What every piece is, in order, and what is asked for; most of the others share one half of it."""
    kind, *kinds = rng.sample(phrases.kinds, min(len(phrases.kinds), 3 + facts // 12))
    topic, *topics = rng.sample(phrases.topics, min(len(phrases.topics), 3 + facts // 6))
    asked = (kind, topic)
    alike = min(ALIKE, max(2, facts // 2))
    labels: list[Pair] = []
    while len(labels) < facts - alike:
        near = rng.random()
        other = (kind if near < 0.4 else rng.choice(kinds), topic if 0.4 <= near < 0.8 else rng.choice(topics))
        labels += [other] * rng.choice((1, 1, 2, 3))
    del labels[facts - alike :]
    rng.shuffle(labels)
    # Away from both ends, or the first would be early and the last late, and truncation would find them.
    margin = facts // EDGE
    for at in sorted(rng.sample(range(margin, facts - margin), alike)):
        labels.insert(at, asked)
    return labels, asked


def draw_headers(rng: random.Random, phrases: MrcrPhrases, labels: list[Pair]) -> list[str]:
    """First lines, each another one."""
    found: dict[str, None] = {}
    for kind, topic in labels:
        before = len(found)
        while len(found) == before:
            made = rng.choice(phrases.headers).format(
                kind=kind, topic=topic, who=rng.choice(phrases.people), when=rng.choice(phrases.times)
            )
            found.setdefault(made[0].upper() + made[1:])
    return list(found)


def draw_codes(rng: random.Random, syllables: tuple[str, ...], amount: int) -> list[str]:
    """Different words and numbers of five digits."""
    found: dict[str, None] = {}
    while len(found) < amount:
        if rng.random() < 0.5:
            found.setdefault(str(rng.randrange(10_000, 100_000)))
        else:
            found.setdefault("".join(rng.choices(syllables, k=3)).capitalize())
    return list(found)
