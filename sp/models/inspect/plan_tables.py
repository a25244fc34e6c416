"""render_plan: a `Plan` as tables for people, 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sp.models.inspect.cards import SYSTEM
from sp.models.inspect.tables import size_of, style_of
from sp.models.inspect.verdict import spoken

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WORDS = {
    "full": "in full",
    "full_cold": "in full, experts on the host",
    "together": "with the drafter",
    "by_turns": "by turns",
    "cold": "by turns, experts on the host",
}
CROSSED = {
    "same": "same vocabulary",
    "as large": "vocabulary as large",
    "other": "other vocabulary, matched by bytes",
}

SHORT = 256
"""Tokens: shorter prompts are no question of time."""


def render_plan(plan: dict[str, Any]) -> RenderableType:
    """Tables of what `Plan.as_dict` tells, for a `rich` console."""
    from rich.console import Group
    from rich.text import Text

    verdict = plan["verdict"]
    parts: list[RenderableType] = [Text(f"runs: {verdict['line']}", style=style_of(verdict))]
    if verdict["instead"]:
        parts.append(Text(f"take instead: {verdict['instead']}", style="bold"))
    parts += [Text(f"note: {note}", style="yellow") for note in plan["notes"]]
    parts += [Text(f"{name:<9}{value}") for name, value in _models(plan)]
    if plan["memory"]:
        parts += ["", _memory(plan["memory"], _where(plan))]
    if plan["cards"]:
        asked = [row for row in plan["cards"] if row["card"] == verdict["card"]]
        parts += ["", _cards(plan), *(Text(line, style="dim") for line in _legend(plan, asked))]
    return Group(*parts)


def _models(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is reckoned with."""
    if plan["weights_bytes"] is None:
        return
    yield "file", plan["path"]
    yield "weights", f"{size_of(plan['weights_bytes'])} on {_where(plan)}; a window of {plan['window']:,} tokens"
    if experts := plan["experts"]:
        yield "experts", experts["line"]
        each, over = experts["tokens_a_turn"], experts["host_bytes"] / 1e9
        yield "", f"each {each:,} tokens the target reads bring {over:.1f} GB over the bus"
    if plan["as_drafter"]:
        yield "drafter", plan["as_drafter"]
    drafter = plan["drafter"]
    if drafter is None:
        return
    named = drafter["name"] if drafter["file"] else f"e.g. {drafter['name']} in BF16"
    crossed = CROSSED.get(drafter["vocabulary"], "no vocabulary")
    read, of = drafter["layers_read"], drafter["layers"]
    loaded = size_of(drafter["bytes"]) + (f", {read} of {of} layers" if read < of else "")
    yield "drafter", f"{named}, {loaded}; {crossed}"
    yield "", drafter["window"]
    if "pays_from_tokens" in drafter:
        begins = drafter["pays_from_tokens"]
        pays = "at no length" if begins is None else f"from {begins:,} tokens on" if begins > SHORT else "at any length"
        yield "pays", f"{pays}, with {plan['keep_ratio']:.0%} kept (predicted)"


def _where(plan: dict[str, Any]) -> str:
    """What memory is told of."""
    return "the card" if plan["shared_by"] == 1 else f"each of {plan['shared_by']} cards"


def _memory(rows: list[dict[str, Any]], where: str) -> Table:
    """GiB by cache, way and length."""
    from rich.table import Table

    lengths = sorted({row["tokens"] for row in rows})
    table = Table(f"GiB on {where}", "KV", box=None, pad_edge=False, header_style="bold")
    for length in lengths:
        table.add_column(spoken(length), justify="right")
    found = {(row["kv"], name, row["tokens"]): row.get(name) for row in rows for name in (*WORDS, "scoring")}
    for kv in dict.fromkeys(row["kv"] for row in rows):
        for name, words in {**WORDS, "scoring": "as a drafter"}.items():
            cells = [found[kv, name, length] for length in lengths]
            if any(cell is not None for cell in cells):
                shown = ["-" if cell is None else f"{cell / 2**30:.1f}" for cell in cells]
                table.add_row(words, kv or "", *shown)
    return table


def _cards(plan: dict[str, Any]) -> Table:
    """For every card whether and how, and the longest prompt."""
    from rich.table import Table

    table = Table("card", spoken(plan["tokens"]), "longest", box=None, pad_edge=False, header_style="bold")
    for row in plan["cards"]:
        most = row["longest"]
        longest = "no" if most is None else f"{spoken(most['tokens'])} {_how(most, '')}".rstrip()
        table.add_row(f"{row['card']} GB", "no" if row["way"] is None else _how(row["way"], "yes"), longest)
    return table


def _how(way: dict[str, Any], usual: str) -> str:
    return " ".join(way["options"]) or usual


def _legend(plan: dict[str, Any], asked: list[dict[str, Any]]) -> Iterator[str]:
    kept = f"{plan['keep_ratio']:.0%} of the prompt is kept" if plan["drafter"] else "read in full"
    yield f"lengths are with an answer of {plan['answer_tokens']} tokens; {kept};"
    yield f"{SYSTEM >> 30} GiB of {_where(plan)} is left to its driver"
    if asked and any("--vram" in option for option in (asked[0]["way"] or {"options": ()})["options"]):
        yield "--vram: idle weights wait in host memory"
