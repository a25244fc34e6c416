"""Sections of a page that are made from records: the text between two marks is generated, not edited by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sp.bench.record import is_current
from sp.errors import ConfigError
from sp.studies.tables.decode_table import decoding
from sp.studies.tables.headline import first_result, headline
from sp.studies.tables.lookup import LIBRARIES, MARK, OLD, Record
from sp.studies.tables.speed_table import (
    drafters,
    experts,
    kernels,
    mixture_result,
    mixtures,
    sparse_layers,
    whole_models,
)
from sp.studies.tables.turn_page import turn_rows

AGE_MARK = re.compile(rf" {MARK}\[(?P<date>\S*) (?P<commit>\S*)\]")
NAMED = 3  # a note lists up to so many commits, else only the first and the last


def with_age(records: Sequence[Record]) -> list[Record]:
    """Return the records, with the key `OLD` in those whose kernels have changed since.

    Records without kernels of ours, such as those of another engine or a library, never have it.

    >>> old = {"config": {}, "kernels": ["gone.cu"], "kernel_hash": "0"}
    >>> [OLD in record for record in with_age([old, {"config": {}}])]
    [True, False]
    """
    current: dict[tuple[tuple[str, ...], str], bool] = {}  # many records are of the same few sets of sources

    def changed(record: Record) -> bool:
        if not record.get("kernels") or record["config"].get("path") in LIBRARIES:
            return False
        key = tuple(record["kernels"]), record["kernel_hash"]
        if key not in current:
            current[key] = is_current(record)
        return not current[key]

    return [{**record, OLD: True} if changed(record) else record for record in records]


def with_note(text: str) -> str:
    """Shorten the marks of older figures, and add a note on the dates and commits of their measurement.

    >>> with_note("| 1.2 †[2026-11-20 abc1234] |").splitlines()[-1].partition(";")[0]
    '† Measured 2026-11-20 (commit abc1234)'
    """
    origins = sorted({(match["date"], match["commit"]) for match in AGE_MARK.finditer(text)})
    if not origins:
        return text
    days = list(dict.fromkeys(date for date, _ in origins))
    commits = list(dict.fromkeys(commit for _, commit in origins))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    if len(commits) == 1:
        where = f"commit {commits[0]}"
    elif len(commits) <= NAMED:
        where = f"commits {', '.join(commits)}"
    else:
        where = f"{len(commits)} commits, {commits[0]} the first and {commits[-1]} the last"
    note = f"{MARK} Measured {when} ({where}); the kernels or their launch code have changed since."
    return f"{AGE_MARK.sub(f' {MARK}', text)}\n\n{note}"


class PageSection(NamedTuple):
    """A generated section: the two marks around it, and the function that makes it from records.

    >>> {section.make([]).partition(" ")[0] for section in PARTS}
    {'No'}
    """

    begin: str
    end: str
    make: Callable[[Sequence[Any]], str]


MADE: dict[str, Callable[[Sequence[Any]], str]] = {
    "result": first_result,
    "mixture result": mixture_result,
    "mixtures": mixtures,
    "experts": experts,
    "speed": whole_models,
    "kernels": kernels,
    "sparse layers": sparse_layers,
    "drafter": drafters,
    "headline": headline,
    "decoding": decoding,
    "turns": turn_rows,
}
PARTS = tuple(
    PageSection(f"<!-- {name}: made by `sp report`, not by hand -->", f"<!-- end of {name} -->", make)
    for name, make in MADE.items()
)


def fill(page: str, records: Sequence[Any]) -> str:
    """Return the page with all its generated sections made from the records; figures of older kernels are marked.

    ConfigError if it has no marks, or marks that are not in pairs (`insert_between`).
    """
    sections = marked(page)
    if not sections:
        raise ConfigError(f"the page has no marks of a generated section; add such as {PARTS[0].begin}")
    dated = with_age(records)
    for section in sections:
        page = insert_between(page, section.begin, section.end, with_note(section.make(dated)))
    return page


def marked(page: str) -> list[PageSection]:
    """Return the sections of which a page has a mark."""
    return [section for section in PARTS if section.begin in page or section.end in page]


def insert_between(text: str, first: str, last: str, table: str) -> str:
    """Return `text` with `table` between two of its lines; ConfigError unless it has each once, in this order."""
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    # A mark that occurs twice, or in the wrong order, would have text between the wrong marks overwritten.
    if not begin or not end or first in rest or last in tail or last in head:
        raise ConfigError(f"the page must have the lines {first} and {last} once each; put them around the table")
    return f"{head}{first}\n{table}\n{last}{tail}"
