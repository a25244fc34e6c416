"""Whether a frame says what a held-out one says in the same words, were it with other marks or among other text.

Held-out frames are kept from training as strings by what makes the lists; a grammar puts words together freely, so what
it makes is compared word by word. Words themselves are free: that "within" stands in a held-out frame does not keep it
from being learned in others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from sp.evals import TASKS
from sp.evals.story import StoryTask

from .expand import held

WORD = re.compile(r"\{\w*\}|[a-z0-9]+")
RUN = 4
"""So many words beside a slot, one after another as in a held-out frame, are an echo of it."""
LONGEST = 24
Words = tuple[str, ...]


def words(text: str) -> Words:
    """The words of a frame in small letters; any slot is `_`.

    Examples
    --------
    >>> words("Go to {name}, and look!")
    ('go', 'to', '_', 'and', 'look')
    """
    return tuple("_" if one[0] == "{" else one for one in WORD.findall(text.lower()))


def runs(found: Words) -> Iterator[Words]:
    """Runs of `RUN` words with a slot at an end or inside."""
    for start in range(len(found)):
        for end in range(start + RUN + 1, min(len(found), start + RUN + 4) + 1):
            run = found[start:end]
            if "_" in run and len(run) - run.count("_") == RUN:
                yield run


@cache
def taken() -> frozenset[Words]:
    """What no frame may have inside: whole held-out strings of two words or more, and runs of frames."""
    found: set[Words] = set()
    for name in TASKS:
        task = TASKS.class_of(name)
        if not issubclass(task, StoryTask):
            continue
        for phrases in filter(None, (task.held_out, task.fresh)):
            for text in held(phrases):
                one = words(text)
                if len(one) - one.count("_") >= 2:
                    found.add(one)
                if "_" in one:
                    found.update(runs(one))
    return frozenset(found)


@cache
def whole() -> frozenset[Words]:
    """Held-out frames of a single word beside their slots, which only count where nothing else is said."""
    frames = (
        words(text)
        for name in TASKS
        if issubclass(task := TASKS.class_of(name), StoryTask)
        for phrases in filter(None, (task.held_out, task.fresh))
        for text in held(phrases)
        if "{" in text
    )
    return frozenset(one for one in frames if len(one) - one.count("_") == 1)


def echoes(frame: str) -> bool:
    """Whether a held-out frame, or a run of words of one, stands in this one.

    Examples
    --------
    >>> echoes("{a}, which is within {b}"), echoes("{a} lies within {b}")
    (True, False)
    """
    said, forbidden = words(frame), taken()
    if said in whole():
        return True
    return any(
        said[start:end] in forbidden
        for start in range(len(said))
        for end in range(start + 2, min(len(said), start + LONGEST) + 1)
    )
