"""Rows of natural questions as lines: evidence kept whole by scorer and keep ratio, hard and easy questions apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sp.evals.natural.verdict import REASONS
from sp.evals.run import Row
from sp.evals.statistics import wilson
from sp.evals.summary import mean, middle

Line = dict[str, Any]

CELL = ("cell", "scorer", "selector", "keep_ratio")
HARD, EASY, ALL = "hard", "easy", "all"
OVERLAPS = (HARD, EASY, ALL)


def summarise_questions(rows: Iterable[Row]) -> list[Line]:
    """Lines by keep ratio, scorer and selector, and by overlap of question and evidence.

    Returns
    -------
    list of dict
        The columns `CELL`; ``overlap`` (one of `OVERLAPS`); ``n``; ``whole``, the share of questions whose evidence was
        kept whole, with Wilson's ``low`` and ``high``; ``misses``, how many for each of `REASONS`; ``recall`` (mean);
        ``rank`` and ``score_s`` (medians); ``accuracy`` with ``accuracy_low`` and ``accuracy_high`` where the target
        answered.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in CELL), []).append(row)
    lines = []
    for key in sorted(groups, key=lambda key: (-key[CELL.index("keep_ratio")], key[0])):
        for overlap in OVERLAPS:
            group = [row for row in groups[key] if overlap == ALL or row["hard"] == (overlap == HARD)]
            if group:
                lines.append(dict(zip(CELL, key, strict=True)) | {"overlap": overlap} | _measures(group))
    return lines


def _measures(rows: Sequence[Row]) -> Line:
    whole = sum(row["whole"] for row in rows)
    low, high = wilson(whole, len(rows))
    reasons = Counter(row["reason"] for row in rows)
    line: Line = {"n": len(rows), "whole": whole / len(rows), "low": low, "high": high}
    line |= {"misses": {reason: reasons[reason] for reason in REASONS}, "recall": mean(rows, "recall")}
    line |= {"rank": middle(rows, "rank"), "score_s": middle(rows, "score_s")}
    if all(row["correct"] is not None for row in rows):
        right = sum(row["correct"] for row in rows)
        bounds = wilson(right, len(rows))
        line |= {"accuracy": right / len(rows), "accuracy_low": bounds[0], "accuracy_high": bounds[1]}
    return line
