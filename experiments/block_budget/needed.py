"""What a card needs of the others' keys and values: the pages its lists name, of those that an all-gather moves.

    python experiments/block_budget/needed.py --tokens 8192 --tokens 32768      # on the CPU, minutes
    python experiments/block_budget/needed.py --table                           # measures nothing

The embedded drafter reads text of task `needle` by a rule. In every layer the lists of all query blocks are laid over
the stripes of 2, 4 and 8 cards: a page of another card is needed where any query block of the card lists it, for any
head (`pages`), or for a head of keys (`heads`, counted apart for each). `before` is what lies before the end of the
card's last stripe, which is all that a dense reading needs. Means over layers and cards, as shares of what is moved.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measure import scorer_of
from prompts import documents
from report import rows_of

from sp.arrays import Bools, Floats
from sp.bench.record import append, make_record
from sp.kernels.machine import machine_facts, machine_slug
from sp.models import Model, SparseAttention, read_by_layer
from sp.models.cache.striped import Stripes
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.sparse.block_lists import mask_of
from sp.ops.sparse.block_selector import BlockSelector
from sp.session import embedded, load
from sp.studies.tables.report_tables import markdown

BENCH = "needed_pages"
CARDS = (2, 4, 8)
RULES = ("density 0.05", "constant:16", "constant:64", "energy:0.9")
ROWS = 8


@dataclass
class Noting:
    """Lists what another selector lists, and keeps what share of the moved pages each card's lists name."""

    selector: BlockSelector
    found: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """The other selector's lists."""
        lists = self.selector.select(q, at, scale)
        mask, kv_heads = mask_of(lists, -(-at.tokens // BLOCK)), at.k.shape[2]
        grouped = mask.reshape(kv_heads, -1, *mask.shape[1:]).any(axis=1)  # (kv_heads, query_blocks, blocks)
        for cards in CARDS:
            stripes = Stripes(at.tokens, cards, BLOCK)
            self.found.setdefault(cards, []).extend(needed(grouped, stripes, card) for card in range(cards))
        return lists


def needed(listed: Bools, stripes: Stripes, card: int) -> tuple[float, float, float]:
    """Of the pages that others send a card: needed for any head, for a head, and lying before its last query.

    >>> listed = np.zeros((1, 8, 8), bool)
    >>> listed[:, :, 0] = listed[0, range(8), range(8)] = True  # the first block and its own
    >>> needed(listed, Stripes(1024, 2, 8), 0), needed(listed, Stripes(1024, 2, 8), 1)
    ((0.0, 0.0, 1.0), (0.25, 0.25, 0.5))
    """
    mine = np.zeros(listed.shape[2], bool)
    for stripe in stripes.of(card):
        mine[stripe.start // BLOCK : -(-stripe.stop // BLOCK)] = True
    union = listed[:, mine].any(axis=1)[:, ~mine]
    before = np.arange(len(mine)) < -(-stripes.of(card)[1].stop // BLOCK)
    return float(union.any(axis=0).mean()), float(union.mean()), float(before[~mine].mean())


def measured(model: Model, ids: np.ndarray, rule: str) -> dict[str, Any]:
    """One reading by a rule."""
    noting, n = Noting(scorer_of(rule).choice()), len(ids)
    cache = model.new_cache(n, layers=1)
    read_by_layer(
        model, ids, np.arange(n), cache, lambda layer, q, cache: None, attend=SparseAttention(noting), rows=ROWS
    )
    shares = {cards: np.mean(parts, axis=0).tolist() for cards, parts in noting.found.items()}
    return {
        "prompt_tokens": n,
        "needed": {
            str(cards): dict(zip(("pages", "heads", "before"), of, strict=True)) for cards, of in shares.items()
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A row a length and rule."""
    heads = ["tokens", "rule"] + [f"{what}, {cards} cards" for cards in CARDS for what in ("pages", "heads", "before")]
    cells = [
        [f"{row['config']['tokens']:,}", row["config"]["rule"]]
        + [
            f"{100 * row['metrics']['needed'][str(cards)][what]:.0f} %"
            for cards in CARDS
            for what in ("pages", "heads", "before")
        ]
        for row in sorted(rows, key=lambda row: (row["config"]["tokens"], RULES.index(row["config"]["rule"])))
    ]
    return markdown(heads, cells)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the machines' records")
    parser.add_argument("--tokens", type=int, action="append", help="a length; repeatable")
    parser.add_argument("--rule", action="append", choices=RULES, help="repeatable")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    path = given.results / machine_slug(machine_facts("cpu")) / f"{BENCH}.jsonl"
    done = [row["config"] for row in rows_of(path)]
    drafter = load(embedded("drafter"), extrapolate=True, device="cpu")
    for tokens in [] if given.table else given.tokens or [8192, 32768]:
        ids = documents(drafter, tokens, 1, 1)[0].ids
        for rule in given.rule or RULES:
            config = {"drafter": "embedded", "tokens": tokens, "rule": rule}
            if config not in done:
                append(
                    make_record("needed_pages", config, measured(drafter.model, ids, rule), [], device="cpu"),
                    given.results,
                )
    print(table(rows_of(path)))


if __name__ == "__main__":
    main()
