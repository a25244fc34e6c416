"""Who tells the stories of a task in training: in all its phrases, in a dialect that filler shares, or in a grammar."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

from filler import Told
from mentions import mentions
from phrases.crowd import crowded
from phrases.dialect import FRAMES, LEAST, MOST, dialect, some
from phrases.grown import GROWN, SPELT, grown, spelt
from phrases.language import language_story
from phrases.world import world_story

from sp.evals import TASKS
from sp.evals.story import Story, StoryTask

NAMES = ("world", "fact", "nolima", "updates", "multi_session", "mrcr", "babi", "code", "json")
"""What is trained, in the order of the logs; all but the first are tasks."""
FURTHER = ("language",)
"""What is trained besides: scenes that tell what words of relations mean, which no log before part 16 has."""
WITHOUT_PHRASES = {"world": world_story, "language": language_story}
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "mrcr": tuple({"body": words} for words in (6, 30, 70, 110, 130)),
    "json": tuple({"words": words} for words in (2, 3, 4, 5, 5)),
}
"""Options of the tasks whose passages are too long for short documents as they are."""
CROWDED = 0.6
"""Of stories in all phrases, those whose names are crowded."""
DIALECTS = 0.8
"""Of stories of tasks that have dialects, those told in one."""
MENTIONED = ("nolima",)
"""Tasks without text of their own whose people are spoken of between stories."""
KEPT, NEW = 12, 0.1
"""Dialects that a process keeps at hand, and how often one of them gives way to another."""
Way = tuple[bool, bool]
"""Whether a dialect's frames are of the grammar, and whether its names are spelt from tokens."""


def unchanged(story: Story) -> Story:
    """The story as it is."""
    return story


class Teller:
    """Tells the stories of a task, or those of the closed world."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name, self.rng = name, rng
        self.dialects: dict[Way, list[Told]] = {}
        if name in WITHOUT_PHRASES:
            self.plain = Told(WITHOUT_PHRASES[name], None)
            return
        self.phrases: Any = import_module(f"phrases.{name}").TRAIN
        self.tasks: list[Any] = [TASKS.build(name, options) for options in SIZES.get(name, ({},))]
        self.plain = self._told(self._crowded, self.phrases)

    def told(self, grammar: float = 0.0, letters: float = 0.0) -> Told:
        """Who tells the next story; in the grammar, and with spelt names, so often where the task has either."""
        way = (
            self.name in GROWN and self.rng.random() < grammar,
            self.name in SPELT and self.rng.random() < letters,
        )
        if not any(way) and (self.name not in FRAMES or self.rng.random() >= DIALECTS):
            return self.plain
        kept = self.dialects.setdefault(way, [])
        if len(kept) < KEPT:
            kept.append(self._dialect(*way))
            return kept[-1]
        at = self.rng.randrange(KEPT)
        if self.rng.random() < NEW:
            kept[at] = self._dialect(*way)
        return kept[at]

    def _dialect(self, grammar: bool, letters: bool) -> Told:
        phrases, sent, most = self.phrases, unchanged, some(self.rng, LEAST, MOST)
        if letters:
            phrases = spelt(self.name, phrases, self.rng)
        if grammar:
            phrases, sent = grown(self.name, phrases, self.rng)
        if self.name in FRAMES:
            phrases, most = dialect(self.name, phrases, self.rng)
        elif not letters:
            phrases = crowded(self.name, phrases, self.rng, most)
        tell = self._story(phrases, most)
        return self._told(lambda rng, facts: sent(tell(rng, facts)), phrases)

    def _story(self, phrases: Any, most: int) -> Callable[[random.Random, int], Story]:
        return lambda rng, facts: rng.choice(self.tasks).story(rng, phrases, min(facts, most))

    def _crowded(self, rng: random.Random, facts: int) -> Story:
        phrases = crowded(self.name, self.phrases, rng, facts) if rng.random() < CROWDED else self.phrases
        return rng.choice(self.tasks).story(rng, phrases, facts)  # type: ignore[no-any-return]

    def _told(self, story: Callable[[random.Random, int], Story], phrases: Any) -> Told:
        """With text of the task's own kind in the phrases if it has such, or of people called as the phrases' are."""
        if TASKS.class_of(self.name).filler is not StoryTask.filler:  # type: ignore[attr-defined]
            return Told(story, self.tasks[-1].filler(random.Random(self.rng.random()), phrases))
        if self.name not in MENTIONED:
            return Told(story, None)
        return Told(story, mentions(random.Random(self.rng.random()), phrases.first, phrases.last), running=True)
