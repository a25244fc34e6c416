"""Parts of a page that are made from records: what stands between two marks is written, never edited."""

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

TOLD = re.compile(rf" {MARK}\[(?P<date>\S*) (?P<commit>\S*)\]")
NAMED = 3  # commits that a note names one by one


def with_age(records: Sequence[Record]) -> list[Record]:
    """The records, those of kernels that have changed since told by the key `OLD`.

    Records without kernels of ours, as another engine's or a library's, have no age.

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
    """Marks made short, and below the text what they mean: when, and at which commits, those figures were measured.

    >>> with_note("| 1.2 †[2026-11-20 abc1234] |").splitlines()[-1].partition("since ")[2]
    '(measured 2026-11-20, commit abc1234).'
    """
    found = sorted({(one["date"], one["commit"]) for one in TOLD.finditer(text)})
    if not found:
        return text
    days = list(dict.fromkeys(date for date, _ in found))
    commits = list(dict.fromkeys(commit for _, commit in found))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    if len(commits) == 1:
        where = f"commit {commits[0]}"
    elif len(commits) <= NAMED:
        where = f"commits {', '.join(commits)}"
    else:
        where = f"{len(commits)} commits, {commits[0]} the first and {commits[-1]} the last"
    note = f"{MARK} Older kernels: these, or code that launches them, changed since (measured {when}, {where})."
    return f"{TOLD.sub(f' {MARK}', text)}\n\n{note}"


class Part(NamedTuple):
    """One part: the marks it stands between, and what makes it from records.

    >>> {part.make([]).partition(" ")[0] for part in PARTS}
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
    Part(f"<!-- {name}: made by `sp report`, not by hand -->", f"<!-- end of {name} -->", make)
    for name, make in MADE.items()
)


def fill(page: str, records: Sequence[Any]) -> str:
    """The page with every part that it has marks for made anew; figures of older kernels are marked and explained.
    ConfigError: it has marks for none, or see `insert_between`."""
    wanted = marked(page)
    if not wanted:
        raise ConfigError(f"the page has no marks of a part made from records, such as {PARTS[0].begin}")
    told = with_age(records)
    for part in wanted:
        page = insert_between(page, part.begin, part.end, with_note(part.make(told)))
    return page


def marked(page: str) -> list[Part]:
    """The parts that a page has a mark of."""
    return [part for part in PARTS if part.begin in page or part.end in page]


def insert_between(text: str, first: str, last: str, table: str) -> str:
    """`text` with `table` between two lines of it; ConfigError unless they are there, once each and in order."""
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end or first in rest or last in tail or last in head:
        raise ConfigError(f"the page lacks the two lines {first} and {last}, once each; put them where the table goes")
    return f"{head}{first}\n{table}\n{last}{tail}"
