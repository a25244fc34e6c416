"""Entries of the leaderboard: one scorer on one task, length and keep ratio, read by one pair of models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.evals.summary import paired_difference, wilson
from sp.evals.trained_for import note_of_records
from sp.studies.board.command import command_of
from sp.studies.board.naming import KINDS, Kind, kind_of, shown_name, task_label, trained_of, weights_of
from sp.studies.pages.report import find_sources
from sp.studies.sweep.cells import strategy_order
from sp.studies.sweep.store import Row, read_results, read_rows

UNKNOWN = "models unknown"
Interval = tuple[float, float, float]
"""Mean difference of paired examples, and its 95 % interval by bootstrap."""


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard.

    Parameters
    ----------
    pair : str
        Names and SHA-256 of the models, the key under which entries compare.
    task, scorer : str
        With the options that are not their defaults.
    tokens : int
        Length asked for.
    keep : float or None
        Keep ratio; None for the full prefill.
    trained : str
        What the scorer's weights never saw; empty where it has none.
    weights : str
        First digits of the SHA-256 of these weights, where they came from a file.
    n, not_run : int
        Examples that were read, and those that could not be.
    accuracy, low, high : float or None
        Share of right answers with Wilson's 95 % interval; None where no example was read.
    against_full, against_oracle : tuple of float or None
        Accuracy minus that of the full prefill, and of the best oracle, on the same examples.
    oracle : str
        That oracle.
    evidence : float or None
        Share of examples of which every token of the answers was kept.
    command : str
        Makes the entry anew; empty where there is no such line.
    row : dict
        One of its rows.
    """

    pair: str
    task: str
    tokens: int
    keep: float | None
    scorer: str
    kind: Kind
    trained: str
    weights: str
    n: int
    not_run: int
    accuracy: float | None
    low: float | None
    high: float | None
    against_full: Interval | None
    against_oracle: Interval | None
    oracle: str
    evidence: float | None
    command: str
    row: Row = field(repr=False)


@dataclass(frozen=True)
class Board:
    """All entries, in the order they are shown, and where they come from.

    `pairs`: what is told of each pair besides its name: what its drafter was trained for, if anything; `facts`:
    machines, commits, dates and so on of the records; `models`: by pair, what the records say of the models by role;
    `sweeps`: by pair, the name of a sweep its rows are from.
    """

    entries: tuple[Entry, ...]
    pairs: Mapping[str, str]
    facts: Mapping[str, str]
    models: Mapping[str, Mapping[str, Mapping[str, Any]]]
    sweeps: Mapping[str, str]

    def of(self, pair: str) -> list[Entry]:
        """Entries of a pair."""
        return [entry for entry in self.entries if entry.pair == pair]


@dataclass(frozen=True)
class Told:
    """A row with what its record knows besides.

    `models`: file, SHA-256 and so on by role; `files`: SHA-256 by path of the files that its run's scorers name;
    `sweep`: name of the sweep it is from; empty for none; `origin`: file it is from, which tells pairs apart whose
    models are not known.
    """

    row: Row
    models: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str] = field(default_factory=dict)
    sweep: str = ""
    origin: str = ""


@dataclass
class _Group:
    """Rows of one entry by example, so that one that was measured twice counts once."""

    last: Told
    rows: dict[str, Row] = field(default_factory=dict)

    def right(self) -> dict[str, float]:
        """Whether each example that was read was answered right."""
        return {name: float(row["correct"]) for name, row in self.rows.items() if row["status"] == "ok"}


def read_board(paths: Sequence[Path]) -> Board:
    """The leaderboard of the records of `sp sweep`, `sp eval discriminates` and `sp eval --out` below paths.

    Raises
    ------
    ConfigError
        A path is missing or holds something else, or there is no row.
    """
    sources = find_sources(paths)
    results = read_results(sources.results).checked()
    told = []
    for run, closing in results.runs.items():
        config, sweep = closing["config"], str(results.sessions[closing["session"]]["sweep"])
        told += [Told(row, closing["models"], config.get("files", {}), sweep) for row in results.rows[run]]
    for path in sources.evals:
        told += [Told(row, row.get("models") or {}, origin=str(path)) for row in read_rows(path)]
    if not told:
        raise ConfigError(f"{', '.join(map(str, paths))}: no finished run in it; run sp sweep or sp eval first")
    used = {closing["session"] for closing in results.runs.values()}
    return make_board(told, facts_of([line for name, line in results.sessions.items() if name in used]))


def facts_of(sessions: Sequence[Row]) -> dict[str, str]:
    """Where rows are from, as far as their sessions tell."""
    facts = {
        "sweep": {str(line["sweep"]) for line in sessions},
        "machine": {str(line.get("gpu") or f"{line.get('cpu')}, {line.get('cores')} cores") for line in sessions},
        "commit": {str(line.get("commit")) for line in sessions},
        "date": {str(line["date"])[:10] for line in sessions},
    }
    return {name: ", ".join(sorted(values)) for name, values in facts.items() if values}


def pair_name(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Both models by name and SHA-256, which tell pairs apart that share their names; empty where none is known.

    Examples
    --------
    >>> pair_name({role: {"file": f"{role}.gguf", "sha256": "01" * 32} for role in ("drafter", "target")})
    'target.gguf (010101010101) with drafter.gguf (010101010101)'
    """
    roles = [role for role in ("target", "drafter", "draft") if role in models]
    shown = [
        " ".join([models[role]["file"], f"({models[role]['sha256'][:12]})", *filter(None, [models[role].get("rope")])])
        for role in roles
    ]
    return " with ".join(shown)


def make_board(told: Iterable[Told], facts: Mapping[str, str]) -> Board:
    """Group rows, the later of one example in one cell in place of the earlier, and summarise the groups."""
    listed = list(told)
    selectors = sorted({str(one.row["selector"]) for one in listed if one.row["cell"] >= 0})
    several = len(selectors) > 1
    groups: dict[tuple[Any, ...], _Group] = {}
    models: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    sweeps: dict[str, str] = {}
    for one in listed:
        row, pair = one.row, pair_name(one.models) or f"{UNKNOWN} ({one.origin})"
        models[pair] = one.models
        sweeps[pair] = one.sweep
        keep = None if row["cell"] < 0 else row["keep_ratio"]
        weights = weights_of(row, one.files)
        key = pair, task_label(row), row["tokens_asked"], keep, shown_name(row, several), weights
        group = groups.setdefault(key, _Group(one))
        group.rows[row["example"]] = row
    places: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for key in groups:
        places[key[:3]].append(key)
    entries = [entry for keys in places.values() for entry in _entries(keys, groups)]
    order = sorted(entries, key=_order)
    told_facts = {**facts, **({} if several or not selectors else {"selector": selectors[0]})}
    drafters = {pair: [found["drafter"]] if "drafter" in found else [] for pair, found in models.items()}
    notes = {pair: note_of_records(drafters[pair]) for pair in sorted(models)}
    return Board(tuple(order), notes, told_facts, models, sweeps)


def _order(entry: Entry) -> tuple[Any, ...]:
    keep = entry.keep if entry.keep is not None else 0.0
    kind = KINDS.index(entry.kind)
    return entry.pair, entry.tokens, keep, entry.task, kind, strategy_order(entry.scorer), entry.weights


def _entries(keys: Sequence[tuple[Any, ...]], groups: Mapping[tuple[Any, ...], _Group]) -> Iterable[Entry]:
    """Entries of one pair, task and length, each beside the full prefill and the oracles of its keep ratio."""
    right = {key: groups[key].right() for key in keys}
    full = next((right[key] for key in keys if key[3] is None), {})
    for key in keys:
        group, mine = groups[key], right[key]
        oracles = {
            other: right[other] for other in keys if other[3] == key[3] and kind_of(groups[other].last.row) == "oracle"
        }
        best = best_oracle(mine, oracles)
        low, high = wilson(int(sum(mine.values())), len(mine)) if mine else (None, None)
        row, pair, keep = group.last.row, key[0], key[3]
        evidence = [bool(each["given_kept"]) for each in group.rows.values() if each.get("given_kept") is not None]
        yield Entry(
            pair=pair,
            task=key[1],
            tokens=key[2],
            keep=keep,
            scorer=key[4],
            kind=kind_of(row),
            trained=trained_of(row),
            weights=key[5],
            n=len(mine),
            not_run=len(group.rows) - len(mine),
            accuracy=sum(mine.values()) / len(mine) if mine else None,
            low=low,
            high=high,
            against_full=None if keep is None else against(mine, full),
            against_oracle=against(mine, oracles[best]) if best is not None else None,
            oracle="" if best is None else best[4],
            evidence=sum(evidence) / len(evidence) if evidence and keep is not None else None,
            command=command_of(row, [key[1]], len(group.rows), group.last.models, group.last.sweep),
            row=row,
        )


def best_oracle(mine: Mapping[str, float], oracles: Mapping[Any, Mapping[str, float]]) -> Any:
    """Key of the most accurate oracle: of those that read all of the examples, or else of all; None without any.

    Examples
    --------
    >>> best_oracle({"a": 0, "b": 1}, {"few": {"a": 1}, "all": {"a": 0, "b": 1}, "none": {}})
    'all'
    """
    ran = {key: found for key, found in oracles.items() if found}
    wide = {key: found for key, found in ran.items() if mine.keys() <= found.keys()} or ran
    return max(wide, key=lambda key: (sum(wide[key].values()) / len(wide[key]), len(wide[key])), default=None)


def against(mine: Mapping[str, float], others: Mapping[str, float]) -> Interval | None:
    """Mean difference on the examples that both read; None where there is none."""
    shared = sorted(mine.keys() & others.keys())
    if not shared:
        return None
    return paired_difference([mine[one] for one in shared], [others[one] for one in shared])
