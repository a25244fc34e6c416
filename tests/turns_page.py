"""The tables of answers in docs/conversations.md, made from rows of `sp eval turns`; run it to print them anew."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from models_page import table

from sp.evals.turns.ways import ALL, summarise_turns

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "conversations.md"
HEADS = "way", "scorer", "keep ratio", "n", "right (%)", "against full (points)", "older value (%)", "tokens held"


def files() -> list[Path]:
    """Rows by machine."""
    return sorted((ROOT / "results").glob("*/instrument/turns_*.jsonl.gz"))


def table_of(path: Path) -> list[str]:
    """The lines of the table of a file of rows: all kinds of questions together."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return table(HEADS, [cells(line) for line in summarise_turns(rows) if line["kind"] == ALL])


def cells(line: dict[str, Any]) -> list[str]:
    """A line of the summary."""
    whole = line["keep_ratio"] == 1
    against = (line.get(name) for name in ("against_full", "against_full_low", "against_full_high"))
    points = [f"{100 * value:+.1f}" for value in against if value is not None]
    return [
        line["way"],
        "" if whole else line["scorer"],
        f"{line['keep_ratio']:g}",
        str(line["n"]),
        f"{100 * line['accuracy']:.1f} ({100 * line['low']:.1f} to {100 * line['high']:.1f})",
        "" if line["way"] == "full" or not points else f"{points[0]} ({points[1]} to {points[2]})",
        f"{100 * line['outdated']:.1f}",
        f"{line['kept_tokens']:,.0f}",
    ]


if __name__ == "__main__":
    for path in files():
        print(path.relative_to(ROOT), "", *table_of(path), "", sep="\n")
