"""The tables of docs/predicted-times.md, made from cards, shapes and records; run it to print them anew."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from models_page import table, write

from sp.bench.predicted.rows import Row, rows
from sp.commands.plan import expected
from sp.models.arithmetic import AUTO, AskedMath
from sp.models.inspect.known_cards import KNOWN, Card
from sp.models.inspect.plan import make_plan
from sp.models.inspect.subject import shape_subject
from sp.models.timing.fitted import fitted
from sp.models.timing.times import predicted_times
from sp.models.timing.times_table import shown
from sp.quant import Math

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "predicted-times.md"
RECORDS = ROOT / "results" / "nvidia-h200"
PAIR = ("qwen3.6-27b", "q4_k_m"), ("qwen3-0.6b", "bf16")
SHORT, LONG = 8192, 131072


def times(card: Card, math: AskedMath = Math.BF16, drafter_math: AskedMath = Math.BF16) -> list[str]:
    """A card's cells: a full prefill of 8K tokens, the first token of 128K in full and at keep 0.05, decoding."""
    target, drafter = (shape_subject(*one) for one in PAIR)
    plan = make_plan(target, drafter, card.gib, LONG, lengths=(SHORT, LONG))
    short, long = predicted_times(plan, card, fitted(), expected, math, drafter_math)
    return [shown(one) for one in (short["full_s"], long["full_s"], long["ttft_s"], long["decode_tok_s"])]


def cards() -> list[str]:
    """Cards by times, all of them predicted."""
    heads = ["8K in full (s)", "128K in full (s)", "128K, keep 0.05 (s)", "decode (tok/s)"]
    heads = [f"*predicted* {head}" for head in heads]
    return table(
        ["card", "TFLOP/s", "GB/s", "GiB", "kernels", *heads],
        [
            [one.name, f"{one.flops / 1e12:g}", f"{one.bandwidth / 1e9:g}", str(one.gib), one.path, *times(one)]
            for one in KNOWN
        ],
    )


def eight() -> list[str]:
    """The same in int8, cards left out that have no room; what int8 leaves alone, decoding, too."""
    heads = [f"*predicted* {head}" for head in ("8K in full (s)", "128K in full (s)", "128K, keep 0.05 (s)")]
    return table(
        ["card", "TOP/s, int8", *heads],
        [
            [one.name, f"{one.int8 / 1e12:g}", *times(one, Math.INT8, AUTO)[:3]]
            for one in KNOWN
            if times(one)[0] != shown(None)
        ],
    )


def held() -> list[Row]:
    """Rows that nothing was fitted to."""
    return [row for row in rows(RECORDS) if not row.fit]


def errors() -> list[str]:
    """Held-out rows: measured, predicted and how far apart; those beyond 10 % stand out."""
    lines = []
    for row in held():
        error = row.error(fitted())
        told = f"{error:+.1%}" if abs(error) <= 0.1 else f"**{error:+.1%}**"
        measured, said = (f"{1e3 * one:,.1f}" for one in (row.seconds, row.predict(fitted())))
        lines.append([row.bench, row.name, measured, said, told])
    return table(["record", "of", "measured (ms)", "*predicted* (ms)", "error"], lines)


def summary() -> list[str]:
    """Held-out errors by kind of record."""
    found: dict[str, list[float]] = {}
    for row in held():
        for name in (row.bench, "all"):
            found.setdefault(name, []).append(abs(row.error(fitted())))
    order = sorted(found, key=lambda name: name == "all")
    return table(
        ["record", "rows held out", "median error", "largest", "within 10 %"],
        [
            [name, str(len(found[name])), f"{median(found[name]):.1%}", f"{max(found[name]):.1%}",
             f"{sum(one <= 0.1 for one in found[name])}"]
            for name in order
        ],
    )  # fmt: skip


def tables() -> dict[str, list[str]]:
    """Every table of the page by its name there."""
    return {"cards": cards(), "eight": eight(), "summary": summary(), "errors": errors()}


if __name__ == "__main__":
    write(PAGE, "times_page.py", tables())
