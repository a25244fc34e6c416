"""What trained scorers see of a drafter's attention, and how values of tokens are pooled over units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.models import LayerAttention, ModelConfig
from sp.ops.array_module import array_module
from sp.ops.attention.importance import attention_rows
from sp.ops.attention.kv_pages import PagedKV
from sp.prompt.spans import cut_long
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, TailScorer, unrotated_keys, unrotated_rows
from sp.scoring.base import ScoreRequest

NEWLINE = 10


def line_units(request: ScoreRequest, longest: int) -> Ints:
    """Bounds (units + 1,) in tokens of the lines of a prompt, its blank lines joined to those before them. A token that
    reaches over the end of a line belongs to the line it begins in. Lines of more than `longest` tokens are cut into
    parts that differ by one token at most; of a prompt whose text is not known all is one line.
    """
    n = len(request.ids)
    bounds = np.array([0, n])
    if request.spans is not None:
        text = np.frombuffer(request.text, np.uint8)
        ends = np.flatnonzero(text == NEWLINE) + 1
        cuts = np.searchsorted(request.spans[:, 0], ends, side="left")
        after = ends[ends < len(text)]
        blank = np.zeros(len(ends), bool)
        blank[: len(after)] = text[after] == NEWLINE
        bounds = np.unique(np.concatenate([[0], np.minimum(cuts[~blank], n), [n]]))
    return cut_long(bounds, longest)


def unit_of_token(bounds: Ints) -> Ints:
    """The unit of each token, (tokens,)."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


class Pool(NamedTuple):
    """Places of the tokens of each unit, where the values lie: one gather pools any number of rows. `index` int (units,
    longest unit): tokens of a unit; its last one again where it is shorter; `inside` float32 (units, longest unit): 1
    for the unit's own tokens, 0 for repeated ones; `lengths` float32 (units,).
    """

    index: Any
    inside: Any
    lengths: Any

    @classmethod
    def of(cls, bounds: Ints, like: Any) -> Pool:
        """For units with these bounds, as arrays of the kind of `like`: made where it is, since the host waits until a
        device is idle to copy so many places to it."""
        xp = array_module(like)
        steps, ends = xp.arange(int(np.diff(bounds).max())), xp.asarray(bounds)
        lengths = ends[1:] - ends[:-1]
        index = xp.minimum(ends[:-1, None] + steps, ends[1:, None] - 1)
        return cls(index, (steps < lengths[:, None]).astype(np.float32), lengths.astype(np.float32))

    def sums(self, values: Floats) -> Floats:
        """Sum over each unit of (rows, tokens): (rows, units)."""
        found: Floats = (values[:, self.index] * self.inside).sum(axis=-1)
        return found

    def means(self, values: Floats) -> Floats:
        """Mean over each unit of (rows, tokens): (rows, units)."""
        found: Floats = self.sums(values) / self.lengths
        return found

    def largest(self, values: Floats) -> Floats:
        """Largest value of each unit of (rows, tokens): (rows, units)."""
        found: Floats = values[:, self.index].max(axis=-1)
        return found


FLOOR = 1e-2  # share of the mean below which units count alike: what a head does not look at is noise in its logarithm
LEAST = 1e-4
"""Share of its attention below which a head looks at nothing in the document, whose ratios would be rounding."""
NUMBERS = 4  # features a head has of a unit, with or without rotary embedding
OVER_HEADS = 2  # features of a unit over all heads, likewise

Rotations = Literal["post", "none", "both"]


@dataclass(frozen=True)
class Asking:
    """Which tokens ask."""

    start: int  # the first of them: what stands before is the document
    rows: int  # last tokens whose queries are wanted
    question: slice  # the question's among those rows
    tail: slice  # the last ones

    @classmethod
    def of(cls, request: ScoreRequest, queries: int) -> Asking:
        """The tokens that ask of a prompt; where no question is known, the last `queries` alone."""
        n = len(request.ids)
        queries = min(queries, n)
        asked = request.question.nonzero()[0]
        if not len(asked):
            return cls(n - queries, queries, slice(0, queries), slice(0, queries))
        start = int(asked[0])
        rows = min(max(n - start, queries), max(MOST_QUESTION_TOKENS, queries))
        first = n - rows
        low, high = max(start - first, 0), int(asked[-1]) + 1 - first
        question = slice(low, high) if low < high else slice(rows - queries, rows)
        return cls(min(start, n - queries), rows, question, slice(rows - queries, rows))


def document_units(bounds: Ints, asking: Asking) -> slice:
    """Units that a mean is taken over: those before the first token that asks, without the one of the sinks.

    >>> document_units(np.array([0, 4, 8, 12]), Asking(9, 3, slice(0, 3), slice(0, 3)))
    slice(1, 2, None)
    """
    whole = int(np.searchsorted(bounds[1:], asking.start, side="right"))
    return slice(1, whole) if whole > 1 else slice(0, max(whole, 1))


def feature_count(config: ModelConfig, rotary: Rotations, neighbours: int) -> int:
    """Numbers a unit has, those of its neighbours with them."""
    ways = 2 if rotary == "both" else 1
    return ways * (NUMBERS * len(config.attention_layers) * config.heads + OVER_HEADS) * (2 * neighbours + 1)


def attention_features(
    request: ScoreRequest, reader: TailScorer, asking: Asking, bounds: Ints, rotary: Rotations
) -> tuple[Floats, LayerAttention]:
    """Let the drafter read a prompt once, and keep what its heads say of each unit: how hard they look at it.

    A unit has four numbers a head: the mean and the largest weight that the last tokens, and the question's, give its
    tokens, each as the logarithm of its ratio to the mean over the document's units. So an unread unit is near
    ``log FLOOR`` and an evenly read one near zero at any length, and sinks, which the first unit holds, shift nothing.
    Two more are the largest of the means over all heads, of the question and of the last tokens: no sum of heads says
    that one of them, whichever, looks here. Sentinel (arXiv 2505.23277) probes such features of the last token alone.

    `request`: without marks of thinking behind the question; `reader`: how it reads, with rotary embedding; its queries
    are the rows of `asking`; `bounds` int (units + 1,); `rotary`: attention as the drafter has it, without rotary
    embedding, or one after the other; Returns float32 (units, features), and what attended: where the model is. By
    feature: layer, rotation, question or tail, mean or largest, head; then rotation, question or tail over all heads.
    """
    document, model, positions = document_units(bounds, asking), request.model, request.positions
    columns: list[Any] = []
    over_heads: dict[tuple[bool, int], Any] = {}
    pools: list[Pool] = []

    def take(layer: int, q: Floats, keys: PagedKV) -> None:
        if rotary != "none":
            look(q, keys, False)
        if rotary != "post":
            bare = unrotated_rows(q, positions[-len(q) :], model, layer)
            look(bare, unrotated_keys(keys, positions, model, layer), True)

    def look(q: Floats, keys: PagedKV, bare: bool) -> None:
        weights = attention_rows(q, keys)
        if not pools:
            pools.append(Pool.of(bounds, weights))
        for place, rows in enumerate((asking.question, asking.tail)):
            mine = weights[:, rows]
            means = relative(pools[0].means(mine.mean(axis=1)), document, len(request.ids))
            columns.append(means)
            columns.append(relative(pools[0].largest(mine.max(axis=1)), document, len(request.ids)))
            most = means.max(axis=0, keepdims=True)
            so_far = over_heads.get((bare, place), most)
            over_heads[bare, place] = array_module(most).maximum(so_far, most)

    attend = reader.read(request, take)
    columns += [over_heads[key] for key in sorted(over_heads)]
    return array_module(columns[0]).concatenate(columns).T, attend


def relative(pooled: Floats, document: slice, tokens: int) -> Floats:
    """Logarithm of weights (heads, units) over their mean in the document, which is no less than `LEAST` of it all."""
    xp = array_module(pooled)
    mean = xp.maximum(pooled[:, document].mean(axis=1, keepdims=True), np.float32(LEAST / tokens))
    found: Floats = xp.log(pooled / mean + np.float32(FLOOR))
    return found


def with_neighbours(features: Floats, count: int) -> Floats:
    """Features (units, f) beside those of `count` units before and behind: (units, (2 count + 1) f). At the ends the
    last unit stands in for those that are not there.
    """
    xp, units = array_module(features), len(features)
    places = xp.arange(units)
    sides = [features[xp.clip(places + away, 0, units - 1)] for away in range(-count, count + 1)]
    joined: Floats = xp.concatenate(sides, axis=1)
    return joined


def weigh_neighbours(features: Floats, weights: Floats, count: int) -> Floats:
    """``with_neighbours(features, count) @ weights`` without the copies: (units,).

    >>> features, weights = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 10.0, 100.0])
    >>> weigh_neighbours(features, weights, 1).tolist()
    [211.0, 321.0, 332.0]
    """
    xp, units = array_module(features), len(features)
    sides = features @ weights.reshape(2 * count + 1, -1).T
    places = xp.arange(units)
    logits: Floats = sum(sides[xp.clip(places + away, 0, units - 1), count + away] for away in range(-count, count + 1))
    return logits
