"""Markdown tables of rows of natural questions: evidence kept whole, and why it was lost.

``python tables.py sp-sweep/real/rows.jsonl > tables.md``; `rows.py` says which files it reads. Shares are in %, with
Wilson's 95 % interval and n.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import read_sets

from sp.evals.natural.rows import REASONS
from sp.evals.summary import wilson

Row = Mapping[str, Any]


def main() -> None:
    """Print the tables of all sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="rows, as they are or compressed with gzip")
    parser.add_argument("--set", help="name of the set of all files, where they do not say it")
    given = parser.parse_args()
    for name, rows in read_sets(given.files, given.set).items():
        print("\n".join(page(name, rows)))


def page(name: str, rows: Sequence[Row]) -> list[str]:
    """Tables of one set."""
    groups: dict[str, Callable[[Row], bool]] = {"hard": lambda row: row["hard"], "easy": lambda row: not row["hard"]}
    groups = {group: takes for group, takes in groups.items() if any(map(takes, rows))}
    kinds = list(dict.fromkeys(row["text_kind"] for row in rows))
    by_kind: dict[str, Callable[[Row], bool]] = {
        kind: lambda row, kind=kind: row["text_kind"] == kind for kind in kinds
    }
    files = sorted({row["models"]["drafter"]["file"] for row in rows})
    lines = ["", f"### {name}", "", f"Drafter: {', '.join(files)}. Evidence kept whole, %."]
    lines += ["", *shares(rows, groups), "", "By kind of text:", "", *shares(rows, by_kind)]
    return [*lines, "", "Evidence that was lost, by reason:", "", *misses(rows)]


def shares(rows: Sequence[Row], groups: Mapping[str, Callable[[Row], bool]]) -> list[str]:
    """A row a scorer, a column a keep ratio and group."""
    keeps = keep_ratios(rows)
    head = ["scorer", *(f"{keep:g}, {group}" for keep in keeps for group in groups)]
    body = []
    for scorer, own in by_scorer(rows).items():
        cells = [
            share([row["whole"] for row in own if row["keep_ratio"] == keep and takes(row)])
            for keep in keeps
            for takes in groups.values()
        ]
        body.append([scorer, *cells])
    return table(head, body)


def misses(rows: Sequence[Row]) -> list[str]:
    """A row a scorer and keep ratio, a column a reason, with the median rank of lost evidence among its chunks."""
    body = []
    for scorer, own in by_scorer(rows).items():
        for keep in keep_ratios(rows):
            cell = [row for row in own if row["keep_ratio"] == keep]
            lost = [row for row in cell if not row["whole"]]
            if lost:
                reasons = Counter(row["reason"] for row in lost)
                ranks = sorted(row["rank"] / row["scored_chunks"] for row in lost if row["rank"] is not None)
                depth = f"{100 * ranks[len(ranks) // 2]:.0f} %" if ranks else ""
                counts = [str(reasons[reason] or "") for reason in REASONS]
                body.append([scorer, f"{keep:g}", f"{len(lost)} of {len(cell)}", *counts, depth])
    return table(["scorer", "keep", "lost", *REASONS, "median rank of lost"], body)


def share(whole: Sequence[bool]) -> str:
    """How many, in %, with interval and n.

    Examples
    --------
    >>> share([True] * 3 + [False])
    '75 (30-95), n = 4'
    """
    if not whole:
        return ""
    low, high = wilson(sum(whole), len(whole))
    return f"{100 * sum(whole) / len(whole):.0f} ({100 * low:.0f}-{100 * high:.0f}), n = {len(whole)}"


def by_scorer(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by scorer, and by selector where it is not the default, in the order of the files."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        selector = "" if row["selector"] in ("top_chunks", "full") else f", {row['selector']}"
        found.setdefault(f"`{row['scorer']}`{selector}", []).append(row)
    return found


def keep_ratios(rows: Iterable[Row]) -> list[float]:
    """All of them, the largest first."""
    return sorted({row["keep_ratio"] for row in rows}, reverse=True)


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """Markdown; figures stand right."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *body)]


if __name__ == "__main__":
    main()
