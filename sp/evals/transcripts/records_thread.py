"""Records of an API's answers, nested, all with the same fields: `json` of `sp.evals.tasks`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import ClassVar

from sp.evals.story import Question
from sp.evals.tasks.json import Json, ask, draw_values
from sp.evals.text.filler import Sentence
from sp.evals.text.records import HELD_OUT, JsonPhrases
from sp.evals.transcripts.plan import Slot
from sp.evals.transcripts.threads import THREADS, Thread, Told

TASK = Json()


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@cache
def in_json(phrases: JsonPhrases) -> JsonPhrases:
    """The phrases with those layouts that are JSON."""
    layouts = []
    for layout in phrases.layouts:
        one, rng = replace(phrases, layouts=(layout,)), random.Random(0)
        words = list(phrases.vocabularies[0][: TASK.words])
        if is_json(TASK.record(rng, one, "a-b", words, iter(draw_values(rng, TASK.values))).text):
            layouts.append(layout)
    return replace(phrases, layouts=tuple(layouts))


@THREADS.register("records")
@dataclass(frozen=True)
class RecordsThread(Thread):
    """A value by the name of its record and the path inside it."""

    phrases: JsonPhrases = field(default=HELD_OUT, repr=False)

    spacing: ClassVar[int] = 1024

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; every record has the same groups and fields."""
        phrases = in_json(self.phrases)
        words = rng.sample(rng.choice(phrases.vocabularies), TASK.words)
        wanted = {turn: [slot for slot in slots if slot.results[0] == turn] for turn in room}
        amount = {turn: max(places, len(wanted[turn])) for turn, places in room.items()}
        total = sum(amount.values())
        names = ["-".join(parts) for parts in rng.sample(list(product(*self.names(0))), total)]
        values, questions = iter(draw_values(rng, total * TASK.values)), dict[Slot, Question]()
        passages: dict[int, list[str]] = {}
        for turn, number in amount.items():
            records = [TASK.record(rng, phrases, names.pop(), words, values) for _ in range(number)]
            for slot, record in zip(wanted[turn], rng.sample(records, len(wanted[turn])), strict=True):
                group = rng.choice(record.groups[(TASK.words + 1) // 2 :])  # away from the name, as the task has it
                questions[slot] = ask(rng, phrases, record, group, "path")
            passages[turn] = [record.text for record in records]
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; records of other names and any vocabulary."""
        phrases, names = in_json(self.phrases), self.names(1)
        while True:
            words = rng.sample(rng.choice(phrases.vocabularies), TASK.words)
            name = "-".join(map(rng.choice, names))
            values = iter(draw_values(rng, TASK.values))
            yield Sentence(TASK.record(rng, phrases, name, words, values).text, True)

    def names(self, half: int) -> tuple[Sequence[str], ...]:
        """Parts of names: of the records with 0, of those between with 1, so that a name is there once."""
        first, *others = self.phrases.names
        return first[half::2], *others
