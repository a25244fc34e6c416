"""A conversation as a map: the transcript from left to right, turn below turn, and what the target had of it.

Drawn from rows of `turn_row`, which `sp chat --out` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sp.errors import ConfigError
from sp.json_lines import read_jsonl
from sp.studies.figures import INK, KEPT
from sp.studies.style import tokens_label
from sp.studies.sweep.store import Row
from sp.values import whole

STATES = {"cached": "#1c7ed6", "kept": KEPT, "recalled": "#3b0a45", "dropped": "#dee2e6"}
"""What can have become of a token: before the target since an earlier turn, new, brought back, left out. Each is
lighter or darker than the others by a third at least, so that they part without colour, too."""
COLUMN = 3.35
"""Inches of a column of a paper with two."""
DPI = 300
CELLS = 360
"""Columns of tokens that a row is drawn in, at most: more would be finer than print."""
BAR = 0.66
"""Height of a row, of 1."""
MOST = 1 << 40
"""Tokens of no transcript, so that a row with a wild number is refused."""

Doubles = npt.NDArray[np.float64]
Runs = Sequence[Sequence[int]]


def conversation_figure(rows: Sequence[Row], width: float = COLUMN) -> Figure:
    """A row for each turn; in each column of tokens the coloured height is the share of them.

    Triangles above a row point at what was brought back. Those below stand at needles: filled where the target had
    all of one before it when it answered.

    `rows`: as of `turn_row`, in order; `width`: inches.
    """
    if not rows:
        raise ValueError("there is no turn to draw")
    figure = Figure(figsize=(width, 0.95 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    tokens = max(row["prompt"] for row in rows)
    columns = np.arange(0, tokens, -(-tokens // CELLS), dtype=np.float64)
    for at, row in enumerate(rows):
        _draw(axes, at, row, columns)
        axes.text(
            1.015, at, f"{row['read']:,}", transform=axes.get_yaxis_transform(), fontsize=6, va="center", color=INK
        )
    axes.text(1.015, -0.85, "read", transform=axes.get_yaxis_transform(), fontsize=6, va="center", color=INK)
    axes.set_xlim(0, tokens)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [str(row["turn"]) for row in rows])
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 4, 5, 8, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tokens_label(x)))
    axes.tick_params(labelsize=6.5, length=2)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("token of the transcript", fontsize=7)
    axes.set_ylabel("turn", fontsize=7)
    figure.legend(handles=_handles(rows), loc="outside upper center", ncols=4, fontsize=6, frameon=False,
                  handlelength=1.0, handletextpad=0.4, columnspacing=0.9)  # fmt: skip
    return figure


def shares(row: Row, edges: Doubles) -> dict[str, Doubles]:
    """Of each state the share of the tokens between edges that are in it, (len(edges) - 1,); together they are 1.

    Examples
    --------
    >>> row = {"spans": {"cached": [[0, 2]], "kept": [[6, 7]]}, "recall": [{"start": 3, "end": 4}]}
    >>> {name: part.tolist() for name, part in shares(row, np.array([0.0, 4.0, 8.0])).items()}
    {'cached': [0.5, 0.0], 'kept': [0.0, 0.25], 'recalled': [0.25, 0.0], 'dropped': [0.25, 0.75]}
    """
    wide = np.diff(edges)
    found = {name: np.diff(_below(runs, edges)) / wide for name, runs in _present(row).items()}
    return {**found, "dropped": np.clip(1 - sum(found.values()), 0, 1)}


def read_turns(path: Path) -> list[Row]:
    """Rows of the last conversation in a file of `sp chat --out`.

    Raises
    ------
    ConfigError
        For what is no such file.
    """
    rows = list(read_jsonl(path))
    for number, row in enumerate(rows, 1):
        if not _is_turn(row):
            raise ConfigError(f"{path}, line {number}: no turn of a conversation; name a file of sp chat --out")
    if not rows:
        raise ConfigError(f"{path} is empty; name a file of sp chat --out")
    return [row for row in rows if row.get("conversation") == rows[-1].get("conversation")]


def _present(row: Row) -> dict[str, Runs]:
    back = [(each["start"], each["end"]) for each in row["recall"]]
    return {"cached": row["spans"]["cached"], "kept": row["spans"]["kept"], "recalled": back}


def _below(runs: Runs, at: Doubles) -> Doubles:
    """Tokens of ascending runs that lie below each place."""
    ends = np.array(runs, np.float64).reshape(-1)
    sizes = np.cumsum(np.diff(ends, prepend=0.0) * (np.arange(len(ends)) % 2))
    below: Doubles = np.interp(at, np.concatenate([[0.0], ends]), np.concatenate([[0.0], sizes]))
    return below


def _draw(axes: Axes, at: int, row: Row, columns: Doubles) -> None:
    edges = np.append(columns[columns < row["prompt"]], row["prompt"])
    low = np.full(len(edges) - 1, at + BAR / 2)  # the axis points down
    for name, part in shares(row, edges).items():
        high = low - BAR * part
        axes.stairs(high, edges, baseline=low, fill=True, color=STATES[name], linewidth=0, label=f"{at}:{name}")
        low = high
    for each in row["recall"]:
        _mark(axes, each["start"], each["end"], at - 0.41, "v", STATES["recalled"], True)
    present = sorted([*run] for runs in _present(row).values() for run in runs)
    for start, end in row["spans"]["needle"]:
        there = sum(max(0, min(b, end) - max(a, start)) for a, b in present) == end - start
        _mark(axes, start, end, at + 0.41, "^", INK, there)


def _mark(axes: Axes, start: int, end: int, y: float, marker: str, colour: str, filled: bool) -> None:
    axes.plot([(start + end) / 2], [y], marker=marker, markersize=2.6, color=colour, markeredgewidth=0.5,
              markerfacecolor=colour if filled else "white", linestyle="none", clip_on=False, zorder=4)  # fmt: skip


def _handles(rows: Sequence[Row]) -> list[Patch | Line2D]:
    """The legend's entries; marks only where there are such."""
    names = {"cached": "cached", "kept": "new, kept", "recalled": "recalled", "dropped": "left out"}
    found: list[Patch | Line2D] = [Patch(color=STATES[name], label=said) for name, said in names.items()]
    if any(row["spans"]["needle"] for row in rows):
        for said, face in (("needle, read", INK), ("needle, left out", "white")):
            found.append(Line2D([], [], color=INK, marker="^", markersize=3, markeredgewidth=0.5,
                                markerfacecolor=face, linestyle="none", label=said))  # fmt: skip
    return found


def _is_turn(row: Row) -> bool:
    """Whether a row of a file can be drawn."""
    spans, back = row.get("spans"), row.get("recall")
    end: Any = row.get("prompt")
    if not (isinstance(spans, dict) and isinstance(back, list) and all(isinstance(each, dict) for each in back)):
        return False
    if not (_whole(end, row.get("read"), row.get("turn")) and 0 < end < MOST):
        return False
    lists = [spans.get(name) for name in ("cached", "kept", "needle")]
    lists.append([[each.get("start"), each.get("end")] for each in back])
    return all(_are_runs(runs, end, number != 2) for number, runs in enumerate(lists))


def _are_runs(runs: Any, end: int, apart: bool) -> bool:
    """Whether these are runs of tokens below `end`; those that are `apart` ascend and share none."""
    if not (isinstance(runs, list) and all(isinstance(run, list) and len(run) == 2 and _whole(*run) for run in runs)):
        return False
    return all(0 <= a < b <= end for a, b in runs) and (not apart or all(a[1] <= b[0] for a, b in pairwise(runs)))


def _whole(*values: Any) -> bool:
    return all(whole(each) is not None for each in values)
