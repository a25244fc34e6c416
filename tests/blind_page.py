"""The table of docs/results/scorers.md on phrases that nobody had read, from rows; run it to write it anew."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

from models_page import table, write

from sp.evals.summary import wilson

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "scorers.md"
ROWS = ROOT / "results" / "intel-r-xeon-r-processor-2core" / "instrument" / "evals_blind" / "blind_2k.jsonl.gz"
SCORERS = {"full": "full prefill", "tail": "`tail`", "oracle": "`oracle`", "random": "`random` (control)",
           "lexical": "`lexical` (control)", "head_tail": "`head_tail` (control)"}  # fmt: skip


def right() -> dict[tuple[str, str], list[float]]:
    """By task, with its options, and scorer: 1 for each right answer, 0 for the others."""
    found = defaultdict(list)
    with gzip.open(ROWS, "rt") as file:
        for row in map(json.loads, file):
            found[row["task"], row["scorer"]].append(row["correct"])
    return found


def tables() -> dict[str, list[str]]:
    """A row a task and set of phrases, a column a scorer."""
    found = right()
    rows = []
    for task in dict.fromkeys(task for task, _ in found):
        name, _, options = task.partition(" ")
        said = "blind" if options == "phrases=blind" else "held-out, a new seed"
        cells = []
        for scorer in SCORERS:
            answers = found[task, scorer]
            low, high = wilson(int(sum(answers)), len(answers))
            cells.append(f"{sum(answers):.0f} of {len(answers)} ({100 * low:.0f} to {100 * high:.0f})")
        rows.append([f"`{name}`", said, *cells])
    return {"blind": table(["task", "phrases", *SCORERS.values()], rows)}


if __name__ == "__main__":
    write(PAGE, "blind_page.py", tables())
