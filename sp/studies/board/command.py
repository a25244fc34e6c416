"""The command that makes a row of the leaderboard anew, from what the row says of itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from sp.models.cache.block_tables import rotates
from sp.session import RunOptions, embedded
from sp.studies.sweep.provenance import files_sha256
from sp.studies.sweep.store import Row

TOLD = ("positions", "kv", "seed", "thinking", "reasoning_effort")
"""Columns that `sp eval tasks` has an option for."""
ASKED = re.compile(r" (thinking|reasoning_effort)=\S+")
"""In a task's name in a sweep; it is told by their columns."""
SILENT = ("mapping", "mark_omitted", "state_gaps")
"""Columns that it has none for."""
DEFAULTS = {field.name: field.default for field in fields(RunOptions)} | {"thinking": None, "reasoning_effort": None}
ROTATED = {True: "--rotate", False: "--no-rotate"}


def bracketed(label: str) -> str | None:
    """A name with options as the command line takes it; None where a value cannot be said there.

    Examples
    --------
    >>> bracketed("tail queries=24 pool=5"), bracketed("oracle"), bracketed("needle depth=None")
    ('tail[queries=24 pool=5]', 'oracle', 'needle[depth=null]')
    >>> bracketed("layer_subset layers=(1, 2)") is None
    True
    """
    name, *options = re.split(r" (?=\w+=)", label)
    said = [re.sub(r"=None$", "=null", option) for option in options]
    if any(re.search(r"[\s\]\[]", option) for option in said):
        return None
    return f"{name}[{' '.join(said)}]" if said else name


def command_of(row: Row, tasks: Sequence[str], n: int, models: Mapping[str, Mapping[str, Any]], sweep: str = "") -> str:
    """A line for the shell: `sp eval tasks` with what the row names, or the sweep where that has no words for it.

    `row`: any row of the group; `tasks`: labels of the tasks, which have one length; `n`: examples of each; `models`:
    what the record says of the models by role: `file`, `sha256`, and `rope` where one was asked for; `sweep`: name of
    the sweep the row is from; empty for none.

    Returns
    -------
    str
        Empty where neither can say it, on one line.

    Examples
    --------
    >>> row = {"cell": 0, "scorer": "tail queries=24", "selector": "top_chunks", "keep_ratio": 0.05}
    >>> command_of(row | {"tokens_asked": 8192}, ["needle", "vt shots=0"], 100, {})
    "sp eval tasks -t 'needle,vt[shots=0]' -p 8192 -n 100 --scorer 'tail[queries=24]' --keep-ratio 0.05 --no-controls"
    """
    full = row["cell"] < 0  # any strategy has the full prefill beside it; this one costs least
    scorer, selector = ("random", "top_chunks") if full else (bracketed(row["scorer"]), bracketed(row["selector"]))
    names = [bracketed(ASKED.sub("", task)) for task in tasks]
    unsaid = not full and (
        any(row.get(name, DEFAULTS[name]) != DEFAULTS[name] for name in SILENT)
        or row.get("decode", "greedy") != "greedy"
    )
    if unsaid or "asked_depth" in row or scorer is None or selector is None or None in names:
        only = f"{tasks[0]}/{row['tokens_asked']}/*" if len(tasks) == 1 else f"*/{row['tokens_asked']}/*"
        return one_line(["sp", "sweep", f"{sweep}.yaml", "--only", only]) if sweep else ""
    words = ["sp", "eval", "tasks", "-t", ",".join(map(str, names)), "-p", str(row["tokens_asked"]), "-n", str(n)]
    words += ["--scorer", scorer]
    words += [] if selector == "top_chunks" else ["--selector", selector]
    words += ["--keep-ratio", "0.05" if full else f"{row['keep_ratio']:g}", "--no-controls"]
    for name in () if full else TOLD:
        if row.get(name, DEFAULTS[name]) != DEFAULTS[name]:
            words += [f"--{name.replace('_', '-')}", str(row[name])]
    rotated = None if full else row.get("rotate")
    if rotated is not None and rotated != rotates(row.get("kv", DEFAULTS["kv"]), None):
        words.append(ROTATED[rotated])
    for role in ("target", "drafter"):
        if role in models and models[role]["sha256"] != embedded_sha256(role):
            words += [f"--{role}", models[role]["file"]]
        if role in models and "rope" in models[role]:
            words += [f"--{role}-rope", models[role]["rope"]]
    return one_line(words)


def one_line(words: Sequence[str]) -> str:
    """Words for the shell; empty if one of them holds a control character, which names of ours never do."""
    return "" if any(not word.isprintable() for word in words) else shlex.join(words)


@cache
def embedded_sha256(role: str) -> str:
    """SHA-256 of the embedded model of a role."""
    return files_sha256([embedded(role)])
