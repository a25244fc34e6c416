"""The age of figures: which records are of kernels that have changed since, marked where a table has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sp.bench.record import is_current
from sp.studies.tables.lookup import LIBRARIES, MARK, OLD

Record = Mapping[str, Any]
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
