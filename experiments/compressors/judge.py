"""What compressors kept of transcripts: python judge.py TRANSCRIPTS ROWS... [--record FOLDER]"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from sp.bench.record import append, make_record
from sp.evals.summary import wilson


def tool_text(messages: list[dict[str, Any]]) -> str:
    """What tools said, and what came back of that before a question."""
    return "\n".join(str(each.get("content") or "") for each in messages if each["role"] in ("tool", "user"))


def whole(evidence: list[list[str]], text: str) -> bool:
    """Whether one of the ways to know the answer stands in a text, at all its places."""
    return any(all(quote in text for quote in way) for way in evidence)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("transcripts", type=Path)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--record", type=Path, help="folder of records")
    given = parser.parse_args()
    asked = {one["id"]: one for one in map(json.loads, given.transcripts.open())}
    groups: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for path in given.rows:
        for row in map(json.loads, path.open()):
            if row["id"] in asked:
                groups[row["who"], row["share"]].append(row)
    print("| who | asked for | left of the text | hard evidence whole | easy | next turn the same | seconds, median |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (who, share), rows in groups.items():
        left, same = median(_left(asked, row) for row in rows), sum(row["same"] for row in rows)
        cells = []
        metrics: dict[str, Any] = {
            "left": left,
            "same": same,
            "n": len(rows),
            "seconds": median(r["seconds"] for r in rows),
        }
        for name, hard in (("hard", True), ("easy", False)):
            mine = [
                whole(asked[row["id"]]["evidence"], tool_text(row["messages"]))
                for row in rows
                if asked[row["id"]]["hard"] is hard
            ]
            low, high = wilson(sum(mine), len(mine))
            cells.append(f"{sum(mine)} of {len(mine)} ({low:.0%} to {high:.0%})")
            metrics |= {f"{name}_whole": sum(mine), f"{name}_n": len(mine)}
        cells += [f"{same} of {len(rows)}", f"{metrics['seconds']:.3f}"]
        print(f"| {who} | {share:g} | {left:.3f} | {' | '.join(cells)} |")
        if given.record:
            append(
                make_record("compressors", {"who": who, "share": share}, metrics, [], [], device="cpu"), given.record
            )


def _left(asked: dict[str, Any], row: dict[str, Any]) -> float:
    before = len(tool_text(asked[row["id"]]["messages"]))
    return len(tool_text(row["messages"])) / before


if __name__ == "__main__":
    main()
