"""Threads: facts of one sort that run through the results of an agent's tools, and what can be asked of them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sp.config import Registry
from sp.evals.story import Question
from sp.evals.text.filler import Sentence
from sp.evals.transcripts.plan import Slot

THREADS: Registry[Thread] = Registry("thread")


@dataclass(frozen=True)
class Told:
    """What a thread says.

    Parameters
    ----------
    passages : dict of int to list of str
        By turn, those of its result in the order they stand there.
    questions : dict of Slot to Question
        Answers as of the turn of the slot; evidence verbatim in the passages of the slot's results.
    stale : dict of Slot to tuple of str
        Answers that were right before.
    """

    passages: dict[int, list[str]]
    questions: dict[Slot, Question]
    stale: Mapping[Slot, tuple[str, ...]]


class Thread(ABC):
    """Base of threads; each tells stories of one task, in the task's held-out phrases.

    Attributes
    ----------
    spacing : int
        Tokens of a result for each passage.
    words_match : bool
        See `Asked.words_match`.
    """

    spacing: ClassVar[int]
    words_match: ClassVar[bool] = False

    @abstractmethod
    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """Passages for results, and a question for each slot; nothing that is asked of is told twice.

        Parameters
        ----------
        rng : random.Random
        room : mapping of int to int
            About how many passages a result takes, by turn, ascending; what is asked for is always told.
        slots : sequence of Slot
            Questions of this thread.
        tools : sequence of str
            The tool of every turn.
        """

    @abstractmethod
    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """What stands between the passages in results of a tool, without end; it answers none of the questions."""


def spread(rng: random.Random, room: Mapping[int, int], taken: Sequence[int]) -> list[int]:
    """Turns of the places that are left, each as often as it has room, in random order.

    Examples
    --------
    >>> sorted(spread(random.Random(0), {0: 2, 3: 3}, [3, 3, 0, 0, 0]))
    [3]
    """
    free = [turn for turn, places in room.items() for _ in range(places - taken.count(turn))]
    rng.shuffle(free)
    return free
