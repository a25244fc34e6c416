"""Selectors that keep whole units of structured text, each with all that it needs: JSON, lines and code, prose.

A token that reaches from one piece into the next is kept with either. Where the other one is left out and has ink in
it, only a part of the token is read: its bytes are encoded anew. That needs whole characters; nodes that share a token
which cuts one are made one, with all that stands between them.
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
from sp.selection.base import SELECTORS, Reading, Selection, SelectionRequest, register_selector
from sp.selection.pieces import MARKUP, TOP, Outline, Parsing, View, put_lines, views
from sp.selection.ranking import Constrained, best_first, check_least, end_order, fill

Part = tuple[int, int, int, bool]  # of a token: the node, the bytes [start, end), and whether these have ink


@dataclass(frozen=True)
class Forest:
    """Tokens of a prompt and what they need."""

    owner: Ints  # node that each token begins in; `MARKUP` for those that no node is asked about
    also: Ints  # pairs of a token and another node that has a part of it
    parents: Ints  # node that each one needs, a node before it; `TOP` for none
    units: Ints  # nodes to choose from, in the order of the text
    shared: dict[int, list[Part]]  # the parts of tokens that can be read in part

    @cached_property
    def pairs(self) -> tuple[Ints, Ints]:
        """Tokens and their nodes, both (n + m,)."""
        n = len(self.owner)
        return np.append(np.arange(n), self.also[:, 0]), np.append(self.owner, self.also[:, 1])

    def first(self, steps: Doubles) -> Doubles:
        """Step at which each token is taken, shape (n,), from the steps at which units are."""
        taken = np.full(len(self.parents), np.inf)
        taken[self.units] = steps
        least, above = taken.tolist(), self.parents.tolist()
        for node in range(len(least) - 1, MARKUP, -1):
            if above[node] != TOP and least[node] < least[above[node]]:
                least[above[node]] = least[node]
        return self.over_tokens(np.array(least))

    def over_tokens(self, values: Doubles) -> Doubles:
        """The least value of the nodes that need each token, shape (n,)."""
        found: Doubles = values[self.owner]
        np.minimum.at(found, self.also[:, 0], values[self.also[:, 1]])
        return found

    def over_nodes(self, values: Doubles) -> Doubles:
        """The least value of the tokens of each node, shape (nodes,)."""
        tokens, nodes = self.pairs
        found = np.full(len(self.parents), np.inf)
        np.minimum.at(found, nodes, values[tokens])
        found[MARKUP] = np.inf
        return found

    def sizes(self) -> tuple[Ints, Ints]:
        """Tokens of each node, and of it and all that it needs."""
        own = np.bincount(self.pairs[1], minlength=len(self.parents)).astype(np.int64)
        own[MARKUP] = 0
        total, above = own.tolist(), self.parents.tolist()
        for node in range(1, len(total)):
            if above[node] != TOP:
                total[node] += total[above[node]]
        return own, np.array(total, np.int64)

    def read(self, kept: Bools) -> Reading:
        """What is read of kept tokens of which some node that is left out has a part."""
        whole = np.ones(len(self.parents), bool)
        tokens, nodes = self.pairs
        whole[nodes[~kept[tokens]]] = False
        whole[MARKUP] = True
        held, above = whole.tolist(), self.parents.tolist()
        for node in range(1, len(held)):
            held[node] = held[node] and (above[node] == TOP or held[above[node]])
        found = {}
        for token, parts in self.shared.items():
            if kept[token] and any(ink and not held[node] for node, _, _, ink in parts):
                ranges = tuple((start, end) for node, start, end, _ in parts if held[node])
                if ranges:
                    found[token] = ranges
        return found

    def needs(self, node: int) -> list[int]:
        """A node and all that it needs."""
        found = []
        while node != TOP:
            found.append(node)
            node = int(self.parents[node])
        return found


def grow(outline: Outline, request: SelectionRequest, min_run: int) -> Forest:
    """The forest of a prompt's tokens. `min_run`: units of fewer tokens are joined with those behind them that have the
    same parent."""
    assert request.spans is not None
    starts = np.ascontiguousarray(request.spans[:, 0])
    edges, nodes = np.array(outline.starts, np.int64), np.array(outline.nodes, np.int64)
    owner = nodes[np.searchsorted(edges, starts, side="right") - 1]
    merged = _Merged(outline)
    also: list[tuple[int, int]] = []
    shared: dict[int, list[Part]] = {}
    for token, parts in _shared(outline, request):
        marked = any(node == MARKUP for node, *_ in parts)
        inked = [part for part in parts if part[3] or not marked or part[0] == MARKUP]
        owner[token] = inked[0][0]
        also += [(token, node) for node in {node for node, *_ in inked} - {MARKUP, inked[0][0]}]
        said = [node for node, *_ in inked if node != MARKUP]
        if _cuts_character(request.text, *request.spans[token].tolist()):
            for one, other in pairwise(said):
                merged.join(one, other)
        elif said:
            shared[token] = inked
    pairs = np.array(also, np.int64).reshape(-1, 2)
    parents = merged.settle(owner, pairs, min_run)
    found = merged.found
    owner = found[owner]
    pairs = _distinct(pairs[:, 0], found[pairs[:, 1]], owner)
    shared = {
        token: [(int(found[node]), start, end, ink) for node, start, end, ink in parts]
        for token, parts in shared.items()
    }
    units, first = np.unique(found[nodes], return_index=True)
    units = units[np.argsort(first, kind="stable")]
    known = np.zeros(len(parents), bool)
    known[owner] = known[pairs[:, 1]] = True
    return Forest(owner, pairs, parents, units[~merged.shells[units] & known[units]], shared)


def _shared(outline: Outline, request: SelectionRequest) -> Iterator[tuple[int, list[Part]]]:
    """Tokens that reach over edges, and their parts."""
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
    """Pairs (m, 2) of tokens and nodes that do not own them, each once."""
    other = nodes != owner[tokens]
    return np.unique(np.stack([tokens[other], nodes[other]], 1), axis=0)


def _cuts_character(text: bytes, start: int, end: int) -> bool:
    """Whether bytes begin or end inside of a character."""
    return text[start] & 0xC0 == 0x80 or (end < len(text) and text[end] & 0xC0 == 0x80)


class _Merged:
    """Which nodes are one, by the least of them, which is a parent's before its child's."""

    def __init__(self, outline: Outline) -> None:
        self.parents = list(outline.parents)
        self.same = list(range(len(self.parents)))
        self.shell = list(outline.shells)

    def find(self, node: int) -> int:
        """The node that stands for one."""
        root = node
        while root != TOP and self.same[root] != root:
            root = self.same[root]
        while node != root:
            self.same[node], node = root, self.same[node]
        return root

    def join(self, one: int, other: int) -> None:
        """Make one node of two, with all on the way from the one to the other, but not what both are inside of."""
        ends = {self.find(one), self.find(other)}
        x, y = self.find(one), self.find(other)
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
        """Join short units, then: parents of all nodes, shape (nodes,); `found` and `shells` likewise."""
        if min_run > 1:
            self._join_short(owner, also, min_run)
        self.found: Ints = np.array([self.find(node) for node in range(len(self.same))], np.int64)
        self.shells: Bools = np.array(self.shell, bool)[self.found]
        above = np.array(self.parents, np.int64)[self.found]
        return np.where(above == TOP, TOP, self.found[above])

    def _join_short(self, owner: Ints, also: Ints, min_run: int) -> None:
        roots = np.array([self.find(node) for node in range(len(self.same))], np.int64)
        holds = {self.find(self.parents[node]) for node in set(roots.tolist())}
        tokens = roots[owner]
        pairs = _distinct(also[:, 0], roots[also[:, 1]], tokens)
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

    def prepare(self, request: SelectionRequest) -> Forest:
        """The forest of the text."""
        if request.spans is None:
            name = SELECTORS.name_of(self)
            raise ConfigError(f"selector {name} needs the text of the prompt and the bytes of its tokens")
        outline = Outline()
        for segment, view in views(request):
            self.put(segment, view, outline)
            outline.put(segment.end, MARKUP)
        return grow(outline, request, self.min_run)

    def select(self, request: SelectionRequest) -> Selection:
        """Units by rank; see the class for what else is kept."""
        forest = request.prepared if isinstance(request.prepared, Forest) else self.prepare(request)
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
        alone = np.full(units, np.inf)
        steps, alone[order] = self.steps(order, units, n)
        return np.where(heavy, alone, steps)

    def _ends(self, request: SelectionRequest, forest: Forest, heavy: Bools) -> list[int]:
        """Nodes of sink and tail from the ends inward, without heavy ones. Two at the same distance from their ends
        come in the order of the text."""
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
    """Units by rank, save that a heavy one waits until as many tokens as it has were chosen. Where several may come,
    the best does. All that still wait at the end follow by their size. What comes when does not depend on the budget.
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
    """Steps of all tokens when sink and tail take turns with what was chosen; and which tokens the former ask for. Each
    node of `ends` comes before the first choice ahead of which as many tokens were chosen as the ends have taken."""
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


@register_selector("json")
@dataclass(frozen=True)
class Json(Structured):
    """JSON values with the keys and brackets that lead to them, so that what is kept parses; lines of other text.

    A value of at most `longest` tokens is kept or left out as a whole, of a longer one its members are.
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        put_lines(view, outline, Parsing(self.longest, json=True))


@register_selector("lines")
@dataclass(frozen=True)
class Lines(Structured):
    """Lines, for code and logs; the fences of a block and tags with a line each are kept with what is inside.

    Pruning of code by lines is due to SWE-Pruner (arXiv 2601.16746).
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        put_lines(view, outline, Parsing(self.longest))


@register_selector("segments")
@dataclass(frozen=True)
class Segments(Structured):
    """JSON by values, code and logs by lines, prose by paragraphs or sentences, results of tools whole where short.

    What a text is, is seen paragraph by paragraph; JSON wherever it stands. A paragraph of prose or a result of a tool
    of at most `longest` tokens is one unit. Sentences of more tokens are cut into equal parts.
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        if segment.kind == "tool" and view.tokens(0, len(view.text)) <= self.longest:
            outline.put(segment.start, outline.node(TOP))
        else:
            put_lines(view, outline, Parsing(self.longest, json=True, prose=True))
