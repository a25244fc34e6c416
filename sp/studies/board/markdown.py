"""The leaderboard as a page of Markdown, for a folder of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sp.studies.board.entries import Board, Entry, Interval
from sp.studies.board.matrix import Line, Matrix, commands, compared, matrices
from sp.studies.tables.lookup import markdown

INTRODUCTION = (
    "Right answers in per cent, with Wilson's 95 % interval. Differences are in points, on the same examples, with "
    "their 95 % interval by bootstrap: to the full prefill, and to the best oracle at that length and keep ratio, what "
    "any scorer could reach there. Oracles know the evidence or read with the target first; controls read no "
    "model. n is the number of examples of a task. Pairs of models never share a table."
)
LEFT_OUT = (
    "Weights with a name such as `probe-without-{task}` were trained on other tasks than the one they are measured on, "
    "another file for each."
)


def share(entry: Entry) -> str:
    """Accuracy in per cent with its interval; a dash where nothing was read."""
    if entry.accuracy is None or entry.low is None or entry.high is None:
        return "-"
    return f"{100 * entry.accuracy:.0f} ({100 * entry.low:.0f} to {100 * entry.high:.0f})"


def points(found: Interval | None) -> str:
    """A difference in points with its interval; a dash where there is nothing to compare with.

    Examples
    --------
    >>> points((-0.02, -0.05, 0.0)), points(None)
    ('-2 (-5 to +0)', '-')
    """
    if found is None:
        return "-"
    mean, low, high = (100 * value + 0.0 for value in found)
    return f"{mean:+.0f} ({low:+.0f} to {high:+.0f})"


def as_markdown(board: Board, reference: str = "") -> str:
    """The whole page.

    `reference`: scorer that all others are also held against, as its entries call it; empty for none.
    """
    parts = ["# Leaderboard", INTRODUCTION]
    if board.facts:
        parts.append("\n".join(f"- {name}: {_escaped(value)}" for name, value in board.facts.items()))
    for pair, note in board.pairs.items():
        parts.append(f"## {_escaped(pair)}")
        parts += [note] if note else []
        if any("{task}" in entry.scorer for entry in board.of(pair)):
            parts.append(LEFT_OUT)
        for matrix in matrices(board, pair):
            parts += _section(board, matrix, reference)
    return "\n\n".join(parts) + "\n"


def _section(board: Board, matrix: Matrix, reference: str) -> Iterator[str]:
    """One length and keep ratio: answers, differences and commands."""
    yield f"### {matrix.tokens:,} tokens, keep {matrix.keep:g}"
    yield _table(matrix, share, matrix.lines, means=len(matrix.tasks) > 1)
    compressed = [line for line in matrix.lines if line.kind != "full"]
    if any(entry.against_full for line in compressed for entry in line.entries.values()):
        yield "Against the full prefill:"
        yield _table(matrix, lambda entry: points(entry.against_full), compressed)
    oracles = sorted({entry.oracle for line in compressed for entry in line.entries.values()} - {""})
    if oracles:
        yield f"Distance to the best oracle ({_escaped(', '.join(oracles))}):"
        yield _table(matrix, lambda entry: points(entry.against_oracle), compressed)
    held = next((line for line in matrix.lines if line.scorer == reference), None)
    if held:
        yield f"Against {_escaped(reference)}, in points; bold where the two 95 % intervals are disjoint:"
        others = [line for line in compressed if line is not held]
        yield _table(matrix, lambda entry: beside(entry, held.entries.get(entry.task)), others)
    said = [command for line in matrix.lines for command in commands(board, line)]
    if said:
        yield "<details><summary>Commands of the rows</summary>\n\n```sh\n" + "\n".join(said) + "\n```\n\n</details>"


def beside(mine: Entry, other: Entry | None) -> str:
    """Accuracy minus another's in points, bold where it is certain; a dash where there is none."""
    found = compared(mine, other) if other else None
    if found is None:
        return "-"
    difference, disjoint = found
    return f"**{100 * difference:+.0f}**" if disjoint else f"{100 * difference:+.0f}"


def _table(matrix: Matrix, show: Callable[[Entry], str], lines: Sequence[Line], means: bool = False) -> str:
    """Scorers by task; with `means`, the mean over all tasks too."""
    rows = []
    for line in lines:
        cells = [show(line.entries[task]) if task in line.entries else "" for task in matrix.tasks]
        mean = line.mean(matrix.tasks)
        cells += ["" if mean is None else f"{100 * mean:.1f}"] if means else []
        kind = f" *{line.kind}*" if line.kind in ("oracle", "control") else ""
        rows.append([_escaped(line.title) + kind, *cells, line.n])
    return markdown(["scorer", *map(_escaped, matrix.tasks), *(["mean"] if means else []), "n"], rows)


def _escaped(name: str) -> str:
    """A name that may hold what Markdown takes for markup, on one line."""
    return "".join(f"\\{letter}" if letter in "|*`<[" else letter for letter in " ".join(name.split()))
