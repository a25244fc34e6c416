"""The tables of docs/predicted-times.md, made from cards, shapes and records; run it to print them anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from models_page import table, write

from sp.bench.predicted.links import PAIRED, marked
from sp.bench.predicted.rows import Row, rows
from sp.commands.plan import expected
from sp.models.arithmetic import AUTO, AskedMath
from sp.models.inspect.known_cards import KNOWN, Card
from sp.models.inspect.plan import make_plan
from sp.models.inspect.subject import shape_subject
from sp.models.timing.fitted import fitted
from sp.models.timing.predict import Predictor
from sp.models.timing.rounded import Rounded
from sp.models.timing.several import share_of
from sp.models.timing.times import predicted_times
from sp.models.timing.times_table import shown
from sp.models.timing.work import Weights
from sp.ops.sparse.block_budget import read_rule
from sp.ops.sparse.expected_density import expected_density
from sp.quant import Math

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "predicted-times.md"
RECORDS, PAIRS = ROOT / "results" / "nvidia-h200", ROOT / "results" / "nvidia-h100-80gb-hbm3"
PAIR = ("qwen3.6-27b", "q4_k_m"), ("qwen3-0.6b", "bf16")
SHORT, LONG, MILLION = 8192, 131072, 960 << 10
DENSITIES, RULE = (0.05, 0.24), "constant:64"
"""Shares of blocks that a drafter reads, and the rule for the longest prompts, as records have them."""


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


def several() -> list[str]:
    """Cards that are linked, by how many of them: scoring, first tokens and a full prefill of 128K and 1M tokens."""
    lines, of_rule = [], expected_density(read_rule(RULE, "blocks"), MILLION)
    for card in (one for one in KNOWN if one.link and one.path == "sm_90a"):
        for count in (1, 2, 4):
            found = Predictor.of(card, fitted(), count, count)
            target = share_of(weights(card, Math.INT8, *PAIR[0]), count)
            drafter = weights(card, AUTO, *PAIR[1])
            dense = [found.compressed(target, drafter, LONG, 0.05, density) for density in DENSITIES]
            longer = [found.score_s(drafter, 2 * LONG, density) for density in DENSITIES]
            million = found.compressed(target, drafter, MILLION, 0.02, of_rule)
            cells = [*(one.ttft_s for one in dense), *longer, million.score_s, million.ttft_s]
            lines.append([card.name, str(count), *map(shown, cells)])
    heads = [f"128K, first token, {share:.0%}" for share in DENSITIES]
    heads += [f"256K, scoring, {share:.0%}" for share in DENSITIES] + ["960K, scoring", "960K, keep 0.02"]
    return table(["card", "cards", *(f"*predicted* {head} (s)" for head in heads)], lines)


def weights(card: Card, math: AskedMath, shape: str, file_type: str) -> Weights:
    """A named shape in an arithmetic."""
    found = Weights.of_shape(shape, file_type)
    return replace(found, rounded=Rounded.of(math, found.config, card, card.path))


def held() -> list[Row]:
    """Rows that nothing was fitted to, of the card that rates are fitted to."""
    return [row for row in marked(RECORDS) if not row.fit]


def others() -> list[Row]:
    """The same of the other card, which was run alone and as a pair."""
    return [row for row in marked(PAIRS, PAIRED) if not row.fit]


def before() -> list[Row]:
    """What several cards took by code of before their processor was chosen, where it was not measured again."""
    return [row for row in rows(RECORDS, before=True) if "int8" in row.name]


def errors(found: list[Row]) -> list[str]:
    """Held-out rows: measured, predicted and how far apart; those beyond 10 % stand out."""
    lines = []
    for row in found:
        error = row.error(fitted())
        told = f"{error:+.1%}" if abs(error) <= 0.1 else f"**{error:+.1%}**"
        measured, said = (f"{1e3 * one:,.1f}" for one in (row.seconds, row.predict(fitted())))
        lines.append([row.bench, row.name, measured, said, told])
    return table(["record", "of", "measured (ms)", "*predicted* (ms)", "error"], lines)


def summary() -> list[str]:
    """Held-out errors by kind of record, and of the other card."""
    found: dict[str, list[float]] = {}
    for row in held():
        for name in (row.bench, "all"):
            found.setdefault(name, []).append(abs(row.error(fitted())))
    for row in others():
        name = f"{PAIRED}, {'several cards' if row.cards > 1 else 'one card'}"
        found.setdefault(name, []).append(abs(row.error(fitted())))
    order = sorted(found, key=lambda name: (name.startswith(PAIRED), name == "all"))
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
    return {
        "cards": cards(), "eight": eight(), "several": several(),
        "summary": summary(), "errors": errors(held()), "before": errors(before()), "others": errors(others()),
    }  # fmt: skip


if __name__ == "__main__":
    write(PAGE, "times_page.py", tables())
