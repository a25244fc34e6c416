"""An outline in tokens: which nodes each token belongs to, and what is read of a token that lies on an edge.

A token that reaches from one piece into the next is kept with either. Where the other one is left out and has ink in
it, only a part of the token is read: its bytes are encoded anew. That needs whole characters; nodes that share a token
which cuts one are made one, with all that stands between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from sp.arrays import Bools, Doubles, Ints
from sp.selection.base import Reading, SelectionRequest
from sp.selection.structured.outline import MARKUP, TOP, Outline

Part = tuple[int, int, int, bool]
"""Of a token: the node, the bytes [start, end), and whether these have ink."""


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
    """The forest of a prompt's tokens.

    `min_run`: units of fewer tokens are joined with those behind them that have the same parent.
    """
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
