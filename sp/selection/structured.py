"""Selectors that keep whole units of structured text, each with all that it needs: JSON, lines and code, prose.

A token that reaches from one piece into the next is kept with either. Where the other piece is left out and has visible
characters in it, only a part of the token is read: those bytes are encoded again. This needs whole characters; nodes
that share a token which splits a character are merged, with all nodes between them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import ClassVar

import numpy as np

from sp.arrays import Bools, Doubles, Floats, Ints
from sp.chat import Segment
from sp.errors import ConfigError
from sp.selection.base import SELECTORS, ByteRanges, Selection, SelectionRequest, register_selector
from sp.selection.pieces import MARKUP, TOP, Outline, Parsing, SegmentView, put_lines, views
from sp.selection.ranking import Constrained, best_first, check_least, end_order, fill

TokenPart = tuple[int, int, int, bool]  # node, bytes [start, end) of the text, True if any is not white space


@dataclass(frozen=True)
class Forest:
    """Nodes of a prompt: the tokens of each, and the node that each one needs."""

    owner: Ints  # (n,) node in which each token begins; `MARKUP` for tokens outside of all nodes
    also: Ints  # (m, 2) pairs of a token and another node that has a part of it
    parents: Ints  # (nodes,) node that each node needs, an earlier one; `TOP` for none
    units: Ints  # nodes to choose from, in the order of the text
    shared: dict[int, list[TokenPart]]  # parts of the tokens that can be read in part

    @cached_property
    def pairs(self) -> tuple[Ints, Ints]:
        """Tokens and their nodes, both (n + m,)."""
        n = len(self.owner)
        return np.append(np.arange(n), self.also[:, 0]), np.append(self.owner, self.also[:, 1])

    def first(self, steps: Doubles) -> Doubles:
        """Return the step at which each token is taken, shape (n,), from the steps of the units."""
        node_steps = np.full(len(self.parents), np.inf)
        node_steps[self.units] = steps
        least, above = node_steps.tolist(), self.parents.tolist()
        # Parents precede their children, so one pass from the back carries each step up to the root.
        for node in range(len(least) - 1, MARKUP, -1):
            if above[node] != TOP and least[node] < least[above[node]]:
                least[above[node]] = least[node]
        return self.over_tokens(np.array(least))

    def over_tokens(self, values: Doubles) -> Doubles:
        """Return the least value of the nodes that each token belongs to, shape (n,)."""
        least: Doubles = values[self.owner]
        np.minimum.at(least, self.also[:, 0], values[self.also[:, 1]])
        return least

    def over_nodes(self, values: Doubles) -> Doubles:
        """Return the least value of the tokens of each node, shape (nodes,)."""
        tokens, nodes = self.pairs
        least = np.full(len(self.parents), np.inf)
        np.minimum.at(least, nodes, values[tokens])
        least[MARKUP] = np.inf
        return least

    def sizes(self) -> tuple[Ints, Ints]:
        """Return the tokens of each node, and those of the node and all that it needs."""
        own = np.bincount(self.pairs[1], minlength=len(self.parents)).astype(np.int64)
        own[MARKUP] = 0  # markup is protected or left out by other rules, and costs a node nothing
        total, above = own.tolist(), self.parents.tolist()
        for node in range(1, len(total)):
            if above[node] != TOP:
                total[node] += total[above[node]]
        return own, np.array(total, np.int64)

    def byte_ranges(self, selected: Bools) -> ByteRanges:
        """Return the bytes to read of selected tokens that belong in part to a node that is left out."""
        whole = np.ones(len(self.parents), bool)
        tokens, nodes = self.pairs
        whole[nodes[~selected[tokens]]] = False
        whole[MARKUP] = True
        complete, above = whole.tolist(), self.parents.tolist()
        for node in range(1, len(complete)):  # a node whose parent is incomplete is not read either
            complete[node] = complete[node] and (above[node] == TOP or complete[above[node]])
        result = {}
        for token, parts in self.shared.items():
            if selected[token] and any(ink and not complete[node] for node, _, _, ink in parts):
                ranges = tuple((start, end) for node, start, end, _ in parts if complete[node])
                if ranges:
                    result[token] = ranges
        return result

    def needs(self, node: int) -> list[int]:
        """Return a node and all that it needs."""
        chain = []
        while node != TOP:
            chain.append(node)
            node = int(self.parents[node])
        return chain


def grow(outline: Outline, request: SelectionRequest, min_run: int) -> Forest:
    """Return the forest of a prompt's tokens.

    `min_run`: units of fewer tokens are joined with those behind them that have the same parent.
    """
    assert request.spans is not None
    starts = np.ascontiguousarray(request.spans[:, 0])
    edges, nodes = np.array(outline.starts, np.int64), np.array(outline.nodes, np.int64)
    owner = nodes[np.searchsorted(edges, starts, side="right") - 1]
    merged = _MergedNodes(outline)
    also: list[tuple[int, int]] = []
    shared: dict[int, list[TokenPart]] = {}
    for token, parts in _shared(outline, request):
        marked = any(node == MARKUP for node, *_ in parts)
        # A token that is partly markup belongs to a node only through visible characters.
        inked = [part for part in parts if part[3] or not marked or part[0] == MARKUP]
        owner[token] = inked[0][0]
        also += [(token, node) for node in {node for node, *_ in inked} - {MARKUP, inked[0][0]}]
        sharing = [node for node, *_ in inked if node != MARKUP]
        if _splits_character(request.text, *request.spans[token].tolist()):
            for node, neighbour in pairwise(sharing):  # half a character cannot be encoded again
                merged.join(node, neighbour)
        elif sharing:
            shared[token] = inked
    pairs = np.array(also, np.int64).reshape(-1, 2)
    parents = merged.settle(owner, pairs, min_run)
    roots = merged.roots
    owner = roots[owner]
    pairs = _distinct(pairs[:, 0], roots[pairs[:, 1]], owner)
    shared = {
        token: [(int(roots[node]), start, end, ink) for node, start, end, ink in parts]
        for token, parts in shared.items()
    }
    units, first = np.unique(roots[nodes], return_index=True)
    units = units[np.argsort(first, kind="stable")]
    has_tokens = np.zeros(len(parents), bool)
    has_tokens[owner] = has_tokens[pairs[:, 1]] = True
    return Forest(owner, pairs, parents, units[~merged.shells[units] & has_tokens[units]], shared)


def _shared(outline: Outline, request: SelectionRequest) -> Iterator[tuple[int, list[TokenPart]]]:
    """Yield the tokens that reach over edges of pieces, and their parts."""
    assert request.spans is not None
    starts, ends = np.ascontiguousarray(request.spans[:, 0]), request.spans[:, 1]
    edges = np.array(outline.starts, np.int64)
    before = np.searchsorted(starts, edges, side="left") - 1  # the last token that begins before each edge
    over = ((before >= 0) & (ends[np.maximum(before, 0)] > edges)).nonzero()[0]
    for run in np.split(over, np.flatnonzero(np.diff(before[over])) + 1):
        if len(run):
            token = int(before[run[0]])
            pieces = [int(run[0]) - 1, *run.tolist()]
            places = [int(starts[token]), *edges[run].tolist(), int(ends[token])]
            yield (
                token,
                [
                    (outline.nodes[piece], low, high, bool(request.text[low:high].strip()))
                    for piece, low, high in zip(pieces, places, places[1:], strict=False)
                ],
            )


def _distinct(tokens: Ints, nodes: Ints, owner: Ints) -> Ints:
    """Return the distinct pairs (m, 2) of a token and a node that does not own it."""
    other = nodes != owner[tokens]
    return np.unique(np.stack([tokens[other], nodes[other]], 1), axis=0)


def _splits_character(text: bytes, start: int, end: int) -> bool:
    """Return True if the bytes begin or end inside of a character."""
    return text[start] & 0xC0 == 0x80 or (end < len(text) and text[end] & 0xC0 == 0x80)


class _MergedNodes:
    """Disjoint sets of nodes; the least node of a set, a parent before its child, represents it."""

    def __init__(self, outline: Outline) -> None:
        self.parents = list(outline.parents)
        self.same = list(range(len(self.parents)))
        self.shell = list(outline.shells)

    def find(self, node: int) -> int:
        """Return the representative of a node, and shorten the path to it."""
        root = node
        while root != TOP and self.same[root] != root:
            root = self.same[root]
        while node != root:
            self.same[node], node = root, self.same[node]
        return root

    def join(self, first: int, second: int) -> None:
        """Merge two nodes and all nodes on the path between them, except for their common ancestor.

        The ancestor is merged too if it is one of the two.
        """
        x, y = self.find(first), self.find(second)
        ends = {x, y}
        path = []
        while x != y:
            path.append(max(x, y))
            above = self.find(self.parents[max(x, y)])
            x, y = above, min(x, y)
        if x in ends and path:
            path.append(x)
        top = min(path, default=TOP)
        for node in path:
            self.same[node] = top
            self.shell[top] = self.shell[top] and self.shell[node]

    def settle(self, owner: Ints, also: Ints, min_run: int) -> Ints:
        """Join short units and return the parents of all nodes, shape (nodes,); sets `roots` and `shells` likewise."""
        if min_run > 1:
            self._join_short(owner, also, min_run)
        self.roots: Ints = np.array([self.find(node) for node in range(len(self.same))], np.int64)
        self.shells: Bools = np.array(self.shell, bool)[self.roots]
        above = np.array(self.parents, np.int64)[self.roots]
        return np.where(above == TOP, TOP, self.roots[above])

    def _join_short(self, owner: Ints, also: Ints, min_run: int) -> None:
        roots = np.array([self.find(node) for node in range(len(self.same))], np.int64)
        holds = {self.find(self.parents[node]) for node in set(roots.tolist())}
        tokens = roots[owner]
        pairs = _distinct(also[:, 0], roots[also[:, 1]], tokens)
        # Walk along runs of one node: a short unit takes in its successor of the same parent until it is long enough.
        sizes = np.bincount(np.append(tokens, pairs[:, 1]), minlength=len(roots))
        last = MARKUP
        for node in tokens[np.append(0, np.flatnonzero(np.diff(tokens)) + 1)].tolist():
            node = self.find(node)
            if node == MARKUP or self.shell[node] or node in holds:
                last = MARKUP
            elif last == MARKUP or sizes[last] >= min_run or self.parents[last] != self.parents[node]:
                last = node
            elif node != last:
                self.same[node] = last
                sizes[last] += sizes[node]


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
        own, total = forest.sizes()
        scores = node_means(request.scores, forest)
        heavy = (own > self.longest) | (total > ROUND * self.longest)
        order = heavy_delayed(best_first(scores[forest.units]), total[forest.units], heavy[forest.units])
        chosen = forest.first(self._steps(order, heavy[forest.units], len(request.scores)))
        ends = self._ends(request, forest, heavy)
        steps, at_ends = interleaved(chosen, forest, ends, request.protected)
        selected = np.ones(len(steps), bool)
        if request.keep_ratio < 1:
            selected = fill(request.protected, steps, request.budget, request.characters)
        edges = np.flatnonzero(np.diff(forest.owner)) + 1
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
