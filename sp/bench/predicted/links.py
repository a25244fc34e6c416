"""links: what two cards wait for besides their own work, from rows that were measured on one card and on two.

Of a row on two cards the prediction without any waiting is scaled by how far off it is for one card; what is left over
is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from sp.bench.predicted.rows import CARD, Row, rows
from sp.errors import ConfigError
from sp.models.inspect.known_cards import find_card
from sp.models.synthetic.shapes import find_shape
from sp.models.timing.fitted import Fitted, Links
from sp.models.timing.rounded import Rounded
from sp.models.timing.several import longer, summed, sums
from sp.models.timing.work import Weights

PAIRED = "h100"
"""The cards, two of one machine, that sums of a target are fitted to; scorings are fitted to two of `CARD`."""
DRAFTER, TARGET, IN_INT8 = "qwen3-0.6b", ("qwen3.6-27b", "q4_k_m"), Rounded(products=True)
LONG, LONGER = 1 << 17, 1 << 18
SCORED: tuple[tuple[Any, ...], ...] = tuple(("drafter", n, density) for n in (LONG, LONGER) for density in (0.05, 0.24))
STEP, FULL = ("decode", 0), ("full", LONG)
"""What is fitted to: of the pairs of rows these two, of a decoded token two cards alone. Others are held out."""
ALONE = Links(inf, 0.0, 0.0, 0.0)
"""Nothing is waited for."""


def fit_links(found: Sequence[Row], pairs: Sequence[Row], known: Fitted) -> Links:
    """What is waited for, from four scorings, one decoded token and one full prefill of two cards.

    Parameters
    ----------
    found : sequence of Row
        Of `CARD`, the scorings among them.
    pairs : sequence of Row
        Of `PAIRED`, the others among them.
    known : Fitted
        All else, with links that wait for nothing.

    Raises
    ------
    ConfigError
        A row is missing.
    """
    drafter, target = find_shape(DRAFTER).config, replace(Weights.of_shape(*TARGET), rounded=IN_INT8)
    waited = np.array([_waited(found, known, key) for key in SCORED])
    columns = np.array([[drafter.layers, _uneven(found, known, key)] for key in SCORED])
    (meeting, uneven), *_ = np.linalg.lstsq(columns / waited[:, None], np.ones(len(SCORED)), rcond=None)
    step, speed = _one(pairs, STEP, 2), find_card(PAIRED).link
    sent = [summed(target.config, tokens, 2) / speed for tokens in (1, LONG)]
    left = [step.seconds - step.predict(known), _waited(pairs, known, FULL) - sums(target, LONG) * longer(2, inf)]
    # Of a short sum the bytes go twice.
    each, inverse = np.linalg.solve([[sums(target, 1), 2 * sent[0]], [sums(target, LONG), sent[1]]], left)
    return Links(float(1 / inverse), float(meeting), float(uneven), float(each))


def marked(folder: Path, card: str = CARD) -> list[Row]:
    """Rows of a machine of `CARD` or `PAIRED`, those marked as well that `fit_links` looks at."""
    found = list(rows(folder, card))
    looked_at = {id(row) for row in _looked_at(found, card)}
    return [replace(row, fit=row.fit or id(row) in looked_at) for row in found]


def _looked_at(found: Sequence[Row], card: str) -> Iterator[Row]:
    if card == PAIRED:
        yield _one(found, STEP, 2)
    for key in SCORED if card == CARD else (FULL,):
        yield from (_one(found, key, cards) for cards in (1, 2))


def _waited(found: Sequence[Row], known: Fitted, key: tuple[Any, ...]) -> float:
    alone, both = _one(found, key, 1), _one(found, key, 2)
    return both.seconds - both.predict(known) * alone.seconds / alone.predict(known)


def _uneven(found: Sequence[Row], known: Fitted, key: tuple[Any, ...]) -> float:
    """What two cards would wait for by stripes of unequal length, as slow as one card was."""
    alone, both = _one(found, key, 1), _one(found, key, 2)
    more = both.predict(replace(known, links=replace(ALONE, uneven=1.0))) - both.predict(known)
    return more * alone.seconds / alone.predict(known)


def _one(found: Sequence[Row], key: tuple[Any, ...], cards: int) -> Row:
    """The last of the rows, which is the newest."""
    mine = [row for row in found if (row.key, row.cards) == (key, cards)]
    if not mine:
        raise ConfigError(f"no record to fit to: {' '.join(map(str, key))} on {cards} cards")
    return mine[-1]
