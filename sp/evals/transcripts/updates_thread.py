"""Figures of things that are told again and again, the last one counts: `updates` of `sp.evals.tasks`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sp.evals.story import Question
from sp.evals.tasks.updates import HELD_OUT, TIMES, UpdatesPhrases
from sp.evals.text.filler import Sentence
from sp.evals.text.lines import FILLERS
from sp.evals.text.told import capital, tell
from sp.evals.text.world import RELATIONS
from sp.evals.transcripts.plan import Slot
from sp.evals.transcripts.threads import THREADS, Thread, Told, spread

LATER = 0.5
"""How often what is asked of is told once more in a result after the question, if one follows."""


@THREADS.register("updates")
@dataclass(frozen=True)
class UpdatesThread(Thread):
    """The last figure of a thing that is named by its kind, which no result tells."""

    phrases: UpdatesPhrases = field(default=HELD_OUT, repr=False)

    spacing: ClassVar[int] = 128

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; a thing is told of in each of its results, in a single one twice."""
        told: list[list[int]] = []  # turns in which a thing is told of
        for slot in slots:
            later = [turn for turn in room if turn > slot.turn]
            more = [rng.choice(later)] if later and rng.random() < LATER else []
            told.append([slot.results[0], slot.results[-1], *more])
        free = spread(rng, room, [turn for turns in told for turn in turns])
        told += [free[at : at + TIMES] for at in range(0, len(free), TIMES)]
        kinds = [(relation, at) for relation in rng.sample(RELATIONS, 2) for at in range(len(relation.kinds))]
        told = told[: len(kinds)]
        things = [(r, rng.choice(r.things[at :: len(r.kinds)])) for r, at in rng.sample(kinds, len(told))]
        order = sorted((turn, rng.random(), thing) for thing, turns in enumerate(told) for turn in turns)
        figures = iter(_figures(rng, len(order)))
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        known: list[list[tuple[int, int, str]]] = [[] for _ in things]  # turn, figure, statement
        for turn, _, at in order:
            figure, (relation, thing), before = next(figures), things[at], known[at]
            frames = self.phrases.stated
            if before and rng.random() < 0.6:
                frames = self.phrases.raised if figure > before[-1][1] else self.phrases.lowered
            named = relation.named(thing)
            said = tell(rng, rng.choice(frames), self.phrases.before, self.phrases.after, thing=named, value=figure)
            passages[turn].append(said)
            before.append((turn, figure, said))
        questions, stale = {}, {}
        for slot, (relation, thing), found in zip(slots, things, known, strict=False):
            until = [one for one in found if one[0] <= slot.turn]
            what = rng.choice(self.phrases.by_kind[relation.name]).format(kind=relation.of[thing])
            text = capital(rng.choice(self.phrases.last).format(what=what))
            questions[slot] = Question(text, (str(until[-1][1]),), (until[-1][2],))
            stale[slot] = tuple(str(one[1]) for one in until[:-1])
        return Told(passages, questions, stale)

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; lines of a log."""
        return FILLERS["log"](rng)


def _figures(rng: random.Random, amount: int) -> list[int]:
    """Different numbers of three to five digits, half of them with fewer than five."""
    found: dict[int, None] = {}
    while len(found) < amount:
        found.setdefault(rng.randrange(100, 10 ** rng.choice((4, 5))))
    return list(found)
