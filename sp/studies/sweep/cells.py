"""Groups of result rows and their summaries: shares with Wilson intervals, paired differences to the full prefill."""

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
    option.name: option.default
    for option in fields(RunOptions)
    if option.name in (*COLUMNS, "decode") and option.name != "keep_ratio"
} | {"positions": "original"}
"""Defaults of the options that become part of a strategy's name where they differ; rows have no positions `auto`."""


@dataclass(frozen=True)
class Group:
    """Rows of one strategy that are summarised together.

    `baseline`: for each row that of the full prefill of the same example, or empty; `oracles`: rows for which an
    oracle was run, each with the row of the best oracle.
    """

    rows: Sequence[Row]
    baseline: Sequence[Row]
    oracles: Sequence[tuple[Row, Row]] = ()

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.rows)

    @cached_property
    def accuracy(self) -> float:
        """Share of correct answers."""
        return float(np.mean([row["correct"] for row in self.rows]))

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the accuracy."""
        return wilson(int(sum(row["correct"] for row in self.rows)), self.n)

    def difference(self) -> tuple[float, float, float] | None:
        """Return the accuracy minus that of the full prefill on the same examples, with its paired bootstrap interval.

        None without a baseline.
        """
        if not self.baseline:
            return None
        return paired_difference([row["correct"] for row in self.rows], [row["correct"] for row in self.baseline])

    def distance(self) -> tuple[float, float, float] | None:
        """Return the accuracy minus that of the best oracle on the same examples, with its paired bootstrap interval.

        None without oracles.
        """
        if not self.oracles:
            return None
        own, best = ([row["correct"] for row in rows] for rows in zip(*self.oracles, strict=True))
        return paired_difference(own, best)

    def with_answer_selected(self, selected: bool) -> Group:
        """Return the rows for which all tokens of the answer were selected (True), or not all (False)."""
        return Group([row for row in self.rows if row.get("given_kept") is selected], [])

    def mean(self, name: str) -> float | None:
        """Return the mean of a measure over the rows that have it; None if none has."""
        values = self._values(name)
        return float(np.mean(values)) if values else None

    def median(self, name: str) -> float | None:
        """Return the median of a measure over the rows that have it; None if none has."""
        values = self._values(name)
        return float(np.median(values)) if values else None

    def speedup(self) -> float | None:
        """Return the median over examples of the full prefill's time to first token over that of this strategy."""
        # Not strict: the baseline may be empty.
        pairs = [(full.get("ttft_s"), row.get("ttft_s")) for full, row in zip(self.baseline, self.rows, strict=False)]
        gains = [full / own for full, own in pairs if full and own]
        return float(np.median(gains)) if gains else None

    def _values(self, name: str) -> list[float]:
        return [row[name] for row in self.rows if row.get(name) is not None]


@dataclass(frozen=True)
class Table:
    """All answered rows, each with the name of its strategy: scorer, options, and the selector if several were tried.

    `full`: row of the full prefill by `example_key`; `oracles`: row of the best oracle by `oracle_key`.
    """

    rows: Sequence[Row]
    full: Mapping[tuple[Any, ...], Row]
    oracles: Mapping[tuple[Any, ...], Row] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Table:
        """Name the strategies of the answered rows, and index their full prefills and best oracles."""
        answered = [row for row in rows if row["status"] == "ok"]
        selectors = {row["selector"] for row in answered if row["cell"] >= 0}
        full = {example_key(row): row for row in answered if row["cell"] < 0}
        several = len(selectors) > 1
        titles = pair_titles(row.get("pair") or "" for row in answered)
        named = [
            {**row, "strategy": strategy_name({**row, "pair": titles[row.get("pair") or ""]}, several)}
            for row in answered
        ]
        return cls(named, full, _oracles(answered))

    def groups(self, *by: str, keep: Iterable[float] | None = None) -> dict[tuple[Any, ...], Group]:
        """Group the rows by strategy and the columns in `by`, in the order of `strategy_order`.

        `keep` limits the rows to these keep ratios; the full prefill, whose keep ratio is 1, is always included. A
        key is the strategy followed by the values of the columns.
        """
        ratios = None if keep is None else {*keep, None}
        rows_by_key: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in self.rows:
            if ratios is None or row["cell"] < 0 or row["keep_ratio"] in ratios:
                rows_by_key[row["strategy"], *(row.get(name) for name in by)].append(row)
        groups = {}

        def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
            return strategy_order(key[0]), *((value is not None, 0 if value is None else value) for value in key[1:])

        for key in sorted(rows_by_key, key=order):
            # A paired difference needs a partner for every row, so that a partial baseline is none.
            baseline = [self.full[example_key(row)] for row in rows_by_key[key] if example_key(row) in self.full]
            oracles = [
                (row, self.oracles[place]) for row in rows_by_key[key] if (place := oracle_key(row)) in self.oracles
            ]
            groups[key] = Group(rows_by_key[key], baseline if len(baseline) == len(rows_by_key[key]) else [], oracles)
        return groups

    def strategies(self) -> list[str]:
        """Return the names of the strategies in the order of `strategy_order`."""
        return sorted({row["strategy"] for row in self.rows}, key=strategy_order)

    def values(self, name: str) -> list[Any]:
        """Return the sorted values of a column; those of the full prefill only if no other row has the column."""
        compressed = {row[name] for row in self.rows if row.get(name) is not None and row["cell"] >= 0}
        return sorted(compressed or {row[name] for row in self.rows if row.get(name) is not None})


def example_key(row: Row) -> tuple[Any, ...]:
    """Return the identity of a row's example: pair of models, task, length in tokens and name."""
    return row.get("pair", ""), row["task"], row["tokens_asked"], row["example"]


def oracle_key(row: Row) -> tuple[Any, ...]:
    """Return what a row has in common with that of its oracle: the example and the keep ratio."""
    return *example_key(row), row["keep_ratio"]


def strategy_name(row: Row, several_selectors: bool) -> str:
    """Return the name of a row's strategy: scorer, selector, options that differ from the defaults, pair."""
    if row["cell"] < 0:
        parts = [FULL]
    else:
        parts = [row["scorer"]]
        if several_selectors:
            parts.append(row["selector"])
    defaults = {**DEFAULTS, "rotate": rotates(row.get("kv", DEFAULTS["kv"]), None)}  # its default depends on kv
    changed = [
        f"{name}={row[name]}"
        for name, default in defaults.items()
        if row["cell"] >= 0 and row.get(name, default) != default
    ]
    return " + ".join([*parts, *filter(None, [" ".join(changed), row.get("pair")])])


def pair_titles(pairs: Iterable[str]) -> dict[str, str]:
    """Return short names by which pairs of models can be distinguished.

    A pair is paths joined by a plus. The name is empty if there is one pair only; else it has the names of the files,
    or the paths if two pairs have the same names.

    >>> pair_titles(["/m/a.gguf+/m/b.gguf"])
    {'/m/a.gguf+/m/b.gguf': ''}
    >>> pair_titles(["/m/a.gguf+/m/b.gguf", "/m/a.gguf+/m/c.gguf"])["/m/a.gguf+/m/c.gguf"]
    'a.gguf+c.gguf'
    >>> pair_titles(["", "/m/a.gguf", "/n/a.gguf"])
    {'': '', '/m/a.gguf': '/m/a.gguf', '/n/a.gguf': '/n/a.gguf'}
    """
    names = list(dict.fromkeys(pairs))
    if len(names) == 1:
        return {names[0]: ""}
    short = ["+".join(path.rpartition("/")[2] for path in pair.split("+")) for pair in names]
    # Two files of one name in different folders can only be distinguished by their paths.
    return dict(zip(names, short if len(set(short)) == len(names) else names, strict=True))


def strategy_order(name: str) -> tuple[int, int, str]:
    """Return a sort key: first the full prefill, then strategies by name, then controls, then oracles."""
    if name.startswith(FULL):
        return 0, 0, name
    scorer = scorer_class(name)
    if _reads_no_model(scorer):
        return 2, scorer.place, name  # type: ignore[attr-defined]
    return 3 if scorer.oracle else 1, 0, name


def is_control(name: str) -> bool:
    """Return True if the scorer of a strategy is built in and reads no model."""
    return strategy_order(name)[0] == 2


def kind_of(name: str) -> Kind:
    """Return the kind of a strategy or scorer.

    Oracles know the evidence or the answer, or run on the target. Controls are the built-in scorers that read no
    model; a scorer from a plugin is what an evaluation is about, and so counts as a scorer even if it reads none.

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
    best = [oracle for of_pair in pairs.values() for oracle in best_oracles(grouped(of_pair)).values()]
    return {oracle_key(row): row for oracle in best for row in oracle.values()}
