"""Plain facts, named by their keys, in the form of the tool that tells them: `fact` of `sp.evals.tasks`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sp.evals.story import Question
from sp.evals.tasks.fact import HELD_OUT, FactForm, FactPhrases
from sp.evals.text.filler import Sentence
from sp.evals.text.keys import key_of
from sp.evals.transcripts.plan import Slot
from sp.evals.transcripts.threads import THREADS, Thread, Told
from sp.evals.transcripts.tools import TOOLBOX

FILES = 12
"""Lines of a file that match a search, about."""


@THREADS.register("facts")
@dataclass(frozen=True)
class FactsThread(Thread):
    """The number of a key: the question names it as the result does, so words match."""

    phrases: FactPhrases = field(default=HELD_OUT, repr=False)

    spacing: ClassVar[int] = 480
    words_match: ClassVar[bool] = True

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; no key and no value is told twice."""
        choose, used = rng.choice, set[str]()

        def draw(turn: int) -> tuple[str, str, str]:
            form = self.form(tools[turn])
            while True:
                key = key_of(choose(form.styles), rng, self.phrases.adjectives, self.phrases.nouns)
                value = str(rng.randrange(10 ** choose((2, 3, 4, 5, 6)), 10**7))
                bare = key.lower().replace("_", "-")
                if used.isdisjoint((bare, value)):
                    used.update((bare, value))
                    return key, value, form.frames[0].replace("{key}", key).replace("{value}", value)

        passages: dict[int, list[str]] = {turn: [] for turn in room}
        questions = {}
        for slot in slots:
            key, value, said = draw(slot.results[0])
            passages[slot.results[0]].append(said)
            questions[slot] = Question(choose(self.phrases.questions).replace("{key}", key), (value,), (said,))
        for turn, places in room.items():
            passages[turn] += [draw(turn)[2] for _ in range(places - len(passages[turn]))]
            rng.shuffle(passages[turn])
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; lines of the kind that the form belongs in, below files where it is found in such."""
        for line in self.phrases.fillers[self.form(tool).filler](rng):
            if tool == "search" and rng.randrange(FILES) == 0:
                yield Sentence(f"{TOOLBOX['read_file'].value(rng)}:", True)
            yield line

    def form(self, tool: str) -> FactForm:
        """How a tool's results have facts: in the form that is called so, or the first for such text."""
        wanted = TOOLBOX[tool].form
        named = [one for one in self.phrases.forms if wanted == one.name]
        return (named or [one for one in self.phrases.forms if wanted == one.filler and len(one.frames) == 1])[0]
