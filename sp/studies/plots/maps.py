"""Maps of texts: importance of a prompt by layer and head, from a trace of `sp run`, and the parts of a conversation
that the target read in each turn, from the rows of `sp chat --out`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, short
from sp.json_lines import LIST, OBJECT, TEXT, check, read_jsonl, read_object
from sp.json_lines import whole as checked_whole
from sp.scoring.base import HEATMAP_CHUNK
from sp.studies.figures import INK, KEPT, NEEDLE, QUESTION, SMALLEST, tokens_label
from sp.studies.sweep.store import Row
from sp.values import whole

MAPS: Mapping[str, tuple[int, type[np.generic]]] = {
    "by_layer": (2, np.floating),
    "by_head": (3, np.floating),
    "drafter_bytes": (2, np.integer),
}  # number of dimensions and kind of the arrays that are drawn
MOST_ROWS, MOST_CHUNKS = 1 << 13, 1 << 17  # limits of layers times heads, and of chunks, above any drafter and prompt
TALLEST, LABELS = 60.0, 256  # maximum height of a map in inches, and of its rows that have a label
MARKS = {"needle": NEEDLE, "question": QUESTION}


@dataclass(frozen=True)
class SavedRun:
    """A run that was read from its folder.

    `facts` are those of `trace.json`; `arrays` those of `trace.safetensors`: `by_layer` (layers, chunks), `by_head`
    (layers, heads, chunks) and `drafter_bytes` (drafter tokens, 2), the first and last byte + 1 of each token.
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> SavedRun:
        """Read both files of a folder; ConfigError if one is missing or damaged, or the run was not compressed."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        facts = read_object(folder / "trace.json", "a folder of sp run")
        try:
            arrays = load_file(folder / "trace.safetensors")
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ConfigError(f"{folder}: no trace of sp run ({short(error)})") from None
        run = cls(facts, arrays)
        if run.has_maps:
            run.check(str(folder))
        return run

    def check(self, where: str) -> None:
        """Raise ConfigError unless spans and arrays can be drawn."""
        check(self.facts, {"spans": LIST}, f"{where}/trace.json")
        for span in self.facts["spans"]:
            check({"span": span}, {"span": OBJECT}, f"{where}/trace.json: spans")
            check(
                span,
                {"kind": TEXT, "start_byte": checked_whole(), "end_byte": checked_whole()},
                f"{where}/trace.json: spans",
            )
        for name, (dimensions, kind) in MAPS.items():
            array = self.arrays[name]
            *rows, last = array.shape or (0,)
            # A figure of an array of any size could take all memory, and anyone may have written the file.
            if name != "drafter_bytes" and (math.prod(rows) > MOST_ROWS or last > MOST_CHUNKS):
                raise ConfigError(
                    f"{where}/trace.safetensors: {name} is larger than a map of sp run can be; name a folder of sp run"
                )
            if array.ndim != dimensions or not array.size or not np.issubdtype(array.dtype, kind):
                raise ConfigError(
                    f"{where}/trace.safetensors: {name} must be an array of {dimensions} dimensions of type "
                    f"{kind.__name__}; name a folder of sp run"
                )
        if self.arrays["drafter_bytes"].shape[1] != 2:
            raise ConfigError(f"{where}/trace.safetensors: drafter_bytes needs two columns; name a folder of sp run")

    @property
    def has_maps(self) -> bool:
        """True if the attention of the drafter was recorded."""
        return MAPS.keys() <= set(self.arrays)

    def chunks_of(self, kind: str) -> list[tuple[float, float]]:
        """Return the fractional ranges of chunks that the spans of a kind cover."""
        token_bytes: Ints = self.arrays["drafter_bytes"]
        ranges = []
        for span in self.facts["spans"]:
            if span["kind"] == kind:
                # The span's tokens are those that end after its first byte and start before its end.
                first = int(np.searchsorted(token_bytes[:, 1], span["start_byte"], side="right"))
                last = int(np.searchsorted(token_bytes[:, 0], span["end_byte"], side="left"))
                ranges.append((first / HEATMAP_CHUNK, last / HEATMAP_CHUNK))
        return ranges


def importance_map(run: SavedRun) -> Figure:
    """Draw log10 importance by chunk of the prompt: of each layer above, of each head below."""
    layers: Floats = run.arrays["by_layer"]
    heads: Floats = run.arrays["by_head"]
    count, per_layer, chunks = heads.shape
    tall = [0.5 + min(0.28 * len(layers), TALLEST), 0.5 + min(0.17 * count * per_layer, TALLEST)]
    figure = Figure(figsize=(10, 0.9 + sum(tall)), layout="constrained")
    grid = figure.subplots(2, 1, height_ratios=tall)
    _draw(figure, grid[0], layers, [f"{i}" for i in range(len(layers))], "max over heads")
    names = [f"{layer}.{head}" for layer in range(count) for head in range(per_layer)]
    _draw(figure, grid[1], heads.reshape(-1, chunks), names, "single heads")
    grid[0].set_ylabel("scored layer", fontsize=9)
    grid[1].set_ylabel("layer.head", fontsize=9)
    grid[1].set_xlabel(f"chunk of {HEATMAP_CHUNK} drafter tokens", fontsize=9)
    for line in range(1, count if count <= LABELS else 0):
        grid[1].axhline(line * per_layer - 0.5, color="white", linewidth=0.8)
    for axes in grid:
        _mark(axes, run)
    handles = [grid[0].plot([], [], color=colour, linewidth=3, label=kind)[0] for kind, colour in MARKS.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    figure.suptitle("Importance of the prompt, by layer and head of the drafter", fontsize=10, x=0.02, ha="left")
    return figure


def _draw(figure: Figure, axes: Axes, values: Floats, names: list[str], title: str) -> None:
    logarithms = np.log10(np.maximum(values, 1e-6))  # the floor keeps zeros finite
    image = axes.imshow(logarithms, aspect="auto", cmap="magma", interpolation="nearest")
    labelled = range(0, len(names), -(-len(names) // LABELS))  # every k-th row, at most LABELS of them
    axes.set_yticks(labelled, [names[row] for row in labelled], fontsize=SMALLEST)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(title, fontsize=9, loc="left", pad=12)
    figure.colorbar(image, ax=axes, label="log10 importance", pad=0.01)


def _mark(axes: Axes, run: SavedRun) -> None:
    """Mark needles and question by bars on the upper edge, and by thin lines down the map."""
    for kind, colour in MARKS.items():
        for start, end in run.chunks_of(kind):
            for x in (start - 0.5, end - 0.5):
                axes.axvline(x, color=colour, linewidth=0.6, alpha=0.8)
            axes.plot(
                [start - 0.5, max(end, start + 0.6) - 0.5], [1.02, 1.02], color=colour, linewidth=4,
                transform=axes.get_xaxis_transform(), clip_on=False, solid_capstyle="butt",
            )  # fmt: skip


STATES = {"cached": "#1c7ed6", "kept": KEPT, "recalled": "#3b0a45", "dropped": "#dee2e6"}
"""Colours by the state of a token: cached since an earlier turn, new and selected, recalled, or left out.

Lightness differs by a third at least between any two, so that they can be distinguished without colour."""
COLUMN = 3.35  # width in inches of a column of a two-column paper
DPI = 300
CELLS = 360  # maximum number of columns of a row: more would be finer than print
BAR = 0.66  # height of a row; rows are 1 apart
MOST = 1 << 40  # tokens; a row with larger numbers is rejected

Doubles = npt.NDArray[np.float64]
Runs = Sequence[Sequence[int]]


def conversation_figure(rows: Sequence[Row], width: float = COLUMN) -> Figure:
    """Draw a row per turn, in which the height of a colour is the share of a column's tokens in that state.

    Triangles above a row point at recalled excerpts; those below are at needles, and filled if the target had all of
    the needle.
    """
    if not rows:
        raise ValueError("rows must have at least one turn")
    figure = Figure(figsize=(width, 0.95 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    tokens = max(row["prompt"] for row in rows)
    columns = np.arange(0, tokens, -(-tokens // CELLS), dtype=np.float64)  # first token of each column
    for place, row in enumerate(rows):
        _draw_turn(axes, place, row, columns)
        axes.text(
            1.015,
            place,
            f"{row['read']:,}",
            transform=axes.get_yaxis_transform(),
            fontsize=SMALLEST,
            va="center",
            color=INK,
        )
    axes.text(1.015, -0.85, "read", transform=axes.get_yaxis_transform(), fontsize=SMALLEST, va="center", color=INK)
    axes.set_xlim(0, tokens)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [str(row["turn"]) for row in rows])
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 4, 5, 8, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tokens_label(x)))
    axes.tick_params(labelsize=SMALLEST, length=2)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("token of the transcript", fontsize=SMALLEST)
    axes.set_ylabel("turn", fontsize=SMALLEST)
    figure.legend(handles=_handles(rows), loc="outside upper center", ncols=4, fontsize=SMALLEST, frameon=False,
                  handlelength=1.0, handletextpad=0.4, columnspacing=0.9)  # fmt: skip
    return figure


def shares(row: Row, edges: Doubles) -> dict[str, Doubles]:
    """Return by state the share of the tokens between edges that are in it, (len(edges) - 1,); their sum is 1."""
    widths = np.diff(edges)
    shares_of_states = {name: np.diff(_below(runs, edges)) / widths for name, runs in _present(row).items()}
    return {**shares_of_states, "dropped": np.clip(1 - sum(shares_of_states.values()), 0, 1)}


def read_turns(path: Path) -> list[Row]:
    """Read the rows of the last conversation in a file of `sp chat --out`. ConfigError if it is no such file."""
    rows = list(read_jsonl(path))
    for number, row in enumerate(rows, 1):
        if not _is_turn(row):
            raise ConfigError(f"{path}, line {number}: not a turn of a conversation; name a file of sp chat --out")
    if not rows:
        raise ConfigError(f"{path} is empty; name a file of sp chat --out")
    return [row for row in rows if row.get("conversation") == rows[-1].get("conversation")]


def _present(row: Row) -> dict[str, Runs]:
    back = [(excerpt["start"], excerpt["end"]) for excerpt in row["recall"]]
    return {"cached": row["spans"]["cached"], "kept": row["spans"]["kept"], "recalled": back}


def _below(runs: Runs, edges: Doubles) -> Doubles:
    """Return for each edge the number of tokens of ascending runs that are below it."""
    # Starts and ends alternate: the count rises by one per token from a start to its end, and is flat elsewhere.
    ends = np.array(runs, np.float64).reshape(-1)
    sizes = np.cumsum(np.diff(ends, prepend=0.0) * (np.arange(len(ends)) % 2))
    below: Doubles = np.interp(edges, np.concatenate([[0.0], ends]), np.concatenate([[0.0], sizes]))
    return below


def _draw_turn(axes: Axes, place: int, row: Row, columns: Doubles) -> None:
    edges = np.append(columns[columns < row["prompt"]], row["prompt"])
    low = np.full(len(edges) - 1, place + BAR / 2)  # the axis points down
    for name, part in shares(row, edges).items():
        high = low - BAR * part
        axes.stairs(high, edges, baseline=low, fill=True, color=STATES[name], linewidth=0, label=f"{place}:{name}")
        low = high
    for excerpt in row["recall"]:
        _mark_run(axes, excerpt["start"], excerpt["end"], place - 0.41, "v", STATES["recalled"], True)
    present = sorted([*run] for runs in _present(row).values() for run in runs)
    for start, end in row["spans"]["needle"]:
        complete = sum(max(0, min(b, end) - max(a, start)) for a, b in present) == end - start
        _mark_run(axes, start, end, place + 0.41, "^", INK, complete)


def _mark_run(axes: Axes, start: int, end: int, y: float, marker: str, colour: str, filled: bool) -> None:
    axes.plot([(start + end) / 2], [y], marker=marker, markersize=2.6, color=colour, markeredgewidth=0.5,
              markerfacecolor=colour if filled else "white", linestyle="none", clip_on=False, zorder=4)  # fmt: skip


def _handles(rows: Sequence[Row]) -> list[Patch | Line2D]:
    """Return the entries of the legend; those of needles only if there are any."""
    names = {"cached": "cached", "kept": "new, kept", "recalled": "recalled", "dropped": "left out"}
    handles: list[Patch | Line2D] = [Patch(color=STATES[name], label=label) for name, label in names.items()]
    if any(row["spans"]["needle"] for row in rows):
        for label, face in (("needle, read", INK), ("needle, left out", "white")):
            handles.append(Line2D([], [], color=INK, marker="^", markersize=3, markeredgewidth=0.5,
                                markerfacecolor=face, linestyle="none", label=label))  # fmt: skip
    return handles


def _is_turn(row: Row) -> bool:
    spans, recall = row.get("spans"), row.get("recall")
    end: Any = row.get("prompt")
    if not (
        isinstance(spans, dict) and isinstance(recall, list) and all(isinstance(excerpt, dict) for excerpt in recall)
    ):
        return False
    if not (_whole(end, row.get("read"), row.get("turn")) and 0 < end < MOST):
        return False
    lists = [spans.get(name) for name in ("cached", "kept", "needle")]
    lists.append([[excerpt.get("start"), excerpt.get("end")] for excerpt in recall])
    return all(_are_runs(runs, end, number != 2) for number, runs in enumerate(lists))  # needles (2) may overlap


def _are_runs(runs: Any, end: int, disjoint: bool) -> bool:
    """Return True if these are runs of tokens below `end`, and if `disjoint` also ascending without overlap."""
    if not (isinstance(runs, list) and all(isinstance(run, list) and len(run) == 2 and _whole(*run) for run in runs)):
        return False
    return all(0 <= a < b <= end for a, b in runs) and (not disjoint or all(a[1] <= b[0] for a, b in pairwise(runs)))


def _whole(*values: Any) -> bool:
    return all(whole(value) is not None for value in values)
