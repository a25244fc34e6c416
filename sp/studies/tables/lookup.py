"""Look up records by benchmark and configuration, and write Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sp.errors import ConfigError

Record = Mapping[str, Any]
GIB = float(1 << 30)
LIBRARIES = {"cublas": "cuBLAS", "cudnn": "cuDNN", "flash-attention-2": "FlashAttention-2"}
"""Names of libraries by the kernel path of their records, which do not time our kernels."""
MARK = "†"
OLD = "older_kernels"  # key of a record whose kernels have changed since, see `sp.studies.tables.page`


def find(records: Sequence[Record], bench: str, /, **config: object) -> Record | None:
    """Return the record of a benchmark whose configuration has these values; None if there is none.

    The value None also matches a missing key. ConfigError if there are several records.

    >>> made = [{"bench": "load", "config": {"file_bytes": n}} for n in (1, 2)]
    >>> find(made, "load", file_bytes=2, mode=None)["config"], find(made, "load", file_bytes=3)
    ({'file_bytes': 2}, None)
    """
    matches = [
        record
        for record in records
        if record.get("bench") == bench and all(record["config"].get(key) == value for key, value in config.items())
    ]
    if len(matches) > 1:
        raise ConfigError(f"{len(matches)} records of bench {bench} have {config}; keep those of one pair and machine")
    return matches[0] if matches else None


def metric(record: Record | None, name: str, form: str) -> str:
    """Format a metric for a table, with the mark of older kernels; empty without a record."""
    return "" if record is None else f"{record['metrics'][name]:{form}}{age(record)}"


def age(record: Record) -> str:
    """Return date and commit to follow a figure whose kernels have changed since; `with_note` makes them a mark.

    >>> age({OLD: True, "date": "2026-11-20T19:16:16+00:00", "commit": "abc1234def"}), age({})
    (' †[2026-11-20 abc1234]', '')
    """
    if not record.get(OLD):
        return ""
    return f" {MARK}[{str(record.get('date', ''))[:10]} {str(record.get('commit') or 'unknown')[:7]}]"


def percent(share: float) -> str:
    """Format a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a Markdown table; its first `text_columns` columns are aligned to the left, the others to the right.

    >>> print(markdown(["a", "b"], [["x", "1"]]))
    | a | b |
    |---|---:|
    | x | 1 |
    """
    rule = "|" + "|".join(["---"] * text_columns + ["---:"] * (len(heads) - text_columns)) + "|"
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float | None, form: str, unit: str = "") -> str:
    """Format a number by a format specification; empty for None."""
    return "" if value is None else f"{value:{form}}{unit}"


def grouped(row: Record, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the milliseconds of a flat row's stages, summed by group, then of the stages without a group."""
    stages = {name.removesuffix(" (ms)"): value for name, value in row.items() if name.endswith(" (ms)")}
    sums = [sum(stages.pop(stage, 0.0) for stage in group) for group in groups.values()]
    return [f"{value:.1f}" if value else "" for value in (*sums, sum(stages.values()))]
