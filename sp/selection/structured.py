"""Selectors that keep whole units of structured text, each with all that it needs: JSON, lines and code, prose."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np

from sp.arrays import Bools, Doubles, Floats, Ints
from sp.chat import Segment
from sp.errors import ConfigError
from sp.selection.base import SELECTORS, Selection, SelectionRequest, register_selector
from sp.selection.forest import Forest, grow
from sp.selection.pieces import MARKUP, TOP, Outline, Parsing, SegmentView, put_lines, views
from sp.selection.ranking import Constrained, best_first, check_least, end_order, fill

ROUND = 4
"""A unit that needs more than this many times `longest` tokens, with its brackets and keys, has to wait."""


@dataclass(frozen=True)
class Structured(Constrained):
    """Whole units in order of their mean score; none is ever cut, and each is kept with all that it needs.

    The constraints of `Constrained` hold with these changes. A unit of `sink` and `tail` is one with a token among
    them; these units alternate with those that the scores chose, so that either has half of the budget. `min_run` joins
    units with those behind them. The last token of a unit and the first of the next can be one; such a token is read in
    part where necessary.

    Parameters
    ----------
    longest : int
        A value or paragraph of at most so many tokens is one unit, a longer one is split. A longer unit without parts,
        such as a line, waits until as many tokens were chosen, so that it never takes more than half of the budget, and
        is no neighbour, sink or tail.
    """

    whole: ClassVar[bool] = True
    longest: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "longest")

    @abstractmethod
    def put(self, segment: Segment, view: SegmentView, outline: Outline) -> None:
        """Put the pieces of a part of the prompt."""

    def prepare(self, request: SelectionRequest) -> Forest:
        """Return the forest of the text."""
        if request.spans is None:
            name = SELECTORS.name_of(self)
            raise ConfigError(f"selector {name} needs the text of the prompt; pass text and spans to SelectionRequest")
        outline = Outline()
        for segment, view in views(request):
            self.put(segment, view, outline)
            outline.put(segment.end, MARKUP)
        return grow(outline, request, self.min_run)

    def select(self, request: SelectionRequest) -> Selection:
        """Select units by rank; see the class for the tokens kept besides."""
        forest = request.prepared if isinstance(request.prepared, Forest) else self.prepare(request)
        own, total = forest.sizes()  # in tokens
        scores = node_means(request.scores, forest)
        heavy = (own > self.longest) | (total > ROUND * self.longest)  # (nodes,)
        order = heavy_delayed(best_first(scores[forest.units]), total[forest.units], heavy[forest.units])
        chosen = forest.first(self._steps(order, heavy[forest.units], len(request.scores)))
        ends = self._ends(request, forest, heavy)
        steps, at_ends = interleaved(chosen, forest, ends, request.protected)
        selected = np.ones(len(steps), bool)
        if request.keep_ratio < 1:
            selected = fill(request.protected, steps, request.budget, request.characters)
        edges = np.flatnonzero(np.diff(forest.owner)) + 1  # tokens at which the node changes
        bounds = np.concatenate([[0], edges, [len(steps)]]).astype(np.int64)
        forced = request.protected | (selected & at_ends)
        notes, ranges = _passed_over(forest, scores, heavy, selected), forest.byte_ranges(selected)
        return Selection(selected, forced, scores[forest.owner[bounds[:-1]]], bounds, notes, ranges)

    def _steps(self, order: Ints, heavy: Bools, n: int) -> Doubles:
        """Return the step at which each unit is taken; a heavy unit is taken only for its own sake."""
        units = len(heavy)
        if not units:
            return np.zeros(0)
        alone = np.full(units, np.inf)
        steps, alone[order] = self.steps(order, units, n)
        return np.where(heavy, alone, steps)

    def _ends(self, request: SelectionRequest, forest: Forest, heavy: Bools) -> list[int]:
        """Return the nodes of sink and tail from the ends inward, without heavy ones.

        Two at the same distance from their ends come in the order of the text.
        """
        order = end_order(len(request.scores), self.sink, self.tail)
        order[request.protected] = np.inf
        of_nodes = forest.over_nodes(order)
        first = forest.over_nodes(np.arange(len(order), dtype=np.float64))
        candidates = np.flatnonzero(np.isfinite(of_nodes) & ~heavy)
        return [int(node) for node in candidates[np.lexsort((first[candidates], of_nodes[candidates]))]]


def node_means(scores: Floats, forest: Forest) -> Floats:
    """Return the mean score of the tokens of each node, shape (nodes,); NaN for nodes that are no choice."""
    tokens, nodes = forest.pairs
    sums = np.bincount(nodes, scores[tokens], len(forest.parents))
    counts = np.bincount(nodes, minlength=len(forest.parents))
    means = np.full(len(sums), np.nan)
    means[forest.units] = sums[forest.units] / counts[forest.units]
    return np.asarray(means, np.float32)


def heavy_delayed(ranked: Ints, sizes: Ints, heavy: Bools) -> Ints:
    """Return the units by rank, except that a heavy one waits until as many tokens as it has were chosen.

    Where several may come, the best does. Those that still wait at the end follow by their size. The order does not
    depend on the budget.
    """
    if not heavy.any():
        return ranked
    order: list[int] = []
    waiting: list[tuple[int, int]] = []  # size and rank
    ready: list[int] = []
    tokens = 0
    for rank, unit in enumerate(ranked.tolist()):
        if heavy[unit] and sizes[unit] > tokens:
            heappush(waiting, (int(sizes[unit]), rank))
            continue
        order.append(unit)
        tokens += int(sizes[unit])
        while ready or (waiting and waiting[0][0] <= tokens):
            while waiting and waiting[0][0] <= tokens:
                heappush(ready, heappop(waiting)[1])
            order.append(int(ranked[heappop(ready)]))
            tokens += int(sizes[order[-1]])
    return np.array(order + [int(ranked[rank]) for _, rank in sorted(waiting)], np.int64)


def interleaved(chosen: Doubles, forest: Forest, ends: list[int], protected: Bools) -> tuple[Doubles, Bools]:
    """Return the steps of all tokens when sink and tail alternate with the chosen units, and the tokens of the former.

    A node of `ends` comes before the first choice that is preceded by as many chosen tokens as the ends have taken.
    """
    steps, counts = np.unique(chosen[np.isfinite(chosen) & ~protected], return_counts=True)
    before = np.append(0, np.cumsum(counts))  # tokens chosen before each step
    moments = np.full(len(forest.parents), np.inf)
    at_ends, count = np.zeros(len(chosen), bool), 0
    by_node = _TokensByNode(forest)
    last = -1.0
    for rank, node in enumerate(ends):
        needs = [need for need in forest.needs(node) if not np.isfinite(moments[need])]
        if not needs:
            continue
        last = max(last, float(np.searchsorted(before, count, side="left")))
        for need in needs:
            # Steps of choices become whole numbers below; fractions order the ends between two of them.
            moments[need] = last + (rank + 1) / (len(ends) + 2)
            tokens = by_node.of(need)
            count += int((~at_ends[tokens] & ~protected[tokens]).sum())
            at_ends[tokens] = True
    places = np.searchsorted(steps, chosen).astype(np.float64) + 1
    places[~np.isfinite(chosen)] = np.inf
    return np.minimum(places, forest.over_tokens(moments)), at_ends


class _TokensByNode:
    """Tokens by node, in one array with offsets."""

    def __init__(self, forest: Forest) -> None:
        tokens, owners = forest.pairs
        order = np.argsort(owners, kind="stable")
        self.tokens, self.edges = tokens[order], np.searchsorted(owners[order], np.arange(len(forest.parents) + 1))

    def of(self, node: int) -> Ints:
        """Return the tokens of a node, including those it has a part of."""
        return self.tokens[self.edges[node] : self.edges[node + 1]]


def _passed_over(forest: Forest, scores: Floats, heavy: Bools, selected: Bools) -> tuple[str, ...]:
    """Return a remark if units were left out for their size though they scored above some that were selected."""
    units = forest.units
    if not heavy[units].any():
        return ()
    complete = forest.over_nodes(selected.astype(np.float64))[units] > 0  # all of their tokens
    if not complete.any():
        return ()
    own, _ = forest.sizes()
    passed = units[heavy[units] & ~complete & (scores[units] > np.min(scores[units][complete]))]
    if not len(passed):
        return ()
    most = int(own[passed].max())
    return (f"{len(passed):,} long lines or values were passed over for their size; the longest has {most:,} tokens",)


@register_selector("json")
@dataclass(frozen=True)
class TopJsonValues(Structured):
    """JSON values with the keys and brackets that lead to them, so that the result parses; lines of other text.

    A value of at most `longest` tokens is kept or left out as a whole; a longer one is split into its members.
    """

    def put(self, segment: Segment, view: SegmentView, outline: Outline) -> None:
        put_lines(view, outline, Parsing(self.longest, json=True))


@register_selector("lines")
@dataclass(frozen=True)
class TopLines(Structured):
    """Lines, for code and logs; the fences of a block and tags on lines of their own are kept with what is inside.

    Pruning of code by lines is due to SWE-Pruner (arXiv 2601.16746).
    """

    def put(self, segment: Segment, view: SegmentView, outline: Outline) -> None:
        put_lines(view, outline, Parsing(self.longest))


@register_selector("segments")
@dataclass(frozen=True)
class TopSegments(Structured):
    """JSON by values, code and logs by lines, prose by paragraphs or sentences, results of tools whole where short.

    The kind of text is detected paragraph by paragraph; JSON anywhere. A paragraph of prose or a result of a tool
    of at most `longest` tokens is one unit. Sentences of more tokens are cut into equal parts.
    """

    def put(self, segment: Segment, view: SegmentView, outline: Outline) -> None:
        if segment.kind == "tool" and view.tokens(0, len(view.text)) <= self.longest:
            outline.put(segment.start, outline.node(TOP))
        else:
            put_lines(view, outline, Parsing(self.longest, json=True, prose=True))
