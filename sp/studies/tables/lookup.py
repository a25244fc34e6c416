"""Records looked up by benchmark and configuration, and the Markdown of all tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sp.errors import ConfigError

Record = Mapping[str, Any]
GIB = float(1 << 30)
LIBRARIES = {"cublas": "cuBLAS", "cudnn": "cuDNN", "flash-attention-2": "FlashAttention-2"}
"""Paths of records that time a library in place of kernels of ours."""
MARK = "†"
OLD = "older_kernels"  # key of a record whose kernels have changed since, see `sp.studies.tables.page`


def find(records: Sequence[Record], bench: str, /, **config: object) -> Record | None:
    """The record of a benchmark whose configuration has these values, None also standing for a key that is not there;
    None if there is none. ConfigError: there are several.

    >>> made = [{"bench": "load", "config": {"file_bytes": n}} for n in (1, 2)]
    >>> find(made, "load", file_bytes=2, mode=None)["config"], find(made, "load", file_bytes=3)
    ({'file_bytes': 2}, None)
    """
    found = [
        record
        for record in records
        if record.get("bench") == bench and all(record["config"].get(key) == value for key, value in config.items())
    ]
    if len(found) > 1:
        raise ConfigError(f"{len(found)} records {bench} have {config}; keep those of one pair and machine")
    return found[0] if found else None


def metric(record: Record | None, name: str, form: str) -> str:
    """A metric as it stands in a table, with its age; nothing where there is no record."""
    return "" if record is None else f"{record['metrics'][name]:{form}}{age(record)}"


def age(record: Record) -> str:
    """What stands behind a figure whose kernels have changed since: date and commit, which `with_note` makes a mark.

    >>> age({OLD: True, "date": "2026-11-20T19:16:16+00:00", "commit": "abc1234def"}), age({})
    (' †[2026-11-20 abc1234]', '')
    """
    if not record.get(OLD):
        return ""
    return f" {MARK}[{str(record.get('date', ''))[:10]} {str(record.get('commit') or 'unknown')[:7]}]"


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.1f} %"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, its first `left` columns text and the others numbers.

    >>> print(markdown(["a", "b"], [["x", "1"]]))
    | a | b |
    |---|---:|
    | x | 1 |
    """
    rule = "|" + "|".join(["---"] * left + ["---:"] * (len(heads) - left)) + "|"
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float | None, form: str, unit: str = "") -> str:
    """A number in a form; nothing for None."""
    return "" if value is None else f"{value:{form}}{unit}"


def grouped(row: Record, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Milliseconds of a flat row's stages, added up by group, and of those that no group names."""
    stages = {name.removesuffix(" (ms)"): value for name, value in row.items() if name.endswith(" (ms)")}
    sums = [sum(stages.pop(stage, 0.0) for stage in group) for group in groups.values()]
    return [f"{value:.1f}" if value else "" for value in (*sums, sum(stages.values()))]
