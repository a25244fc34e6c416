"""Entries of one pair, length and keep ratio as a matrix: scorers down, tasks across."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sp.studies.board.command import command_of
from sp.studies.board.entries import Board, Entry
from sp.studies.board.naming import KINDS, Kind, slotted
from sp.studies.sweep.cells import strategy_order


@dataclass(frozen=True)
class Line:
    """One scorer, with its entry of each task it was run on.

    `entries`: by task.
    """

    scorer: str
    trained: str
    kind: Kind
    entries: dict[str, Entry]

    @property
    def title(self) -> str:
        """Its name, and what its weights never saw."""
        return self.scorer + (f" ({self.trained})" if self.trained else "")

    def mean(self, tasks: Sequence[str]) -> float | None:
        """Mean accuracy over tasks; None where one of them was not measured.

        Examples
        --------
        >>> Line("tail", "", "scorer", {}).mean(["needle"]) is None
        True
        """
        found = [self.entries[task].accuracy if task in self.entries else None for task in tasks]
        known = [one for one in found if one is not None]
        return sum(known) / len(known) if known and len(known) == len(found) else None

    @property
    def n(self) -> str:
        """Examples of a task, or the fewest and the most."""
        sizes = sorted({entry.n for entry in self.entries.values()})
        return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


@dataclass(frozen=True)
class Matrix:
    """What compares at a glance: one pair, length and keep ratio."""

    pair: str
    tokens: int
    keep: float
    tasks: tuple[str, ...]
    lines: tuple[Line, ...]


def matrices(board: Board, pair: str) -> Iterator[Matrix]:
    """Matrices of a pair by length and keep ratio; each begins with the full prefill of its tasks."""
    mine = board.of(pair)
    places = sorted({(entry.tokens, entry.keep) for entry in mine if entry.keep is not None})
    for tokens, keep in places:
        here = [entry for entry in mine if entry.tokens == tokens and entry.keep == keep]
        tasks = tuple(sorted({entry.task for entry in here}))
        whole = [entry for entry in mine if entry.tokens == tokens and entry.keep is None and entry.task in tasks]
        yield Matrix(pair, tokens, keep, tasks, tuple(_lines([*whole, *here])))


def compared(mine: Entry, other: Entry) -> tuple[float, bool] | None:
    """Accuracy minus another's, and whether their intervals are disjoint; None where one was not measured."""
    if mine.accuracy is None or mine.low is None or mine.high is None:
        return None
    if other.accuracy is None or other.low is None or other.high is None:
        return None
    return mine.accuracy - other.accuracy, mine.low > other.high or mine.high < other.low


def _lines(entries: Sequence[Entry]) -> list[Line]:
    """Lines in the order of their kind; weights that were made twice under one name have a line each."""
    found: dict[tuple[str, str, int], dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        turn = sum(entry.task in known for key, known in found.items() if key[:2] == (entry.scorer, entry.trained))
        found[entry.scorer, entry.trained, turn][entry.task] = entry
    lines = [Line(*key[:2], next(iter(by_task.values())).kind, by_task) for key, by_task in found.items()]
    return sorted(lines, key=lambda line: (KINDS.index(line.kind), strategy_order(line.scorer), line.trained))


def commands(board: Board, line: Line) -> list[str]:
    """Commands that make a line anew: one for all tasks of as many examples."""
    groups: dict[int, list[Entry]] = defaultdict(list)
    for entry in line.entries.values():
        groups[entry.n + entry.not_run].append(entry)
    said = []
    for n, entries in groups.items():
        row, pair = entries[0].row, entries[0].pair
        tasks = [entry.task for entry in entries]
        said.append(command_of({**row, "scorer": slotted(row)}, tasks, n, board.models[pair], board.sweeps[pair]))
    return [command for command in said if command]
