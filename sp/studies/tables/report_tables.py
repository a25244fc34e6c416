"""Markdown tables of a report: accuracy with intervals, differences to the full prefill, kept text, time."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

from sp.studies.figures import tokens_label
from sp.studies.sweep.cells import FULL, Group, Table
from sp.studies.tables.lookup import markdown, number

Key = tuple[Any, ...]

CSV_COLUMNS = (
    "strategy", "task", "tokens_asked", "keep_ratio", "n", "correct", "accuracy", "low", "high", "score",
    "against_oracle", "against_oracle_low", "against_oracle_high",
    "needle_recall", "needle_rank", "needle_margin", "given_kept", "accuracy_given_kept", "realised_keep",
    "kept_tokens", "drafter_density", "acceptance_length", "ttft_s", "full_ttft_s", "speedup", "decode_s",
)  # fmt: skip
TIMES = ("ttft_s", "full_ttft_s", "speedup", "decode_s")


def share(group: Group) -> str:
    """Format an accuracy in per cent with its interval."""
    low, high = group.interval
    return f"{100 * group.accuracy:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def points(group: Group) -> str:
    """Format the difference to the full prefill in percentage points with its interval; empty without a baseline."""
    return _points(group.difference())


def oracle_points(group: Group) -> str:
    """Format the difference to the best oracle in percentage points with its interval; empty without an oracle."""
    return _points(group.distance())


def _points(difference: tuple[float, float, float] | None) -> str:
    if difference is None:
        return ""
    mean, low, high = (100 * value for value in difference)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def grid_table(
    table: Table, by: str, show: Callable[[Group], str], *, keep: float | None = None, name: Callable[[Any], str] = str
) -> str:
    """Return a table with a row per strategy and a column per value of `by`; the full prefill is first.

    If `by` is the keep ratio, the one result of the full prefill is in every column.
    """
    groups = table.groups(by, keep=None if keep is None else [keep])
    values = table.values(by)
    rows = []
    for strategy in table.strategies():
        by_value = {key[1]: group for key, group in groups.items() if key[0] == strategy}
        if not by_value:
            continue
        if by == "keep_ratio" and strategy.startswith(FULL):  # its only group has keep ratio 1, which is no column
            [whole] = by_value.values()
            by_value = dict.fromkeys(values, whole)
        sizes = sorted({group.n for group in by_value.values()})
        n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        rows.append([strategy, *(show(by_value[value]) if value in by_value else "" for value in values), n])
    return markdown(["strategy", *(name(value) for value in values), "n"], rows)


def kept_table(table: Table, keep: Sequence[float]) -> str:
    """Return a table of the shares of prompts and needles that were kept, and of accuracy with and without the answer's
    tokens."""
    head = [
        "strategy", "keep ratio", "realised", "kept tokens", "needle kept", "rank", "margin", "answer kept",
        "right if kept", "right if lost", "n",
    ]  # fmt: skip
    rows = []
    for (strategy, ratio), group in table.groups("keep_ratio", keep=keep).items():
        with_answer, without_answer = group.with_answer_selected(True), group.with_answer_selected(False)
        rows.append(
            [
                strategy,
                f"{ratio:g}",
                number(group.mean("realised_keep"), ".3f"),
                number(group.mean("kept_tokens"), ",.0f"),
                percent(group.mean("needle_recall")),
                number(group.median("needle_rank"), "g"),
                number(group.median("needle_margin"), "+.2f"),
                percent(group.mean("given_kept")),
                f"{share(with_answer)}, n = {with_answer.n:,}" if with_answer.n else "",
                f"{share(without_answer)}, n = {without_answer.n:,}" if without_answer.n else "",
                f"{group.n:,}",
            ]
        )
    return markdown(head, rows)


def time_table(table: Table, keep: float) -> str:
    """Return a table of median seconds to the first token by length, and the median speedup over the full prefill."""

    def show(group: Group) -> str:
        seconds, gain = group.median("ttft_s"), group.speedup()
        return f"{number(seconds, '.3g')}" + (f" ({gain:.1f}x)" if gain is not None else "")

    return grid_table(table, "tokens_asked", show, keep=keep, name=tokens_label)


def decode_table(table: Table, keep: Sequence[float]) -> str:
    """Return a table of tokens per pass in speculative decoding, and of the time of decoding."""
    rows = [
        [
            strategy,
            f"{ratio:g}",
            number(group.mean("acceptance_length"), ".2f"),
            number(group.median("decode_s"), ".3g"),
            f"{group.n:,}",
        ]
        for (strategy, ratio), group in table.groups("keep_ratio", keep=keep).items()
    ]
    return markdown(["strategy", "keep ratio", "tokens per pass", "decoding (s)", "n"], rows)


def cells_csv(table: Table, times: bool = True) -> str:
    """Return CSV with a line per strategy, task, length and keep ratio, with or without times."""
    out = StringIO()
    columns = [name for name in CSV_COLUMNS if times or name not in TIMES]
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for (strategy, task, tokens, ratio), group in table.groups("task", "tokens_asked", "keep_ratio").items():
        with_answer = group.with_answer_selected(True)
        full = Group(group.baseline, [])  # for the median time of the full prefill on the same examples
        low, high = group.interval
        line = {
            "strategy": strategy, "task": task, "tokens_asked": tokens, "keep_ratio": ratio, "n": group.n,
            "correct": sum(row["correct"] for row in group.rows), "accuracy": group.accuracy, "low": low, "high": high,
            "accuracy_given_kept": with_answer.accuracy if with_answer.n else None,
            "full_ttft_s": full.median("ttft_s") if full.n else None, "speedup": group.speedup(),
            "ttft_s": group.median("ttft_s"), "needle_rank": group.median("needle_rank"),
            "needle_margin": group.median("needle_margin"), "decode_s": group.median("decode_s"),
        }  # fmt: skip
        distance = group.distance() or (None,) * 3
        line |= dict(zip(("against_oracle", "against_oracle_low", "against_oracle_high"), distance, strict=True))
        means = (
            "score", "needle_recall", "given_kept", "realised_keep", "kept_tokens", "drafter_density",
            "acceptance_length",
        )  # fmt: skip
        line |= {name: group.mean(name) for name in means}
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in line.items()})
    return out.getvalue()


def percent(value: float | None) -> str:
    """Format a share in per cent; empty for None."""
    return "" if value is None else f"{100 * value:.1f}"
