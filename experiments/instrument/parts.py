"""The parts of a training as tables: ``python parts.py FIT.jsonl... [--readme README.md]``; no number is typed.

A part is one log of `fit`. Accuracies, of first tokens of answers, are means over three lines of a log, about 15 s;
those of a task are of the first question of a document, asked as examples ask it. ``--readme`` writes the tables there.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

LAST = 3
"""Lines of a log that an accuracy is the mean of."""
TASKS = ("world", "fact", "nolima", "updates", "multi_session", "mrcr", "babi", "code", "json")
MARKS = ("<!-- parts -->", "<!-- /parts -->")
"""Between these lines of a page the tables stand."""


def stages(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Logged lines by stage, in order; of stages that take turns (`in_turns.py`) those in which they had one."""
    found: dict[str, list[dict[str, Any]]] = {}
    turns: dict[str, Any] = {}
    for record in map(json.loads, path.read_text().splitlines()):
        if "config" in record:
            turns = {s["name"]: s for s in record["config"]["stages"]} if "together" in record["config"] else {}
        if "first_acc" in record and (not turns or record["loss"]):
            so_far = _by_turns(turns[record["stage"]], record) if turns else {}
            found.setdefault(record["stage"], []).append(record | so_far)
    return found


def _by_turns(stage: dict[str, Any], record: dict[str, Any]) -> dict[str, float]:
    """Tokens of a stage that takes turns, and its rate: of both its steps and the share of the time tell."""
    first, final = stage["shape"]
    rate = stage["lr"] * (first + (final - first) * record["share"])
    return {"tokens": record["step"] * stage["batch"] * stage["length"], "lr": rate}


def ended(path: Path) -> dict[str, Any]:
    """The line that a complete part ends with."""
    last: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
    if "done" not in last:
        raise SystemExit(f"{path}: this part was cut; its last line is {last}")
    return last


def speed(lines: list[dict[str, Any]]) -> float:
    """Millions of tokens a second between the lines of a stage, without its start; NaN of one line.

    Examples
    --------
    >>> speed([{"tokens": 0, "seconds": 10.0}, {"tokens": 4_000_000, "seconds": 14.0}])
    1.0
    """
    seen = [line for line in lines if line.get("lr", 1)]  # the first line of a stage may hold its compiling
    if len(seen) < 2:
        return float("nan")
    return float((seen[-1]["tokens"] - seen[0]["tokens"]) / (seen[-1]["seconds"] - seen[0]["seconds"]) / 1e6)


def share(lines: list[dict[str, Any]], task: str | None = None) -> str:
    """Right first tokens in per cent at the end: of all questions, or of a task's as examples ask them."""
    found = [line["first_acc"] if task is None else line["asked_first"].get(f"{task}!") for line in lines[-LAST:]]
    present = [one for one in found if one is not None]
    return f"{100 * mean(present):.1f}" if present else ""


def markdown(rows: list[list[str]]) -> str:
    """A table whose first row is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *body])


def by_stage(files: list[Path]) -> str:
    """Every stage: when it ended, its pace, its rate, loss, and accuracy over its first and its last lines."""
    rows = [
        ["part, stage", "ended (s)", "M tokens", "M tokens/s", "rate at its ends", "loss", "right (%): began", "ended"]
    ]
    for path in files:
        before = 0
        for name, lines in stages(path).items():
            last = lines[-1]
            rates = [line["lr"] for line in lines if line["lr"]]
            pace = speed(lines)
            stage = [f"{path.stem.removeprefix('fit_')}, {name}", f"{last['seconds']:.0f}"]
            read = [f"{(last['tokens'] - before) / 1e6:.1f}", "" if math.isnan(pace) else f"{pace:.2f}"]
            fitted = [f"{rates[0]:.2g} to {rates[-1]:.2g}", f"{last['loss']:.3f}"]
            rows.append([*stage, *read, *fitted, share(lines[:LAST]), share(lines)])
            before = 0 if "share" in last else last["tokens"]
    return markdown(rows)


def by_task(files: list[Path]) -> str:
    """The end of every part, task by task."""
    rows = [["part (its last stage)", "M tokens", "seconds", "all", *(f"`{task}`" for task in TASKS)]]
    for path in files:
        end, (name, lines) = ended(path), list(stages(path).items())[-1]
        whole = [f"{path.stem.removeprefix('fit_')} ({name})", f"{end['tokens'] / 1e6:.1f}", f"{end['seconds']:.0f}"]
        rows.append([*whole, share(lines), *(share(lines, task) for task in TASKS)])
    return markdown(rows)


def main() -> None:
    """Print the tables, or write them into a page."""
    a = argparse.ArgumentParser()
    a.add_argument("files", type=Path, nargs="+")
    a.add_argument("--readme", type=Path)
    args = a.parse_args()
    tables = f"{by_task(args.files)}\n\n{by_stage(args.files)}"
    if args.readme is None:
        print(tables)
        return
    before, rest = args.readme.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    args.readme.write_text(f"{before}{MARKS[0]}\n\n{tables}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
