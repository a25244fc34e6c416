"""Records of rows of natural questions (see `rows.py`): python evidence.py ROWS.jsonl... --record FOLDER

One record a set, scorer, keep ratio and kind: the share of questions whose evidence was kept whole, with its 95 %
interval. Questions that ship are hard, where they share at most 0.34 of their words with the evidence, or easy; planted
facts go by the kind of text. `tables.py` prints the same rows as tables.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from rows import read_sets

from sp.bench.record import append, make_record
from sp.evals.summary import wilson

PLANTED = {"prose", "code", "jsonl"}
"""Kinds of text that `needles.py` hides facts in."""


def groups(rows: list[dict[str, Any]]) -> dict[tuple[str, float, str], list[dict[str, Any]]]:
    """Rows by scorer, keep ratio and kind."""
    found: dict[tuple[str, float, str], list[dict[str, Any]]] = defaultdict(list)
    planted = {row["text_kind"] for row in rows} <= PLANTED
    for row in rows:
        kind = row["text_kind"] if planted else "hard" if row["hard"] else "easy"
        found[row["scorer"], row["keep_ratio"], kind].append(row)
    return found


def metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Share kept whole, n, interval, and the median time of a scoring."""
    whole, seconds = sum(bool(row["whole"]) for row in rows), [row["score_s"] for row in rows if row["score_s"]]
    low, high = wilson(whole, len(rows))
    found = {"kept_whole": whole / len(rows), "n": len(rows), "low": low, "high": high}
    return {name: round(value, 4) for name, value in found.items()} | {
        "seconds": round(median(seconds), 4) if seconds else 0.0
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the rows were made")
    args = parser.parse_args()
    for name, rows in read_sets(args.rows).items():
        for (scorer, keep, kind), of in groups(rows).items():
            config = {
                "drafter": of[0]["models"]["drafter"]["sha256"], "scorer": scorer, "selector": of[0]["selector"],
                "keep_ratio": keep, "set": name, "kind": kind, "rope": "auto",
                "tokens": round(median(row["prompt_tokens"] for row in of)),
            }  # fmt: skip
            append(make_record("evidence", config, metrics(of), [], [], device=args.device), args.record)


if __name__ == "__main__":
    main()
