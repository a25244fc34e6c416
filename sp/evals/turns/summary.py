"""Rows of turns as lines: right answers by way, options and kind of question, with intervals, tokens and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from sp.evals.run import Row
from sp.evals.statistics import paired_difference, wilson
from sp.evals.summary import mean, middle
from sp.evals.transcripts.plan import KINDS
from sp.evals.turns.ways import TOKENS, WAYS

Line = dict[str, Any]

CELL = ("tokens_asked", "way", "cell", "scorer", "selector", "keep_ratio")
ALL = "all"
"""Kind of the line that takes all kinds together."""
COUNTS = ("prompt_tokens", "kept_tokens", *TOKENS)


def summarise_turns(rows: Iterable[Row]) -> list[Line]:
    """Lines by length, way, options and kind of question; all kinds together come first.

    Returns
    -------
    list of dict
        The columns `CELL`; ``kind``; ``words_match``; ``n``, ``not_run`` (a turn that did not fit);
        ``correct``, ``accuracy`` with Wilson's ``low`` and ``high``; ``against_full``, ``against_full_low``,
        ``against_full_high``, mean difference of right answers to the same questions, bootstrapped; ``given_kept``
        (share with all tokens of the answer in the evidence kept); ``outdated`` (share of answers that had been right
        before); medians of the columns `COUNTS`; ``ttft_s`` and ``ttft_p95_s``, median and 95th percentile;
        ``speedup``, median of full over it. None or left out where nothing was measured.
    """
    given = list(rows)
    full = {(row["tokens_asked"], row["example"]): row for row in given if row["way"] == "full"}
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in given:
        groups.setdefault(tuple(row[name] for name in CELL), []).append(row)
    ways = list(WAYS)

    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens, way, cell, *_ = key
        return tokens, ways.index(way) if way in ways else len(ways), cell

    lines = []
    for key in sorted(groups, key=order):
        for kind in (ALL, *KINDS):
            group = [row for row in groups[key] if kind in (ALL, row["fact_kind"])]
            if group:
                lines.append(dict(zip(CELL, key, strict=True)) | {"kind": kind} | line_of(group, full))
    return lines


def line_of(group: Sequence[Row], full: dict[tuple[int, str], Row]) -> Line:
    """What rows of one way, options and kind come to."""
    ran = [row for row in group if row["status"] == "ok"]
    line: Line = {
        "words_match": all(row["words_match"] for row in group),
        "n": len(ran),
        "not_run": len(group) - len(ran),
    }
    if not ran:
        return line
    correct = sum(row["correct"] for row in ran)
    low, high = wilson(correct, len(ran))
    line |= {"correct": correct, "accuracy": correct / len(ran), "low": low, "high": high}
    line |= {"given_kept": mean(ran, "given_kept"), "outdated": mean(ran, "outdated")}
    line |= {name: middle(ran, name) for name in COUNTS} | {"ttft_s": middle(ran, "ttft_s")}
    line["ttft_p95_s"] = float(np.percentile([row["ttft_s"] for row in ran], 95))
    pairs = [(row, full[key]) for row in ran if (key := (row["tokens_asked"], row["example"])) in full]
    pairs = [(row, whole) for row, whole in pairs if whole["status"] == "ok"]
    names = ("against_full", "against_full_low", "against_full_high")
    if pairs:
        found = paired_difference([row["correct"] for row, _ in pairs], [whole["correct"] for _, whole in pairs])
        line |= dict(zip(names, found, strict=True))
        line["speedup"] = median(whole["ttft_s"] / row["ttft_s"] for row, whole in pairs)
    return line
