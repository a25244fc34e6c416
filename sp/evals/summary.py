"""Summarise rows as lines of means, with intervals for shares and for differences of pairs.

SciPy is imported only where it resamples, because importing `scipy.stats` takes as long as a small run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, sqrt
from statistics import NormalDist, median
from typing import Any

import numpy as np

from sp.errors import ConfigError
from sp.evals.run import Row, scorer_class

RESAMPLES = 2000


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share (Wilson 1927), which is valid near 0 and 1 and for small n.

    ConfigError: `n` is 0.
    """
    if n < 1:
        raise ConfigError("an interval needs at least one example")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle, half = successes + z**2 / 2, z * sqrt(successes * (n - successes) / n + z**2 / 4)
    low, high = ((middle + sign * half) / (n + z**2) for sign in (-1, 1))
    return (low if successes else 0.0), (high if successes < n else 1.0)  # exact where rounding errors would remain


def paired_difference(
    scores: Sequence[float], baseline: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean difference of scores of the same examples, and its bootstrap interval: mean, low, high.

    The bounds are percentiles of resampled pairs. Where all differences are equal, the interval is one point; Wilson's
    interval of the share then shows what n examples can prove.
    """
    if len(scores) != len(baseline) or not len(scores):
        raise ConfigError(f"{len(scores)} scores cannot be paired with {len(baseline)}")
    differences = np.subtract(scores, baseline, dtype=np.float64)
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        return mean, mean, mean
    from scipy import stats

    result = stats.bootstrap(
        (differences,), np.mean, n_resamples=RESAMPLES, confidence_level=confidence, method="percentile",
        random_state=np.random.default_rng(seed),
    )  # fmt: skip
    return mean, float(result.confidence_interval.low), float(result.confidence_interval.high)


Line = dict[str, Any]

CELL = ("task", "tokens_asked", "cell", "scorer", "selector", "keep_ratio")


def grouped(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the columns of `CELL`, in the order of task, length and index; the full prefill comes first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in CELL), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: item[0][:3]))


def summarise(rows: Sequence[Row]) -> list[Line]:
    """Summarise rows of `evaluate` by task, length and cell.

    Returns the columns `CELL`; ``n`` (examples that could be run), ``not_run``, ``correct``, ``accuracy`` with Wilson's
    ``low`` and ``high``; ``score``; ``against_full``, ``against_full_low``, ``against_full_high`` (mean difference of
    scores of the same examples, bootstrapped); ``against_oracle``, ``against_oracle_low``, ``against_oracle_high``
    (likewise of right answers, from those of `best_oracles`); ``needle_recall``, ``given_kept`` (share of examples),
    ``accuracy_given_kept``, ``needle_rank`` and ``needle_margin`` (medians); ``realised_keep``, ``ttft_s`` (median),
    ``speedup`` (median of full over it). None where nothing was measured.
    """
    full = {(row["task"], row["example"]): row for row in rows if row["cell"] == -1}
    groups = grouped(rows)
    oracles = best_oracles(groups)
    lines = []
    for key, group in groups.items():
        ran = [row for row in group if row["status"] == "ok"]
        line: Line = dict(zip(CELL, key, strict=True)) | {"n": len(ran), "not_run": len(group) - len(ran)}
        lines.append(line | (_measures(ran, full, oracles.get(_place(line), {})) if ran else {}))
    return lines


def best_oracles(groups: Mapping[tuple[Any, ...], Sequence[Row]]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """Return the rows of the oracle that is right most often, by task, length and keep ratio, and then by example.

    It is the same oracle for all examples; of equal ones the one that ran on more examples, then the first.
    """
    best: dict[tuple[Any, ...], tuple[float, int]] = {}
    rows: dict[tuple[Any, ...], dict[str, Row]] = {}
    for key, group in groups.items():
        named = dict(zip(CELL, key, strict=True))
        ran = {row["example"]: row for row in group if row["status"] == "ok"}
        if named["cell"] < 0 or not ran or not scorer_class(named["scorer"]).oracle:
            continue
        place, rank = _place(named), (sum(row["correct"] for row in ran.values()) / len(ran), len(ran))
        if place not in best or rank > best[place]:
            best[place], rows[place] = rank, ran
    return rows


def _place(line: Line) -> tuple[Any, ...]:
    return line["task"], line["tokens_asked"], line["keep_ratio"]


def _measures(rows: Sequence[Row], full: dict[tuple[str, str], Row], oracle: dict[str, Row]) -> Line:
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
        line["speedup"] = median(whole["ttft_s"] / compressed["ttft_s"] for compressed, whole in paired)
    known = [(row, oracle[row["example"]]) for row in rows if row["example"] in oracle]
    return line | _against("full", "score", paired) | _against("oracle", "correct", known)


def _against(reference: str, column: str, pairs: Sequence[tuple[Row, Row]]) -> Line:
    """Return the mean difference of a column between rows of the same examples, with its interval; None if no rows."""
    names = f"against_{reference}", f"against_{reference}_low", f"against_{reference}_high"
    if not pairs:
        return dict.fromkeys(names)
    difference = paired_difference([row[column] for row, _ in pairs], [other[column] for _, other in pairs])
    return dict(zip(names, difference, strict=True))


def summarise_perplexity(rows: Sequence[Row]) -> list[Line]:
    """Summarise rows of `perplexity` by length and cell.

    Returns the columns `CELL`; ``n``, ``not_run``; means ``nll``, ``kl``, ``agreement``, ``realised_keep``;
    ``perplexity``, the exponential of the mean nll; ``nll_change`` with ``nll_change_low`` and ``nll_change_high``, the
    difference from the full prefill of the same passages, bootstrapped.
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
    """Return the mean of a column over rows where it is not None; None if there are none."""
    values = [float(row[name]) for row in rows if row[name] is not None]
    return sum(values) / len(values) if values else None


def middle(rows: Sequence[Row], name: str) -> float | None:
    """Return the median of a column over rows where it is not None; None if there are none."""
    values = [float(row[name]) for row in rows if row[name] is not None]
    return median(values) if values else None
