"""What selectors of whole units have in common: the forest of a prompt, the order of choice, what is kept for it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np

from sp.arrays import Bools, Doubles, Floats, Ints
from sp.chat import Segment
from sp.errors import ConfigError
from sp.selection.base import SELECTORS, Selection, SelectionRequest
from sp.selection.ranking import Constrained, best_first, check_least, end_order, fill, own_steps, unit_steps
from sp.selection.structured.forest import Forest, grow
from sp.selection.structured.outline import MARKUP, Outline
from sp.selection.structured.view import View, views

ROUND = 4
"""A unit may need so many times `longest` tokens in all, with the brackets and keys round it, before it has to wait."""


@dataclass(frozen=True)
class Structured(Constrained):
    """Whole units in order of their mean score; none is ever cut, and each is kept with all that it needs.

    The constraints of `Constrained` hold with these changes. A unit of `sink` and `tail` is one with a token among
    them; these and what the scores chose take turns, so that either has half. `min_run` joins units with those behind
    them. The last token of a unit and the first of the next can be one; such a token is read in part where it must.

    Parameters
    ----------
    longest : int
        A value or paragraph of at most so many tokens is one unit, a longer one is taken apart. A unit of more tokens
        that has no parts, such as a line, waits until as many tokens were chosen, so that it never takes more than
        half of the budget, and is no neighbour, sink or tail.
    """

    whole: ClassVar[bool] = True
    longest: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "longest")

    @abstractmethod
    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        """Put the pieces of a part of the prompt."""

    def select(self, request: SelectionRequest) -> Selection:
        """Units by rank; see the class for what else is kept."""
        if request.spans is None:
            name = SELECTORS.name_of(self)
            raise ConfigError(f"selector {name} needs the text of the prompt and the bytes of its tokens")
        outline = Outline()
        for segment, view in views(request):
            self.put(segment, view, outline)
            outline.put(segment.end, MARKUP)
        forest = grow(outline, request, self.min_run)
        own, total = forest.sizes()
        scores = node_means(request.scores, forest)
        heavy = (own > self.longest) | (total > ROUND * self.longest)
        order = in_turn(best_first(scores[forest.units]), total[forest.units], heavy[forest.units])
        chosen = forest.first(self._steps(order, heavy[forest.units], len(request.scores)))
        ends = self._ends(request, forest, heavy)
        steps, asked = interleaved(chosen, forest, ends, request.protected)
        kept = np.ones(len(steps), bool)
        if request.keep_ratio < 1:
            kept = fill(request.protected, steps, request.budget, request.characters)
        edges = np.flatnonzero(np.diff(forest.owner)) + 1
        bounds = np.concatenate([[0], edges, [len(steps)]]).astype(np.int64)
        told = _passed_over(forest, scores, heavy, kept)
        read = forest.read(kept)
        return Selection(
            kept, request.protected | (kept & asked), scores[forest.owner[bounds[:-1]]], bounds, told, read
        )

    def _steps(self, order: Ints, heavy: Bools, n: int) -> Doubles:
        """Step at which each unit is taken; heavy ones only for their own sake."""
        units = len(heavy)
        if not units:
            return np.zeros(0)
        radius = self.radius(units, n)
        steps = unit_steps(order, units, radius, self.backbone)
        alone = np.full(units, np.inf)
        alone[order] = own_steps(len(order), units, radius, self.backbone)
        return np.where(heavy, alone, steps)

    def _ends(self, request: SelectionRequest, forest: Forest, heavy: Bools) -> list[int]:
        """Nodes of sink and tail from the ends inward, without heavy ones.

        Two at the same distance from their ends come in the order of the text.
        """
        order = end_order(len(request.scores), self.sink, self.tail)
        order[request.protected] = np.inf
        of_nodes = forest.over_nodes(order)
        first = forest.over_nodes(np.arange(len(order), dtype=np.float64))
        found = np.flatnonzero(np.isfinite(of_nodes) & ~heavy)
        return [int(node) for node in found[np.lexsort((first[found], of_nodes[found]))]]


def node_means(scores: Floats, forest: Forest) -> Floats:
    """Mean score of the tokens of each node, shape (nodes,); NaN for what is no choice."""
    tokens, nodes = forest.pairs
    sums = np.bincount(nodes, scores[tokens], len(forest.parents))
    counts = np.bincount(nodes, minlength=len(forest.parents))
    means = np.full(len(sums), np.nan)
    means[forest.units] = sums[forest.units] / counts[forest.units]
    return np.asarray(means, np.float32)


def in_turn(ranked: Ints, sizes: Ints, heavy: Bools) -> Ints:
    """Units by rank, save that a heavy one waits until as many tokens as it has were chosen.

    Where several may come, the best does. All that still wait at the end follow by their size. What comes when does
    not depend on the budget.
    """
    if not heavy.any():
        return ranked
    order: list[int] = []
    waiting: list[tuple[int, int]] = []  # size and rank
    ready: list[int] = []
    taken = 0
    for rank, unit in enumerate(ranked.tolist()):
        if heavy[unit] and sizes[unit] > taken:
            heappush(waiting, (int(sizes[unit]), rank))
            continue
        order.append(unit)
        taken += int(sizes[unit])
        while ready or (waiting and waiting[0][0] <= taken):
            while waiting and waiting[0][0] <= taken:
                heappush(ready, heappop(waiting)[1])
            order.append(int(ranked[heappop(ready)]))
            taken += int(sizes[order[-1]])
    return np.array(order + [int(ranked[rank]) for _, rank in sorted(waiting)], np.int64)


def interleaved(chosen: Doubles, forest: Forest, ends: list[int], protected: Bools) -> tuple[Doubles, Bools]:
    """Steps of all tokens when sink and tail take turns with what was chosen; and which tokens the former ask for.

    Each node of `ends` comes before the first choice ahead of which as many tokens were chosen as the ends have taken.
    """
    steps, counts = np.unique(chosen[np.isfinite(chosen) & ~protected], return_counts=True)
    before = np.append(0, np.cumsum(counts))  # tokens chosen before each step
    moments = np.full(len(forest.parents), np.inf)
    asked, taken = np.zeros(len(chosen), bool), 0
    rows = _Rows(forest)
    last = -1.0
    for rank, node in enumerate(ends):
        needed = [one for one in forest.needs(node) if not np.isfinite(moments[one])]
        if not needed:
            continue
        last = max(last, float(np.searchsorted(before, taken, side="left")))
        for one in needed:
            moments[one] = last + (rank + 1) / (len(ends) + 2)
            tokens = rows.of(one)
            taken += int((~asked[tokens] & ~protected[tokens]).sum())
            asked[tokens] = True
    places = np.searchsorted(steps, chosen).astype(np.float64) + 1
    places[~np.isfinite(chosen)] = np.inf
    return np.minimum(places, forest.over_tokens(moments)), asked


class _Rows:
    """Tokens by node."""

    def __init__(self, forest: Forest) -> None:
        tokens, owners = forest.pairs
        order = np.argsort(owners, kind="stable")
        self.tokens, self.edges = tokens[order], np.searchsorted(owners[order], np.arange(len(forest.parents) + 1))

    def of(self, node: int) -> Ints:
        """Those of one node, and those it has a part of."""
        return self.tokens[self.edges[node] : self.edges[node + 1]]


def _passed_over(forest: Forest, scores: Floats, heavy: Bools, kept: Bools) -> tuple[str, ...]:
    """That units were left out for their size though better ones by score than some that were kept."""
    units = forest.units
    if not heavy[units].any():
        return ()
    taken = forest.over_nodes(kept.astype(np.float64))[units] > 0  # all of their tokens
    if not taken.any():
        return ()
    own, _ = forest.sizes()
    passed = units[heavy[units] & ~taken & (scores[units] > np.min(scores[units][taken]))]
    if not len(passed):
        return ()
    most = int(own[passed].max())
    return (f"{len(passed):,} long lines or values were passed over for their size; the longest has {most:,} tokens",)
