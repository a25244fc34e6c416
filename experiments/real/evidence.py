"""Records and tables of rows that `sp eval natural --out` wrote: python evidence.py ROWS.jsonl... [--record FOLDER]

Prints, for each file, the share of questions whose evidence was kept whole with its 95 % interval, by scorer and keep
ratio; of the questions that ship apart for those that share at most 0.34 of their words with the evidence (hard) and
the others (easy), of planted facts by the kind of text. With `--record` a record of each goes to `evidence.jsonl`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from sp.bench.record import append, make_record
from sp.evals.statistics import wilson

DRAFTER = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def groups(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows by what is told apart."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    planted = {row["text_kind"] for row in rows} <= {"prose", "code", "jsonl"}
    for row in rows:
        found[row["text_kind"] if planted else "hard" if row["hard"] else "easy"].append(row)
    return dict(sorted(found.items(), reverse=not planted))


def cell(rows: list[dict[str, Any]]) -> tuple[float, int, float, float]:
    """Share kept whole in percent, n, and its interval."""
    whole = sum(bool(row["whole"]) for row in rows)
    low, high = wilson(whole, len(rows))
    return 100 * whole / len(rows), len(rows), 100 * low, 100 * high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for path in args.rows:
        rows = [row for row in map(json.loads, path.open()) if row["scorer"] and row["scorer"] != "full"]
        keeps = sorted({row["keep_ratio"] for row in rows if row["keep_ratio"]}, reverse=True)
        scorers = list(dict.fromkeys(row["scorer"] for row in rows if row["keep_ratio"]))
        kinds = list(groups(rows))
        print(
            f"\n{path.stem}\n\n| scorer | "
            + " | ".join(f"{kind}, keep {keep:g}" for keep in keeps for kind in kinds)
            + " |"
        )
        print("| --- |" + " --- |" * (len(keeps) * len(kinds)))
        for scorer in scorers:
            cells = []
            for keep in keeps:
                of = groups([row for row in rows if row["scorer"] == scorer and row["keep_ratio"] == keep])
                for kind in kinds:
                    share, n, low, high = cell(of[kind])
                    cells.append(f"{share:.0f} ({low:.0f} to {high:.0f})")
                    if args.record:
                        seconds = [row["score_s"] for row in of[kind] if row["score_s"]]
                        config = {
                            "drafter": DRAFTER, "scorer": scorer, "selector": "top_chunks", "keep_ratio": keep,
                            "set": path.stem, "kind": kind, "rope": "auto",
                            "tokens": round(median(row["prompt_tokens"] for row in of[kind])),
                        }  # fmt: skip
                        metrics = {
                            "kept_whole": round(share / 100, 4), "n": n, "low": round(low / 100, 4),
                            "high": round(high / 100, 4), "seconds": round(median(seconds), 4) if seconds else 0.0,
                        }  # fmt: skip
                        append(make_record("evidence", config, metrics, [], [], device="cpu"), args.record)
            print(f"| `{scorer}` | " + " | ".join(cells) + " |")
        print(
            "\nn: " + ", ".join(f"{kind} {len({row['question'] for row in of})}" for kind, of in groups(rows).items())
        )


if __name__ == "__main__":
    main()
