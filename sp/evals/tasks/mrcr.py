"""Task `mrcr`: the i-th of several similar pieces, which all match the question's words and differ in their order.

The idea is that of MRCR (Michelangelo, arXiv 2409.12640; its generator google-deepmind/eval_hub is Apache-2.0), where a
model wrote the pieces; here they come from templates, and the question is about the closing line of a piece.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
from sp.evals.text.tables import NAMES, SURNAMES, SYLLABLES, table

TABLES = table(__file__)


@dataclass(frozen=True)
class MrcrPhrases:
    """Words and frames of pieces.

    Questions are `asks` with {nth}, {kind} and {topic}, `asks_only` with {kind} and {topic}, and `asks_final` without
    slots, for the last piece of all. `prose` has beginnings, middles and ends of the sentences of a body.
    """

    kinds: tuple[str, ...]  # kinds, topics, people, times: kinds begin with a consonant
    topics: tuple[str, ...]
    people: tuple[str, ...]
    times: tuple[str, ...]
    headers: tuple[str, ...]  # frames with {kind} and {topic}, and optionally {who} and {when}
    closings: tuple[str, ...]  # frames with {code}
    asks: tuple[str, ...]
    asks_only: tuple[str, ...]
    asks_final: tuple[str, ...]
    prose: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    syllables: tuple[str, ...]  # syllables of codes that are not numbers


HELD_OUT = MrcrPhrases(**TABLES["held_out"], people=tuple(NAMES), syllables=tuple(SYLLABLES))

FRESH = MrcrPhrases(**TABLES["fresh"], people=tuple(SURNAMES), syllables=tuple(SYLLABLES))
"""A second set, written later and without knowledge of the training data: training data up to part 15 cannot depend on
it. The authors of later parts had seen it; a filter keeps its frames out of them."""


ALIKE = 4  # pieces of the kind and topic of the question, in a story that has room for them
ORDINALS = ("first", "second", "third")
JUDGED = (0, 1, -1)  # pieces of examples' questions; the evidence for a third exceeds 5 % of 8,000 tokens
SENTENCE_WORDS = 11  # average words of a sentence of a body
EDGE = 8  # those pieces are not in the first and last 1 / EDGE of a story, where it is long enough
FURTHER = 15  # questions of a story besides the first
Pair = tuple[str, str]  # kind and topic of a piece


@register_task("mrcr", suite="unmatched")
@dataclass(frozen=True)
class Mrcr(StoryTask):
    """The closing line of the first, second or last of four pieces of one kind and topic, among similar pieces.

    A piece is a line with its kind and topic, a body, and a closing line. The closing line is too far from the first
    for a scorer by matching words, and the lines of all pieces are similar.

    Parameters
    ----------
    seed, facts : int
        See `StoryTask`.
    body : int
        Average words of a piece's body; short ones are for training on short texts.
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
        """Draw at least three pieces, and ask for the closing line of one."""
        labels, target = draw_pairs(rng, phrases, max(3, facts))
        headers = draw_headers(rng, phrases, labels)
        codes = draw_codes(rng, phrases.syllables, len(labels))
        closings = [rng.choice(phrases.closings).format(code=code) for code in codes]
        passages = [
            f"{header} {self.prose(rng, phrases)}{closing}" for header, closing in zip(headers, closings, strict=True)
        ]
        places: dict[Pair, list[int]] = {}
        for place, pair in enumerate(labels):
            places.setdefault(pair, []).append(place)

        def question(pair: Pair, nth: int) -> StoryQuestion:
            alike = places[pair]
            place = alike[nth]
            slots = {"kind": pair[0], "topic": pair[1]}
            if len(alike) == 1:
                text, kind = rng.choice(phrases.asks_only).format(**slots), "only"
            else:
                word = "last" if nth < 0 else ORDINALS[nth]
                text, kind = rng.choice(phrases.asks).format(nth=word, **slots), word
            # To be the n-th, a piece needs those before it as evidence; the last one is known by its place alone.
            before = alike[-1:] if nth < 0 else alike[: nth + 1]
            return StoryQuestion(
                text, (codes[place],), (*(headers[item] for item in before), closings[place]), kind=kind
            )

        judged = question(target, rng.choice(JUDGED if len(places[target]) > 2 else (0, -1)))
        final = StoryQuestion(rng.choice(phrases.asks_final), (codes[-1],), (headers[-1], closings[-1]), kind="final")
        further = [(pair, nth) for pair, alike in places.items() for nth in (*range(min(len(alike), 3)), -1)]
        further = [(pair, nth) for pair, nth in further if nth >= 0 or len(places[pair]) > 1]
        rng.shuffle(further)
        if rng.random() < 0.5:
            further.sort(key=lambda item: len(places[item[0]]) == 1)
        return Story(tuple(passages), (judged, final, *(question(*item) for item in further[: FURTHER - 1])))

    def prose(self, rng: random.Random, phrases: MrcrPhrases) -> str:
        """Draw a body, followed by a space; empty if it has no words."""
        choose, (starts, middles, ends) = rng.choice, phrases.prose
        sentences = round(self.body / SENTENCE_WORDS * rng.uniform(0.9, 1.1))
        return "".join(f"{choose(starts)} {choose(middles)} {choose(ends)} " for _ in range(sentences))


def draw_pairs(rng: random.Random, phrases: MrcrPhrases, facts: int) -> tuple[list[Pair], Pair]:
    """Draw kind and topic of every piece, in order, and those of the question; most others share one of the two."""
    kind, *kinds = rng.sample(phrases.kinds, min(len(phrases.kinds), 3 + facts // 12))
    topic, *topics = rng.sample(phrases.topics, min(len(phrases.topics), 3 + facts // 6))
    target = (kind, topic)
    alike = min(ALIKE, max(2, facts // 2))
    labels: list[Pair] = []
    while len(labels) < facts - alike:
        near = rng.random()
        other = (kind if near < 0.4 else rng.choice(kinds), topic if 0.4 <= near < 0.8 else rng.choice(topics))
        labels += [other] * rng.choice((1, 1, 2, 3))
    del labels[facts - alike :]
    rng.shuffle(labels)
    # Not near either end, or the first would be early and the last late, and truncation would find them.
    margin = facts // EDGE
    for place in sorted(rng.sample(range(margin, facts - margin), alike)):
        labels.insert(place, target)
    return labels, target


def draw_headers(rng: random.Random, phrases: MrcrPhrases, labels: list[Pair]) -> list[str]:
    """Draw first lines, all different."""
    headers: dict[str, None] = {}
    for kind, topic in labels:
        before = len(headers)
        while len(headers) == before:
            header = rng.choice(phrases.headers).format(
                kind=kind, topic=topic, who=rng.choice(phrases.people), when=rng.choice(phrases.times)
            )
            headers.setdefault(header[0].upper() + header[1:])
    return list(headers)


def draw_codes(rng: random.Random, syllables: tuple[str, ...], amount: int) -> list[str]:
    """Draw different codes: words, and numbers of five digits."""
    codes: dict[str, None] = {}
    while len(codes) < amount:
        if rng.random() < 0.5:
            codes.setdefault(str(rng.randrange(10_000, 100_000)))
        else:
            codes.setdefault("".join(rng.choices(syllables, k=3)).capitalize())
    return list(codes)
