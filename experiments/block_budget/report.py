"""The tables of measure.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from sp.bench.record import newest
from sp.evals.statistics import wilson
from sp.models import flops
from sp.models.synthetic.shapes import find_shape
from sp.ops.sparse.block_budget import read_rule
from sp.ops.sparse.block_lists import candidates
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import TopDensity
from sp.studies.tables.report_tables import markdown

BENCH = "block_budget"
RULES = ("dense", "density 0.05", "constant:1", "constant:16", "sqrt:16", "energy:0.5:8:64", "energy:0.9", "random")
SHAPE, FROM, TO = "qwen3-0.6b", 1 << 17, 1 << 20


def rows_of(results: Path) -> list[dict[str, Any]]:
    """The newest record of every cell, whatever machine it is of: what is kept does not depend on that.

    Questions with a text of their own are the first ones of a task, so that those of a longer run hold a shorter one's.
    """
    found = [row for path in sorted(results.glob(f"*/{BENCH}.jsonl")) for row in newest(path)]
    found.sort(key=lambda row: ("task" in row["config"] and row["config"]["questions"], row["date"]))
    return list({_cell(row["config"]): row for row in found}.values())


def _cell(config: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in config.items() if key != "questions" or "task" not in config})


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """A table a drafter, and one of how cost grows."""
    named = dict.fromkeys(map(name_of, rows))
    parts = [f"{name}\n\n{of_drafter([row for row in rows if name_of(row) == name])}" for name in named]
    return "\n\n".join([*parts, f"growth\n\n{growth(rows)}"])


def name_of(row: dict[str, Any]) -> str:
    """The drafter, and the task if it is no needle."""
    task = row["config"].get("task")
    return row["config"]["drafter"] + (f", {task}" if task else "")


def of_drafter(rows: Sequence[dict[str, Any]]) -> str:
    """Blocks read, needles kept, and how often needles' blocks are listed, by length and rule; seeds together."""
    cells = []
    for tokens in sorted({row["config"]["tokens"] for row in rows}):
        of_length = [row for row in rows if row["config"]["tokens"] == tokens]
        for rule in rules_of(of_length):
            found = [row["metrics"] for row in of_length if row["config"]["rule"] == rule]
            cells.append([f"{tokens:,}", rule, *cells_of(found)])
    return markdown(["tokens", "rule", "blocks read", "needles kept (95 %)", "listed / chance"], cells)


def rules_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Those that were measured, in the order of `RULES`, others behind them."""
    found = dict.fromkeys(row["config"]["rule"] for row in rows)
    return sorted(found, key=lambda rule: RULES.index(rule) if rule in RULES else len(RULES))


def cells_of(found: Sequence[dict[str, Any]]) -> list[str]:
    """Of the cells of one length and rule."""
    kept, n = (sum(m[name] for m in found) for name in ("kept", "questions"))
    low, high = wilson(kept, n)
    densities, listed, chance = (
        [m[k] for m in found if m[k] is not None] for k in ("density", "listed", "listed_by_chance")
    )
    return [
        f"{np.mean(densities):.1%}" if densities else "",
        f"{kept}/{n} ({100 * low:.0f} to {100 * high:.0f})",
        f"{np.mean(listed):.0%} / {np.mean(chance):.0%}" if listed else "",
    ]


def growth(rows: Sequence[dict[str, Any]]) -> str:
    """Exponents of the length: of blocks read, as measured, and of cost by the cost model."""
    cells = []
    for rule in rules_of(rows):
        measured = [
            exponent_read([r for r in rows if r["config"]["rule"] == rule and name_of(r) == name])
            for name in ("embedded", "retriever")
        ]
        if any(measured):
            cells.append([rule, *measured, expected_growth(rule)])
    heads = ["rule", "blocks read, embedded", "blocks read, retriever", "cost 128K to 1M"]
    return markdown(heads, cells)


def exponent_read(rows: Sequence[dict[str, Any]]) -> str:
    """By least squares over the logarithms, with the lengths it is of."""
    points = [
        (row["metrics"]["prompt_tokens"], row["metrics"]["density"])
        for row in rows
        if row["metrics"]["density"] is not None
    ]
    lengths = [n for n, _ in points]
    if not lengths or max(lengths) < 2 * min(lengths):
        return ""
    blocks = [density * candidates(n, n).sum() for n, density in points]
    slope = np.polyfit(np.log(lengths), np.log(blocks), 1)[0]
    return f"{slope:.2f} ({round(min(lengths) / 1024)}K to {round(max(lengths) / 1024)}K)"


def expected_growth(rule: str) -> str:
    """Of all operations of a drafter of 0.6B parameters whose attention has the expected density."""
    if rule == "dense":
        read = [1.0, 1.0]
    else:
        selector = TopDensity(float(rule.split()[1])) if rule.startswith("density") else read_rule(rule, "rule")
        read = [expected_density(selector, n) for n in (FROM, TO)]
    config = find_shape(SHAPE).config
    cost = [flops(config, n, density=density) for n, density in zip((FROM, TO), read, strict=True)]
    return f"{log(cost[1] / cost[0]) / log(TO / FROM):.2f}"
