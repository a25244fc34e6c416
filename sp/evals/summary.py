"""Rows of a cell as one line: right answers with their interval, difference from full prefill, evidence kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp
from statistics import median
from typing import Any

from sp.evals.run import Row
from sp.evals.statistics import paired_difference, wilson

Line = dict[str, Any]

CELL = ("task", "tokens_asked", "cell", "scorer", "selector", "keep_ratio")


def grouped(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the columns of `CELL`, by task, length and index; the full prefill comes first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in CELL), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: item[0][:3]))


def summarise(rows: Sequence[Row]) -> list[Line]:
    """Lines by task, length and cell of what `evaluate` yields.

    Returns
    -------
    list of dict
        The columns `CELL`; ``n`` (examples that could be run), ``not_run``, ``correct``, ``accuracy`` with Wilson's
        ``low`` and ``high``; ``score``; ``against_full``, ``against_full_low``, ``against_full_high`` (mean difference
        of scores of the same examples, bootstrapped); ``needle_recall``, ``given_kept`` (share of examples),
        ``accuracy_given_kept``, ``needle_rank`` and ``needle_margin`` (medians); ``realised_keep``, ``ttft_s``
        (median), ``speedup`` (median of full over it). None where nothing was measured.

    Raises
    ------
    ConfigError
        If SciPy is missing.
    """
    full = {(row["task"], row["example"]): row for row in rows if row["cell"] == -1}
    lines = []
    for key, group in grouped(rows).items():
        ran = [row for row in group if row["status"] == "ok"]
        line: Line = dict(zip(CELL, key, strict=True)) | {"n": len(ran), "not_run": len(group) - len(ran)}
        lines.append(line | (_measures(ran, full) if ran else {}))
    return lines


def _measures(rows: Sequence[Row], full: dict[tuple[str, str], Row]) -> Line:
    correct = sum(row["correct"] for row in rows)
    low, high = wilson(correct, len(rows))
    line: Line = {
        "correct": correct, "accuracy": correct / len(rows), "low": low, "high": high, "score": mean(rows, "score"),
        "needle_recall": mean(rows, "needle_recall"), "given_kept": mean(rows, "given_kept"),
        "accuracy_given_kept": mean([row for row in rows if row["given_kept"]], "correct"),
        "needle_rank": middle(rows, "needle_rank"), "needle_margin": middle(rows, "needle_margin"),
        "realised_keep": mean(rows, "realised_keep"), "ttft_s": middle(rows, "ttft_s"),
    }  # fmt: skip
    paired = [(row, full[key]) for row in rows if (key := (row["task"], row["example"])) in full]
    if paired:
        found = paired_difference([one["score"] for one, _ in paired], [whole["score"] for _, whole in paired])
        line |= dict(zip(("against_full", "against_full_low", "against_full_high"), found, strict=True))
        line["speedup"] = median(whole["ttft_s"] / one["ttft_s"] for one, whole in paired)
    return line


def summarise_perplexity(rows: Sequence[Row]) -> list[Line]:
    """Lines by length and cell of what `perplexity` yields.

    Returns
    -------
    list of dict
        The columns `CELL`; ``n``, ``not_run``; means ``nll``, ``kl``, ``agreement``, ``realised_keep``; ``perplexity``,
        the exponential of the mean nll; ``nll_change`` with ``nll_change_low`` and ``nll_change_high``, the difference
        from the full prefill of the same passages, bootstrapped.
    """
    full = {row["example"]: row for row in rows if row["cell"] == -1}
    lines = []
    for key, group in grouped(rows).items():
        ran = [row for row in group if row["status"] == "ok"]
        line: Line = dict(zip(CELL, key, strict=True)) | {"n": len(ran), "not_run": len(group) - len(ran)}
        if ran:
            line |= {name: mean(ran, name) for name in ("nll", "kl", "agreement", "realised_keep")}
            line["perplexity"] = exp(line["nll"])
            change = paired_difference([r["nll"] for r in ran], [full[r["example"]]["nll"] for r in ran])
            line |= dict(zip(("nll_change", "nll_change_low", "nll_change_high"), change, strict=True))
        lines.append(line)
    return lines


def mean(rows: Sequence[Row], name: str) -> float | None:
    """Mean of a column where it is known."""
    values = [float(row[name]) for row in rows if row[name] is not None]
    return sum(values) / len(values) if values else None


def middle(rows: Sequence[Row], name: str) -> float | None:
    """Median of a column where it is known."""
    values = [float(row[name]) for row in rows if row[name] is not None]
    return median(values) if values else None
