"""Texts to hide needles in: real prose and real code that every Python has, and generated records and logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from typing import Any

from sp.errors import ConfigError
from sp.scoring.calibration.phrasings import Phrasing, fill

Count = Callable[[str], int]
"""Tokens of a text."""
CODE_MODULES = ("argparse", "json.decoder", "textwrap", "csv", "heapq", "configparser", "difflib", "calendar")


@dataclass(frozen=True)
class Text:
    """A document with its needles."""

    kind: str  # name in `KINDS`
    document: str
    needles: tuple[Phrasing, ...]  # as they stand in it, each with its question


def prose(rng: random.Random) -> Iterator[str]:
    """Paragraphs of Python's reference manual, without end; ConfigError where this Python has none."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:
        raise ConfigError("this Python lacks pydoc_data, whose text a calibration reads; take another Python") from None
    names = sorted(topics)
    for name in cycle(rng.sample(names, len(names))):
        for paragraph in topics[name].split("\n\n"):
            yield f"{' '.join(paragraph.split())}\n"


def code(rng: random.Random) -> Iterator[str]:
    """Lines of modules of the standard library, without end; ConfigError where this Python has no source."""
    for name in cycle(rng.sample(CODE_MODULES, len(CODE_MODULES))):
        loader: Any = getattr(find_spec(name), "loader", None)
        source = loader.get_source(name) if hasattr(loader, "get_source") else None
        if not source:
            raise ConfigError(f"this Python has no source of {name}, which a calibration reads; take another Python")
        lines = source.splitlines(keepends=True)
        yield from lines[rng.randrange(len(lines) // 2) :]


def records(rng: random.Random) -> Iterator[str]:
    """JSON, one object a line, without end."""
    states, zones = ("queued", "paid", "returned", "lost", "open"), ("north", "east", "harbour", "centre", "hill")
    while True:
        yield (
            f'{{"id": {rng.randrange(10_000, 99_999)}, "state": "{rng.choice(states)}", "zone": "{rng.choice(zones)}", '
            f'"weight": {rng.randrange(1, 900) / 10}, "items": {rng.randrange(1, 40)}}}\n'
        )


def log(rng: random.Random) -> Iterator[str]:
    """Lines of a log, without end."""
    parts, verbs = ("scheduler", "mailer", "indexer", "proxy", "archive"), ("started", "retried", "skipped", "finished")
    seconds = rng.randrange(40_000)
    while True:
        seconds += rng.randrange(1, 30)
        stamp = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        level = rng.choice(("INFO", "INFO", "WARN", "DEBUG"))
        job = f"{rng.choice(verbs)} job {rng.randrange(9999)} in {rng.randrange(900)} ms"
        yield f"{stamp} {level} {rng.choice(parts)}: {job}\n"


@dataclass(frozen=True)
class Kind:
    """A kind of text: its pieces without end, and how a needle stands between them as {needle}."""

    pieces: Callable[[random.Random], Iterator[str]]
    frame: str


KINDS = {
    "prose": Kind(prose, "{needle}\n"),
    "code": Kind(code, "# {needle}\n"),
    "json": Kind(records, '{{"note": "{needle}"}}\n'),
    "log": Kind(log, "{needle}\n"),
}


def make_text(kind: str, phrasings: tuple[Phrasing, ...], tokens: int, count: Count, rng: random.Random) -> Text:
    """A document of about so many tokens with needles spread over it.

    ConfigError: this Python lacks the text.
    """
    made = KINDS[kind]
    filled = fill(phrasings, rng)
    framed = [made.frame.format(needle=needle) for needle, _ in filled]
    room = tokens - sum(map(count, framed))
    pieces: list[str] = []
    for piece in made.pieces(rng):
        if (room := room - count(piece)) < 0:
            break
        pieces.append(piece)
    order = rng.sample(range(len(framed)), len(framed))
    for slot, index in reversed(list(enumerate(order))):  # from the end, so that earlier places stay
        share = (slot + rng.uniform(0.2, 0.8)) / len(framed)
        pieces.insert(max(1, round(share * len(pieces))) if pieces else 0, framed[index])
    return Text(kind, "".join(pieces), tuple(filled))
