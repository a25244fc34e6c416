"""Who tells the stories of a task in training: in all its training phrases, or in a dialect that filler shares."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

from filler import Told
from phrases.crowd import crowded
from phrases.dialect import FRAMES, dialect

from sp.evals import TASKS
from sp.evals.story import Story, StoryTask

NAMES = ("world", "fact", "nolima", "updates", "multi_session", "mrcr", "babi", "code", "json")
"""What is trained, in the order of the logs; all but the first are tasks."""
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "mrcr": tuple({"body": words} for words in (6, 30, 70, 110, 130)),
    "json": tuple({"words": words} for words in (2, 3, 4, 5, 5)),
}
"""Options of the tasks whose passages are too long for short documents as they are."""
CROWDED = 0.6
"""Of stories in all phrases, those whose names are crowded."""
DIALECTS = 0.8
"""Of stories of tasks that have dialects, those told in one."""
KEPT, NEW = 12, 0.1
"""Dialects that a process keeps at hand, and how often one of them gives way to another."""


class Teller:
    """Tells the stories of a task, or those of the closed world."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name, self.rng = name, rng
        module = import_module(f"phrases.{name}")
        self.dialects: list[Told] = []
        if name == "world":
            self.plain = Told(module.world_story, None)
            return
        self.phrases: Any = module.TRAIN
        self.tasks: list[Any] = [TASKS.build(name, options) for options in SIZES.get(name, ({},))]
        self.plain = Told(self._crowded, self._stream(self.phrases))

    def told(self) -> Told:
        """Who tells the next story."""
        if self.name not in FRAMES or self.rng.random() >= DIALECTS:
            return self.plain
        if len(self.dialects) < KEPT:
            self.dialects.append(self._dialect())
            return self.dialects[-1]
        at = self.rng.randrange(KEPT)
        if self.rng.random() < NEW:
            self.dialects[at] = self._dialect()
        return self.dialects[at]

    def _dialect(self) -> Told:
        phrases, most = dialect(self.name, self.phrases, self.rng)
        return Told(self._story(phrases, most), self._stream(phrases))

    def _story(self, phrases: Any, most: int) -> Callable[[random.Random, int], Story]:
        return lambda rng, facts: rng.choice(self.tasks).story(rng, phrases, min(facts, most))

    def _crowded(self, rng: random.Random, facts: int) -> Story:
        phrases = crowded(self.name, self.phrases, rng, facts) if rng.random() < CROWDED else self.phrases
        return rng.choice(self.tasks).story(rng, phrases, facts)  # type: ignore[no-any-return]

    def _stream(self, phrases: Any) -> Any:
        """Text of the task's own kind in the phrases, if it has such."""
        if TASKS.class_of(self.name).filler is StoryTask.filler:  # type: ignore[attr-defined]
            return None
        return self.tasks[-1].filler(random.Random(self.rng.random()), phrases)
