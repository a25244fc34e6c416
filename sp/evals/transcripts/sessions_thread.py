"""Messages of a chat: who somebody is, and what became of them, in one channel or two: `multi_session`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import ClassVar

from sp.evals.story import Question
from sp.evals.tasks.multi_session import HELD_OUT, KIN, MONTHS, MultiSession, SessionPhrases
from sp.evals.text.filler import Sentence
from sp.evals.text.told import people, tell
from sp.evals.transcripts.plan import Slot
from sp.evals.transcripts.threads import THREADS, Thread, Told, spread

PAIRS = 6
"""Relatives of one speaker, about."""


@THREADS.register("sessions")
@dataclass(frozen=True)
class SessionsThread(Thread):
    """What became of somebody's relative: one message says who that is, another tells of them by name."""

    phrases: SessionPhrases = field(default=HELD_OUT, repr=False)

    spacing: ClassVar[int] = 128

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; of two results either may come first, and days go on from result to result."""
        choose, sorts = rng.choice, [sort for sort in self.phrases.asked if sort in self.phrases.facts]
        homes = [rng.sample([slot.results[0], slot.results[-1]], 2) for slot in slots]
        free = spread(rng, room, [turn for pair in homes for turn in pair])
        pairs = [*homes, *([one, other] for one, other in zip(free[::2], free[1::2], strict=False))]
        speakers = people(rng, self.phrases.first, self.phrases.last, max(2, -(-len(pairs) // PAIRS)))
        known = {word for one in speakers for word in one.split()}
        names = people(rng, self.phrases.first, self.phrases.last, len(pairs), known)
        roles = rng.sample([(who, kin) for who in speakers for kin in KIN], len(pairs))
        said: list[tuple[int, float, str]] = []
        evidence, values = [], []
        for (link_in, told_in), name, (speaker, kin) in zip(pairs, names, roles, strict=True):
            sort = choose(sorts)
            value = str(rng.randrange(10_000, 10**6)) if sort == "number" else choose(self.phrases.values[sort])
            other = choose([one for one in speakers if one != speaker])
            how = self.phrases.before, self.phrases.after
            link = f"{speaker}: {tell(rng, choose(self.phrases.links), *how, kin=kin, name=name)}"
            told = f"{other}: {tell(rng, choose(self.phrases.facts[sort]), *how, name=name, value=value)}"
            said += [(link_in, rng.random(), link), (told_in, rng.random(), told)]
            evidence.append((link, told))
            values.append((sort, value))
        day, header = date(2023, 1, 1) + timedelta(rng.randrange(365)), choose(self.phrases.headers)
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        for turn, _, text in sorted(said):
            day += timedelta(choose((1, 1, 2, 2, 3)))
            passages[turn].append(f"{header.format(day=f'{day.day} {MONTHS[day.month - 1]} {day.year}')}\n{text}")
        questions = {}
        for slot, (speaker, kin), parts, (sort, value) in zip(slots, roles, evidence, values, strict=False):
            whom = choose(self.phrases.whom).format(kin=kin, speaker=speaker)
            questions[slot] = Question(choose(self.phrases.asked[sort]).format(whom=whom), (value,), parts)
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; small talk."""
        return MultiSession().filler(rng, self.phrases)
