"""Parts of a page that are made from records: what stands between two marks is written, never edited."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sp.bench.record import is_current
from sp.errors import ConfigError
from sp.studies.tables.decode_table import decoding
from sp.studies.tables.first_result import first_result
from sp.studies.tables.headline import headline
from sp.studies.tables.lookup import LIBRARIES, MARK, OLD, Record
from sp.studies.tables.mixture_table import experts, mixture_result, mixtures
from sp.studies.tables.sparse_table import drafters, sparse_layers
from sp.studies.tables.speed_table import kernels, whole_models
from sp.studies.tables.turn_page import turn_rows

TOLD = re.compile(rf" {MARK}\[(?P<date>\S*) (?P<commit>\S*)\]")
NAMED = 3
"""Commits that a note names one by one."""


def with_age(records: Sequence[Record]) -> list[Record]:
    """The records, those of kernels that have changed since told by the key `OLD`.

    Records without kernels of ours, as another engine's or a library's, have no age.

    Examples
    --------
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

    Examples
    --------
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
    """One part: the marks it stands between, and what makes it from records."""

    begin: str
    end: str
    make: Callable[[Sequence[Any]], str]


def _part(name: str, make: Callable[[Sequence[Any]], str]) -> Part:
    return Part(f"<!-- {name}: made by `sp report`, not by hand -->", f"<!-- end of {name} -->", make)


PARTS = (
    _part("result", first_result),
    _part("mixture result", mixture_result),
    _part("mixtures", mixtures),
    _part("experts", experts),
    _part("speed", whole_models),
    _part("kernels", kernels),
    _part("sparse layers", sparse_layers),
    _part("drafter", drafters),
    _part("headline", headline),
    _part("decoding", decoding),
    _part("turns", turn_rows),
)


def fill(page: str, records: Sequence[Any]) -> str:
    """The page with every part that it has marks for made anew; figures of older kernels are marked and explained.

    Raises
    ------
    ConfigError
        It has marks for none, or see `insert_between`.

    Examples
    --------
    >>> from sp.studies.tables.first_result import NOTHING
    >>> part = PARTS[0]
    >>> NOTHING in fill(f"{part.begin}\\nold\\n{part.end}", [])
    True
    """
    wanted = marked(page)
    if not wanted:
        raise ConfigError(f"the page has no marks of a part made from records, such as {PARTS[0].begin}")
    told = with_age(records)
    for part in wanted:
        page = insert_between(page, part.begin, part.end, with_note(part.make(told)))
    return page


def marked(page: str) -> list[Part]:
    """The parts that a page has a mark of.

    Examples
    --------
    >>> [part.begin for part in marked(f"text {PARTS[-1].begin}")] == [PARTS[-1].begin]
    True
    """
    return [part for part in PARTS if part.begin in page or part.end in page]


def insert_between(text: str, first: str, last: str, table: str) -> str:
    """`text` with `table` between two lines of it.

    Raises
    ------
    ConfigError
        The lines are not there, once each and in order.

    Examples
    --------
    >>> insert_between("a [ old ] z", "[", "]", "new")
    'a [\\nnew\\n] z'
    """
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end or first in rest or last in tail or last in head:
        raise ConfigError(f"the page lacks the two lines {first} and {last}, once each; put them where the table goes")
    return f"{head}{first}\n{table}\n{last}{tail}"
