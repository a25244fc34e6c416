"""render_times: predicted times as a table for people, 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sp.models.arithmetic import AskedMath
from sp.models.inspect.known_cards import Card
from sp.models.inspect.verdict import spoken
from sp.quant import Math

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = {
    "score_s": "score (s)",
    "prefill_s": "kept (s)",
    "ttft_s": "first token (s)",
    "full_s": "in full (s)",
    "decode_tok_s": "decode (tok/s)",
}


def render_times(rows: list[dict[str, Any]], card: Card) -> Table:
    """What `predicted_times` tells, for a `rich` console: every column says that it is predicted."""
    from rich.table import Table

    names = {name: title for name, title in COLUMNS.items() if any(name in row for row in rows)}
    table = Table(card.name, box=None, pad_edge=False, header_style="bold")
    for title in names.values():
        table.add_column(f"predicted\n{title}", justify="right")
    for row in rows:
        table.add_row(spoken(row["tokens"]), *(shown(row[name]) for name in names))
    return table


def shown(value: float | None) -> str:
    """Three digits; a dash for what the card has no room for.

    >>> shown(0.1234), shown(71.26), shown(None)
    ('0.123', '71.3', '-')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.{2 if value >= 1 else 3}f}"


def legend(
    card: Card,
    keep: float,
    math: AskedMath = Math.BF16,
    drafter_math: AskedMath = Math.BF16,
    cards: int = 1,
    target_cards: int = 1,
) -> tuple[str, ...]:
    """What the times rest on.

    >>> from sp.models.inspect.known_cards import find_card
    >>> legend(find_card("rtx3090"), 0.05, Math.INT8)[-1]
    'predicted with --math int8 and --drafter-math bf16'
    """
    kernels = "kernels of Hopper" if card.path == "sm_90a" else "portable kernels"
    read = f"predicted for a drafter read by {cards} and a target shared by {target_cards} of these cards,"
    together = read, "by what two H100 wait for"
    plain = math == drafter_math == Math.BF16
    return (
        f"predicted from {card.name}'s data sheet, for {kernels}, by rates of an H200",
        "and its host: a slower one takes longer for short prompts and several cards;",
        f"kept: the target reads {keep:.0%} of the prompt; in full: first token without a drafter",
        *(() if plain else (f"predicted with --math {math} and --drafter-math {drafter_math}",)),
        *(together if max(cards, target_cards) > 1 else ()),
    )
