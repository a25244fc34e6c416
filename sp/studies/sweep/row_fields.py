"""What rows of results must have before a report or the leaderboard may use them, wherever they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp.errors import ConfigError
from sp.evals.run import COLUMNS, RESULTS, Row
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, Wanted, check, check_each, number, whole
from sp.values import whole as whole_of


def is_int(value: object) -> bool:
    """Whether a value is a whole number of 64 bits, as seeds are."""
    return (found := whole_of(value)) is not None and abs(found) < 1 << 63


ROW: Mapping[str, Wanted] = {
    "task": TEXT,
    "example": TEXT,
    "tokens_asked": whole(),
    "cell": whole(-1),
    "scorer": TEXT,
    "selector": TEXT,
    "status": TEXT,
    "keep_ratio": number(0, 1),
}
OPTIONAL: Mapping[str, Wanted] = {
    **dict.fromkeys((*COLUMNS, "options", "thinking", "reasoning_effort", "decode"), ATOM.optional),
    **{name: number().optional for name in (*RESULTS, "prompt_tokens") if name not in ("answer", "correct")},
    **{name: number(0, 1).optional for name in ("depth", "asked_depth", "needle_recall", "realised_keep")},
    "keep_ratio": number(0, 1),
    "seed": Wanted("a whole number", is_int, required=False),
    "decode": TEXT.optional,
    "pair": Wanted(TEXT.words, lambda value: isinstance(value, str), required=False),
    "given_kept": Wanted("true or false", lambda value: value in (True, False), required=False),
    "ttft_s": number(0).optional,
    "models": OBJECT.optional,
}
READ: Mapping[str, Wanted] = {"correct": Wanted("0 or 1", lambda value: type(value) in (int, bool) and value in (0, 1))}
"""Of rows whose prompt was read."""
MODEL: Mapping[str, Wanted] = {"file": TEXT, "sha256": TEXT, "rope": TEXT.optional}
SESSION: Mapping[str, Wanted] = {
    "session": TEXT,
    "sweep": TEXT,
    "date": TEXT,
    **dict.fromkeys(("commit", "gpu", "cpu", "driver"), TEXT.optional),
    "cores": ATOM.optional,
}
RUN: Mapping[str, Wanted] = {
    "run": TEXT,
    "session": TEXT,
    "config": OBJECT,
    "models": OBJECT,
    "part": TEXT.optional,
    "seconds": number(0),
}
CONFIG: Mapping[str, Wanted] = {"tokens": whole(1), "count": whole(1), "cells": LIST}
FAILED: Mapping[str, Wanted] = {"run": TEXT}


def check_row(row: Row, where: str) -> Row:
    """The row; ConfigError for the first field by which no report could be made.

    Examples
    --------
    >>> check_row({"task": "needle", "example": 3}, "rows.jsonl, line 4")
    Traceback (most recent call last):
    sp.errors.ConfigError: rows.jsonl, line 4: example must be a text of at most 1000 characters, not a number
    """
    check(row, ROW, where)
    check(row, OPTIONAL, where)
    if row["status"] == "ok":
        if "whole" in row and row.get("correct") is None:
            raise ConfigError(
                f"{where}: nothing was answered here, and a report is of answers; sweep natural with answers"
            )
        check(row, READ, where)
    if row["cell"] < 0 and row["keep_ratio"] != 1:
        raise ConfigError(f"{where}: keep_ratio of a full prefill, which cell -1 is, must be 1")
    check_models(row.get("models") or {}, f"{where}: models")
    return row


def check_cells(config: Mapping[str, Any], where: str) -> None:
    """ConfigError unless a stored configuration tells what work its run was."""
    check(config, CONFIG, where)
    for cell in config["cells"]:
        check({"cell": cell}, {"cell": OBJECT}, where)
        check(cell, {"scorer": OBJECT, "keep_ratio": number(0, 1)}, f"{where}: cell")
        check(cell["scorer"], {"name": TEXT}, f"{where}: cell: scorer")


def check_run(line: Mapping[str, Any], sessions: Mapping[str, Any], where: str) -> None:
    """ConfigError unless a line closes a run of a known session."""
    check(line, RUN, where)
    if line["session"] not in sessions:
        raise ConfigError(f"{where}: a run of a session that no line before it tells of")
    files = line["config"].get("files", {})
    check({"files": files}, {"files": OBJECT}, f"{where}: config")
    check_each(files, TEXT, f"{where}: config: files")
    check_models(line["models"], f"{where}: models")


def check_models(models: Mapping[str, Any], where: str) -> None:
    """ConfigError unless an object says of each model which file it is."""
    check_each(models, OBJECT, where)
    for role, facts in models.items():
        check(facts, MODEL, f"{where}: {role}")
