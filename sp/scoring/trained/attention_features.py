"""Features of trained scorers from a drafter's attention, and pooling of values of tokens over units."""

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
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, TailScorer, unrotated_keys, unrotated_queries
from sp.scoring.base import ScoreRequest

NEWLINE = 10


def line_units(request: ScoreRequest, longest: int) -> Ints:
    """Return the bounds (units + 1,), in tokens, of the lines of a prompt; blank lines belong to the line before.

    A token that extends over the end of a line belongs to the line it begins in. Lines of more than `longest` tokens
    are cut into parts that differ by one token at most. A prompt whose text is not known is one line.
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
    """Return the unit of each token, (tokens,)."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


class UnitPool(NamedTuple):
    """Indices of the tokens of each unit, on the device of the values, so that one gather pools any number of rows.

    Attributes
    ----------
    index : int (units, longest unit)
        Tokens of a unit; the last one is repeated in shorter units.
    inside : float32 (units, longest unit)
        1 for the unit's own tokens, 0 for repeated ones.
    lengths : float32 (units,)
        Number of tokens.
    """

    index: Any
    inside: Any
    lengths: Any

    @classmethod
    def of(cls, bounds: Ints, array: Any) -> UnitPool:
        """Make the pool of units with these bounds on the device of `array`.

        It is computed there, because a copy of so many indices from the host would wait until the device is idle.
        """
        xp = array_module(array)
        steps, ends = xp.arange(int(np.diff(bounds).max())), xp.asarray(bounds)
        lengths = ends[1:] - ends[:-1]
        index = xp.minimum(ends[:-1, None] + steps, ends[1:, None] - 1)
        return cls(index, (steps < lengths[:, None]).astype(np.float32), lengths.astype(np.float32))

    def sums(self, values: Floats) -> Floats:
        """Return the sums (rows, units) of values (rows, tokens) over each unit."""
        sums: Floats = (values[:, self.index] * self.inside).sum(axis=-1)
        return sums

    def means(self, values: Floats) -> Floats:
        """Return the means (rows, units) of values (rows, tokens) over each unit."""
        means: Floats = self.sums(values) / self.lengths
        return means

    def largest(self, values: Floats) -> Floats:
        """Return the largest values (rows, units) of values (rows, tokens) in each unit."""
        largest: Floats = values[:, self.index].max(axis=-1)
        return largest


FLOOR = (
    1e-2  # ratio to the mean that is added before the logarithm, whose value would be noise for units without weight
)
LEAST = 1e-4
"""Share of a head's attention on the document below which ratios of its weights would be rounding errors."""
NUMBERS = 4  # features of a unit for each head, with or without rotary embedding
OVER_HEADS = 2  # features of a unit over all heads, with or without rotary embedding

Rotations = Literal["post", "none", "both"]


@dataclass(frozen=True)
class Asking:
    """The tokens of a prompt that are queries."""

    start: int  # index of the first of them; all tokens before are the document
    rows: int  # number of last tokens whose queries are computed
    question: slice  # rows of the question
    tail: slice  # rows of the last tokens

    @classmethod
    def of(cls, request: ScoreRequest, queries: int) -> Asking:
        """Return the query tokens of a prompt; where no question is known, the last `queries` alone."""
        n = len(request.ids)
        queries = min(queries, n)
        question_tokens = request.question.nonzero()[0]
        if not len(question_tokens):
            return cls(n - queries, queries, slice(0, queries), slice(0, queries))
        start = int(question_tokens[0])
        rows = min(max(n - start, queries), max(MOST_QUESTION_TOKENS, queries))
        first = n - rows
        low, high = max(start - first, 0), int(question_tokens[-1]) + 1 - first
        question = slice(low, high) if low < high else slice(rows - queries, rows)
        return cls(min(start, n - queries), rows, question, slice(rows - queries, rows))


def document_units(bounds: Ints, asking: Asking) -> slice:
    """Return the units of the document, over which means are taken: those before the queries, without the first.

    The first unit has the attention sinks.

    >>> document_units(np.array([0, 4, 8, 12]), Asking(9, 3, slice(0, 3), slice(0, 3)))
    slice(1, 2, None)
    """
    whole = int(np.searchsorted(bounds[1:], asking.start, side="right"))
    return slice(1, whole) if whole > 1 else slice(0, max(whole, 1))


def feature_count(config: ModelConfig, rotary: Rotations, neighbours: int) -> int:
    """Return the number of features of a unit, those of its neighbours included."""
    rotations = 2 if rotary == "both" else 1
    return rotations * (NUMBERS * len(config.attention_layers) * config.heads + OVER_HEADS) * (2 * neighbours + 1)


def attention_features(
    request: ScoreRequest, scorer: TailScorer, asking: Asking, bounds: Ints, rotary: Rotations
) -> tuple[Floats, LayerAttention]:
    """Run the drafter over a prompt and return the attention of its heads on each unit, as features.

    A unit has four features for each head: the mean and the largest weight on its tokens, from the last tokens and from
    the question's, each as the logarithm of its ratio to the mean over the document's units. So a unit without
    attention is near ``log FLOOR`` and one with average attention near zero at any length, and sinks, which are in the
    first unit, shift nothing. Two more features are the largest of the means over all heads, from the question and from
    the last tokens: no sum over heads can express that any one of them attends here. Sentinel (arXiv 2505.23277) probes
    such features of the last token alone.

    Parameters
    ----------
    request : ScoreRequest
        A request without marks of thinking after the question.
    scorer : TailScorer
        The scorer whose pass is used, with rotary embedding; its queries are the rows of `asking`.
    bounds : int (units + 1,)
        Bounds of the units in tokens.
    rotary : {"post", "none", "both"}
        Attention as the drafter computes it, without rotary embedding, or both.

    Returns
    -------
    float32 (units, features), on the model's device, and the attention of the pass. The order of features is: layer,
    rotation, question or tail, mean or largest, head; then rotation, question or tail over all heads
    """
    document, model, positions = document_units(bounds, asking), request.model, request.positions
    columns: list[Any] = []
    over_heads: dict[tuple[bool, int], Any] = {}
    pools: list[UnitPool] = []

    def on_layer(layer: int, q: Floats, keys: PagedKV) -> None:
        if rotary != "none":
            add_features(q, keys, False)
        if rotary != "post":
            bare = unrotated_queries(q, positions[-len(q) :], model, layer)
            add_features(bare, unrotated_keys(keys, positions, model, layer), True)

    def add_features(q: Floats, keys: PagedKV, bare: bool) -> None:
        weights = attention_rows(q, keys)
        if not pools:
            pools.append(UnitPool.of(bounds, weights))
        for place, rows in enumerate((asking.question, asking.tail)):
            selected = weights[:, rows]
            means = relative(pools[0].means(selected.mean(axis=1)), document, len(request.ids))
            columns.append(means)
            columns.append(relative(pools[0].largest(selected.max(axis=1)), document, len(request.ids)))
            most = means.max(axis=0, keepdims=True)
            so_far = over_heads.get((bare, place), most)
            over_heads[bare, place] = array_module(most).maximum(so_far, most)

    attend = scorer.visit_layers(request, on_layer)
    columns += [over_heads[key] for key in sorted(over_heads)]
    return array_module(columns[0]).concatenate(columns).T, attend


def relative(pooled: Floats, document: slice, tokens: int) -> Floats:
    """Return the logarithm of weights (heads, units) over their mean in the document, at least `LEAST` of all."""
    xp = array_module(pooled)
    mean = xp.maximum(pooled[:, document].mean(axis=1, keepdims=True), np.float32(LEAST / tokens))
    logarithms: Floats = xp.log(pooled / mean + np.float32(FLOOR))
    return logarithms


def with_neighbours(features: Floats, count: int) -> Floats:
    """Return features (units, f) with those of `count` units before and after: (units, (2 count + 1) f).

    At the ends the first or last unit is repeated.
    """
    xp, units = array_module(features), len(features)
    places = xp.arange(units)
    sides = [features[xp.clip(places + away, 0, units - 1)] for away in range(-count, count + 1)]
    joined: Floats = xp.concatenate(sides, axis=1)
    return joined


def weigh_neighbours(features: Floats, weights: Floats, count: int) -> Floats:
    """Return ``with_neighbours(features, count) @ weights``, (units,), without the copies.

    >>> features, weights = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 10.0, 100.0])
    >>> weigh_neighbours(features, weights, 1).tolist()
    [211.0, 321.0, 332.0]
    """
    xp, units = array_module(features), len(features)
    sides = features @ weights.reshape(2 * count + 1, -1).T
    places = xp.arange(units)
    logits: Floats = sum(sides[xp.clip(places + away, 0, units - 1), count + away] for away in range(-count, count + 1))
    return logits
