"""What a row is called on the leaderboard: its scorer, what sort of scorer that is, and what it was trained for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

from sp.evals.base import TASK_SLOT
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer
from sp.scoring.controls import OracleScorer
from sp.studies.sweep.cells import strategy_name
from sp.studies.sweep.provenance import EMBEDDED_WEIGHTS
from sp.studies.sweep.store import Row

Kind = Literal["full", "scorer", "oracle", "control"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order they are shown."""

WEIGHTS = re.compile(r"\bweights=(?P<file>\S+)")
LEFT_OUT = re.compile(r"-without-(?P<task>[^/]+)\.safetensors$")
"""How a file of weights says which task it never saw: ``probe-without-needle.safetensors``."""


def task_name(row: Row) -> str:
    """The registered name of a row's task, without options."""
    return str(row["task"]).partition(" ")[0]


def task_label(row: Row) -> str:
    """A row's task with every option that makes it another one, and with what was asked of thinking.

    Examples
    --------
    >>> task_label({"task": "needle", "options": "filler=noise", "thinking": "on"})
    'needle filler=noise thinking=on'
    >>> task_label({"task": "vt shots=0 thinking=on", "thinking": "on"})
    'vt shots=0 thinking=on'
    """
    words = [str(row["task"]), *filter(None, [row.get("options")])]
    for name in ("thinking", "reasoning_effort"):
        if row.get(name) is not None and f" {name}=" not in f" {row['task']}":
            words.append(f"{name}={row[name]}")
    return " ".join(words)


def kind_of(row: Row) -> Kind:
    """What sort of reading a row is of: oracles know the answer or read with the target, controls read nothing.

    Examples
    --------
    >>> [kind_of({"cell": 0, "scorer": name}) for name in ("tail queries=24", "oracle", "target_attention", "bm25")]
    ['scorer', 'oracle', 'oracle', 'control']
    """
    if row["cell"] < 0:
        return "full"
    kind = _class_of(row)
    if issubclass(kind, OracleScorer) or kind.reads_target or getattr(kind, "oracle", False):
        return "oracle"
    return "control" if issubclass(kind, ModelFreeScorer) else "scorer"


def shown_name(row: Row, several_selectors: bool) -> str:
    """Scorer, selector if several were tried, and options; weights that never saw the task have one name for all.

    Examples
    --------
    >>> row = {"task": "vt shots=0", "cell": 0, "scorer": "tail queries=8", "selector": "top_chunks", "seed": 3}
    >>> shown_name(row, True)
    'tail queries=8 + top_chunks + seed=3'
    >>> shown_name({**row, "scorer": "probe weights=new/probe-without-vt.safetensors", "seed": 0}, False)
    'probe weights=new/probe-without-{task}.safetensors'
    """
    return strategy_name({**row, "scorer": slotted(row), "pair": None}, several_selectors)


def slotted(row: Row) -> str:
    """The row's scorer, with ``{task}`` in place of the task where its weights never saw that task."""
    scorer = str(row["scorer"])
    if _left_out(row) != task_name(row):
        return scorer
    slot = f"-without-{TASK_SLOT}.safetensors"
    return WEIGHTS.sub(lambda found: LEFT_OUT.sub(slot, found[0]), scorer)


def trained_of(row: Row) -> str:
    """What a scorer's weights were trained for as far as their name tells; nothing of scorers that have none.

    Examples
    --------
    >>> row = {"task": "vt", "cell": 0, "scorer": "probe weights=probe-without-vt.safetensors"}
    >>> trained_of(row), trained_of({**row, "task": "cwe"}), trained_of({**row, "scorer": "tail"})
    ('this task left out', 'only vt left out', '')
    >>> trained_of({**row, "scorer": "probe weights=probe-without-vt-hops=2.safetensors"})
    'this task left out'
    """
    if row["cell"] < 0:
        return ""
    if not WEIGHTS.search(str(row["scorer"])):
        return "embedded weights" if "weights" in getattr(_class_of(row), "__dataclass_fields__", ()) else ""
    out, name = _left_out(row), task_name(row)
    if out is None:
        return "on tasks unknown"
    mine = out == name or (out.startswith(f"{name}-") and "=" in out)  # a task with options, in the name of a file
    return f"{'this task' if mine else f'only {out}'} left out"


def weights_of(row: Row, files: Mapping[str, str]) -> str:
    """First digits of the SHA-256 of a scorer's weights; empty where it has none, or its record does not say.

    `files`: SHA-256 by path of the files that scorers of the run name.
    """
    found = WEIGHTS.search(str(row["scorer"]))
    if found is None:
        return files.get(EMBEDDED_WEIGHTS, "")[:8] if trained_of(row) else ""
    return files.get(found["file"], "")[:8]


def _left_out(row: Row) -> str | None:
    """The task that a row's weights never saw, by the name of their file."""
    weights = WEIGHTS.search(str(row["scorer"]))
    found = LEFT_OUT.search(weights["file"]) if weights else None
    return found["task"] if found else None


def _class_of(row: Row) -> type[Scorer]:
    """The scorer's class; the base where it came from outside and is not imported."""
    name = str(row["scorer"]).partition(" ")[0]
    return SCORERS.class_of(name) if name in SCORERS else Scorer
