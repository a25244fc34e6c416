"""Functions, and what they refer to in the same file or in another: `code` of `sp.evals.tasks`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sp.evals.story import Question
from sp.evals.tasks.code import HELD_OUT, NEAR, Code, CodePhrases, Link, draw_links
from sp.evals.text.filler import Sentence
from sp.evals.transcripts.plan import Slot
from sp.evals.transcripts.threads import THREADS, Thread, Told, spread


@THREADS.register("code")
@dataclass(frozen=True)
class CodeThread(Thread):
    """What number a function gives back, where it only names a constant or another function."""

    phrases: CodePhrases = field(default=HELD_OUT, repr=False)

    spacing: ClassVar[int] = 160

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; of two results either may have the function, the other what it refers to."""
        homes = [rng.sample([slot.results[0], slot.results[-1]], 2) for slot in slots]
        free = spread(rng, room, [turn for pair in homes for turn in pair])
        pairs = [*homes, *([one, other] for one, other in zip(free[::2], free[1::2], strict=False))]
        links = draw_links(rng, self.phrases, len(pairs))
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        for link, (here, there) in zip(links, pairs, strict=True):
            passages[here].append(link.text)
            passages[there].append(link.target_text)
        asked = dict(zip(slots, links, strict=False))
        for texts in passages.values():
            for _ in range(8):
                rng.shuffle(texts)
                if not any(near(texts, link) for link in asked.values()):
                    break
        questions = {
            slot: Question(
                rng.choice(self.phrases.asks).format(name=link.name), (link.value,), (link.text, link.target_text)
            )
            for slot, link in asked.items()
        }
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; other functions, constants and remarks."""
        return Code().filler(rng, self.phrases)


def near(texts: Sequence[str], link: Link) -> bool:
    """Whether a function and what it refers to are all but neighbours in one result."""
    if link.text not in texts or link.target_text not in texts:
        return False
    return abs(texts.index(link.text) - texts.index(link.target_text)) <= min(NEAR, len(texts) - 2)
