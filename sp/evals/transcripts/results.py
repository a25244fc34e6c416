"""Results of tools: passages of threads, and between them so much else that a result has the length it is to have."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from sp.errors import ConfigError
from sp.evals.base import Count
from sp.evals.text.filler import Sentence
from sp.evals.text.haystack import haystack
from sp.evals.transcripts.threads import Thread
from sp.evals.transcripts.tools import Tool

RUNS = 1, 8
"""Sentences of one thread's filler where a result has several."""
FULLEST = 0.9
"""Share of a result that its passages may take."""
MOST_TURNS = 20
LEAST, MOST = 512, 8192
"""Tokens of a result."""


def result(
    rng: random.Random, tool: Tool, threads: Mapping[str, Thread], passages: Sequence[str], room: int, count: Count
) -> str:
    """A result of at most `room` tokens and little fewer; of JSON it is one value.

    Raises
    ------
    ConfigError
        If the passages alone take more.
    """
    frame = count(tool.begin) + count(tool.end) if tool.end else 0
    pieces = [f"{one}{tool.between}" for one in passages]
    depths = sorted(rng.random() for _ in pieces)
    lines = (Sentence(f"{one.text}{tool.between}", True) for one in filler(rng, tool, threads))
    found = haystack(lines, pieces, depths, room - frame, count, rng, header=tool.begin)
    return f"{found.text.removesuffix(tool.between) if tool.between else found.text}{tool.end}"


def has_room(tool: Tool, passages: Sequence[str], room: int, count: Count) -> bool:
    """Whether the passages fit a result, with something between them."""
    return sum(count(f" {one}{tool.between}\n") for one in passages) <= FULLEST * room


def filler(rng: random.Random, tool: Tool, threads: Mapping[str, Thread]) -> Iterator[Sentence]:
    """What stands in results of a tool besides the passages, without end."""
    streams = [threads[name].filler(rng, tool.name) for name in tool.threads]
    while True:
        yield from islice(rng.choice(streams), rng.randrange(*RUNS))


def sizes(rng: random.Random, turns: int, room: int) -> list[int]:
    """Tokens of each result, from `LEAST` to `MOST`, half of the mean to one and a half where these allow it.

    Raises
    ------
    ConfigError
        If so many results are too short or too long.

    Examples
    --------
    >>> found = sizes(random.Random(0), 4, 16_000)
    >>> sum(found) <= 16_000, 2_000 <= min(found), max(found) <= 6_000
    (True, True, True)
    """
    mean = room // turns
    if mean < LEAST:
        told = f"{turns} turns leave {max(mean, 0):,} tokens for each result"
        raise ConfigError(f"{told}, which has at least {LEAST}; ask for more tokens, or fewer turns")
    if mean > MOST:
        told = f"{turns} turns make results of {mean:,} tokens"
        raise ConfigError(f"{told}, at most {MOST:,} each; ask for more turns (at most {MOST_TURNS}) or fewer tokens")
    reach = min(mean / 2, mean - LEAST, MOST - mean)
    drawn = [rng.uniform(-reach, reach) for _ in range(turns)]
    middle = sum(drawn) / turns
    widest = max(1.0, *(abs(one - middle) / reach for one in drawn)) if reach else 1.0
    return [int(mean + (one - middle) / widest) for one in drawn]
