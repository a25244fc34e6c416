"""Rows of results grouped and summarised: shares with Wilson intervals, paired differences to the full prefill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from sp.evals.run import COLUMNS, scorer_class
from sp.evals.summary import best_oracles, grouped, paired_difference, wilson
from sp.models.cache.kv_type import rotates
from sp.page.forest import Kind
from sp.plugins import BUILT_IN, source_of
from sp.scoring.base import ModelFreeScorer, Scorer
from sp.session import RunOptions
from sp.studies.sweep.store import Row

FULL = "full prefill"
DEFAULTS = {
    each.name: each.default
    for each in fields(RunOptions)
    if each.name in (*COLUMNS, "decode") and each.name != "keep_ratio"
}  # options that are part of a strategy's name where they differ


@dataclass(frozen=True)
class Group:
    """Rows of one strategy that are summarised together. `baseline`: the full prefill's row of the same example, one
    for one, or empty; `oracles`: rows that an oracle was run for, each with that of the best one."""

    rows: Sequence[Row]
    baseline: Sequence[Row]
    oracles: Sequence[tuple[Row, Row]] = ()

    @property
    def n(self) -> int:
        """Examples."""
        return len(self.rows)

    @cached_property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(np.mean([row["correct"] for row in self.rows]))

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Wilson interval of the accuracy, 95 %."""
        return wilson(int(sum(row["correct"] for row in self.rows)), self.n)

    def difference(self) -> tuple[float, float, float] | None:
        """Accuracy minus that of the full prefill on the same examples, with its paired bootstrap interval."""
        if not self.baseline:
            return None
        return paired_difference([row["correct"] for row in self.rows], [row["correct"] for row in self.baseline])

    def distance(self) -> tuple[float, float, float] | None:
        """Accuracy minus that of the best oracle on the same examples, with its paired bootstrap interval."""
        if not self.oracles:
            return None
        own, best = ([row["correct"] for row in rows] for rows in zip(*self.oracles, strict=True))
        return paired_difference(own, best)

    def given(self, kept: bool) -> Group:
        """The rows whose answer's tokens were all kept, or were not."""
        return Group([row for row in self.rows if row.get("given_kept") is kept], [])

    def mean(self, name: str) -> float | None:
        """Mean of a measure over the rows that have it."""
        values = self._values(name)
        return float(np.mean(values)) if values else None

    def median(self, name: str) -> float | None:
        """Median of a measure over the rows that have it."""
        values = self._values(name)
        return float(np.median(values)) if values else None

    def speedup(self) -> float | None:
        """Median ratio of the full prefill's time to first token to this one's, example by example."""
        pairs = [(full.get("ttft_s"), row.get("ttft_s")) for full, row in zip(self.baseline, self.rows, strict=False)]
        gains = [full / own for full, own in pairs if full and own]
        return float(np.median(gains)) if gains else None

    def _values(self, name: str) -> list[float]:
        return [row[name] for row in self.rows if row.get(name) is not None]


@dataclass(frozen=True)
class Table:
    """All rows; `strategy` of a row names the way it was read: scorer, selector if several were tried, options. `full`:
    the full prefill's row by example; `oracles`: the best oracle's by example and keep ratio."""

    rows: Sequence[Row]
    full: Mapping[tuple[Any, ...], Row]
    oracles: Mapping[tuple[Any, ...], Row] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Table:
        """Name the strategies of the rows that were read, and pair each with the full prefill of its example."""
        listed = [row for row in rows if row["status"] == "ok"]
        selectors = {row["selector"] for row in listed if row["cell"] >= 0}
        full = {example_key(row): row for row in listed if row["cell"] < 0}
        several = len(selectors) > 1
        titles = pair_titles(row.get("pair") or "" for row in listed)
        named = [
            {**row, "strategy": strategy_name({**row, "pair": titles[row.get("pair") or ""]}, several)}
            for row in listed
        ]
        return cls(named, full, _oracles(listed))

    def groups(self, *by: str, keep: Iterable[float] | None = None) -> dict[tuple[Any, ...], Group]:
        """Groups by strategy and the columns named; of rows at the keep ratios given, and the full prefill always. Keys
        begin with the strategy; the full prefill has keep ratio 1."""
        wanted = None if keep is None else {*keep, None}
        found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in self.rows:
            if wanted is None or row["cell"] < 0 or row["keep_ratio"] in wanted:
                found[row["strategy"], *(row.get(name) for name in by)].append(row)
        groups = {}

        def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
            return strategy_order(key[0]), *((each is not None, 0 if each is None else each) for each in key[1:])

        for key in sorted(found, key=order):
            baseline = [self.full[example_key(row)] for row in found[key] if example_key(row) in self.full]
            oracles = [(row, self.oracles[place]) for row in found[key] if (place := oracle_key(row)) in self.oracles]
            groups[key] = Group(found[key], baseline if len(baseline) == len(found[key]) else [], oracles)
        return groups

    def strategies(self) -> list[str]:
        """Names in the order they are shown; see `strategy_order`."""
        return sorted({row["strategy"] for row in self.rows}, key=strategy_order)

    def values(self, name: str) -> list[Any]:
        """Values of a column, sorted, rows of the full prefill left out where others have it too."""
        found = {row[name] for row in self.rows if row.get(name) is not None and row["cell"] >= 0}
        return sorted(found or {row[name] for row in self.rows if row.get(name) is not None})


def example_key(row: Row) -> tuple[Any, ...]:
    """What one example is: the pair that read it, and its task, length and number."""
    return row.get("pair", ""), row["task"], row["tokens_asked"], row["example"]


def oracle_key(row: Row) -> tuple[Any, ...]:
    """What a row and that of the oracle it is held against have in common."""
    return *example_key(row), row["keep_ratio"]


def strategy_name(row: Row, several_selectors: bool) -> str:
    """Name of the strategy of a row."""
    if row["cell"] < 0:
        parts = [FULL]
    else:
        parts = [row["scorer"]]
        if several_selectors:
            parts.append(row["selector"])
    defaults = {**DEFAULTS, "rotate": rotates(row.get("kv", DEFAULTS["kv"]), None)}
    changed = [
        f"{name}={row[name]}"
        for name, default in defaults.items()
        if row["cell"] >= 0 and row.get(name, default) != default
    ]
    return " + ".join([*parts, *filter(None, [" ".join(changed), row.get("pair")])])


def pair_titles(pairs: Iterable[str]) -> dict[str, str]:
    """What tells pairs of models apart, paths with a plus between them: nothing where there is one, else names of
    files, or paths if names are alike.

    >>> pair_titles(["/m/a.gguf+/m/b.gguf"])
    {'/m/a.gguf+/m/b.gguf': ''}
    >>> pair_titles(["/m/a.gguf+/m/b.gguf", "/m/a.gguf+/m/c.gguf"])["/m/a.gguf+/m/c.gguf"]
    'a.gguf+c.gguf'
    >>> pair_titles(["", "/m/a.gguf", "/n/a.gguf"])
    {'': '', '/m/a.gguf': '/m/a.gguf', '/n/a.gguf': '/n/a.gguf'}
    """
    found = list(dict.fromkeys(pairs))
    if len(found) == 1:
        return {found[0]: ""}
    short = ["+".join(path.rpartition("/")[2] for path in pair.split("+")) for pair in found]
    return dict(zip(found, short if len(set(short)) == len(found) else found, strict=True))


def strategy_order(name: str) -> tuple[int, int, str]:
    """Sort key: the full prefill, strategies by name, controls, oracles that read the target."""
    if name.startswith(FULL):
        return 0, 0, name
    scorer = scorer_class(name)
    if _reads_no_model(scorer):
        return 2, scorer.place, name  # type: ignore[attr-defined]
    return 3 if scorer.oracle else 1, 0, name


def is_control(name: str) -> bool:
    """Return True if a strategy's scorer is a built-in one that reads no model."""
    return strategy_order(name)[0] == 2


def kind_of(name: str) -> Kind:
    """Return what a strategy, or a scorer, is.

    Oracles know the evidence or the answer, or read with the target. Controls are the built-in scorers that read no
    model; a scorer of one's own is what an evaluation is about, and a strategy even if it reads none.

    >>> [kind_of(name) for name in (FULL, "tail queries=24", "oracle", "target_attention", "bm25")]
    ['full', 'scorer', 'oracle', 'oracle', 'control']
    """
    if name.startswith(FULL):
        return "full"
    scorer = scorer_class(name)
    if scorer.oracle or scorer.reads_target:
        return "oracle"
    return "control" if _reads_no_model(scorer) else "scorer"


def _reads_no_model(scorer: type[Scorer]) -> bool:
    return issubclass(scorer, ModelFreeScorer) and source_of(scorer) == BUILT_IN


def _oracles(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    pairs: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        pairs[row.get("pair")].append(row)
    best = [found for each in pairs.values() for found in best_oracles(grouped(each)).values()]
    return {oracle_key(row): row for found in best for row in found.values()}
