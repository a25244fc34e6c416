"""The tokens of a prompt as a forest of nodes, each with the node that it needs.

A token that reaches from one piece into the next is kept with either. Where the other piece is left out and has visible
characters in it, only a part of the token is read: those bytes are encoded again. This needs whole characters; nodes
that share a token which splits a character are merged, with all nodes between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from sp.arrays import Bools, Doubles, Ints
from sp.selection.base import ByteRanges, SelectionRequest
from sp.selection.pieces import MARKUP, TOP, Outline
from sp.structure import is_blank


@dataclass(frozen=True)
class TokenParts:
    """Parts of tokens that reach over edges of pieces, in the order of the text; all arrays have shape (parts,).

    Attributes
    ----------
    tokens, nodes : int64
        Token that the part belongs to, and the node it is in.
    starts, ends : int64
        Bytes of the text.
    ink : bool
        True if a byte of it is not white space.
    """

    tokens: Ints
    nodes: Ints
    starts: Ints
    ends: Ints
    ink: Bools

    def __getitem__(self, mask: Bools) -> TokenParts:
        return TokenParts(self.tokens[mask], self.nodes[mask], self.starts[mask], self.ends[mask], self.ink[mask])

    @cached_property
    def firsts(self) -> Ints:
        """Index of the first part of each token."""
        return np.flatnonzero(np.diff(self.tokens, prepend=-1))

    def any(self, flags: Bools) -> Bools:
        """Return for each part whether any part of its token has a flag, (parts,)."""
        if not len(flags):
            return flags
        flagged = np.logical_or.reduceat(flags, self.firsts)
        return np.asarray(np.repeat(flagged, np.diff(self.firsts, append=len(flags))), bool)


@dataclass(frozen=True)
class Forest:
    """Nodes of a prompt: the tokens of each, and the node that each one needs."""

    owner: Ints  # (n,) node in which each token begins; `MARKUP` for tokens outside of all nodes
    also: Ints  # (m, 2) pairs of a token and another node that has a part of it
    parents: Ints  # (nodes,) node that each node needs, an earlier one; `TOP` for none
    units: Ints  # nodes to choose from, in the order of the text
    shared: TokenParts  # parts of the tokens that can be read in part

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
        parts, is_complete = self.shared, np.array(complete, bool)[self.shared.nodes]
        cut = selected[parts.tokens] & parts.any(parts.ink & ~is_complete)
        result: dict[int, tuple[tuple[int, int], ...]] = {}
        rest = parts[cut & is_complete]
        for token, start, end in zip(rest.tokens.tolist(), rest.starts.tolist(), rest.ends.tolist(), strict=True):
            result[token] = (*result.get(token, ()), (start, end))
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
    # Start of each piece in bytes, and its node.
    edges, nodes = np.array(outline.starts, np.int64), np.array(outline.nodes, np.int64)
    owner = nodes[np.searchsorted(edges, starts, side="right") - 1]  # node at the first byte of each token
    merged = _MergedNodes(outline)
    parts = _shared_parts(edges, nodes, request)
    marks = parts.nodes == MARKUP
    # A token that is partly markup belongs to a node only through visible characters.
    parts = parts[parts.ink | marks | ~parts.any(marks)]
    marks = parts.nodes == MARKUP
    owner[parts.tokens[parts.firsts]] = parts.nodes[parts.firsts]
    pairs = np.stack([parts.tokens, parts.nodes], 1)[~marks & (parts.nodes != owner[parts.tokens])]
    whole = ~_splits_character(request.text, starts[parts.tokens], request.spans[parts.tokens, 1])
    halves = parts[~whole & ~marks]
    for (token, node), (following, neighbour) in pairwise(
        zip(halves.tokens.tolist(), halves.nodes.tolist(), strict=True)
    ):
        if token == following:  # half a character cannot be encoded again
            merged.join(node, neighbour)
    parts = parts[whole & parts.any(~marks)]
    parents = merged.settle(owner, pairs, min_run)
    roots = merged.roots
    owner = roots[owner]
    pairs = _distinct(pairs[:, 0], roots[pairs[:, 1]], owner)
    shared = replace(parts, nodes=roots[parts.nodes])
    units, first = np.unique(roots[nodes], return_index=True)
    units = units[np.argsort(first, kind="stable")]
    has_tokens = np.zeros(len(parents), bool)
    has_tokens[owner] = has_tokens[pairs[:, 1]] = True
    return Forest(owner, pairs, parents, units[~merged.wrappers[units] & has_tokens[units]], shared)


def _shared_parts(edges: Ints, nodes: Ints, request: SelectionRequest) -> TokenParts:
    """Return the parts of the tokens that reach over edges of pieces, each in the piece between two edges."""
    assert request.spans is not None
    starts, ends = np.ascontiguousarray(request.spans[:, 0]), request.spans[:, 1]
    before = np.searchsorted(starts, edges, side="left") - 1  # the last token that begins before each edge
    crossed = np.flatnonzero((before >= 0) & (ends[np.maximum(before, 0)] > edges))  # edges inside of a token
    tokens, counts = np.unique(before[crossed], return_counts=True)
    # A token with k edges inside has k + 1 parts: the first begins where the token does, the others at its edges.
    first = np.cumsum(counts + 1) - (counts + 1)
    opens = np.zeros(int(np.sum(counts + 1)), bool)
    opens[first] = True
    closes = np.roll(opens, -1)  # the last part of each token
    lows, highs, pieces = (np.empty(len(opens), np.int64) for _ in range(3))
    lows[opens], lows[~opens] = starts[tokens], edges[crossed]
    highs[closes], highs[~closes] = ends[tokens], edges[crossed]
    pieces[~opens] = crossed
    pieces[opens] = crossed[np.cumsum(counts) - counts] - 1
    ink = np.append(0, np.cumsum(~is_blank(request.text)))  # bytes before each place that are not white space
    return TokenParts(np.repeat(tokens, counts + 1), nodes[pieces], lows, highs, ink[highs] > ink[lows])


def _distinct(tokens: Ints, nodes: Ints, owner: Ints) -> Ints:
    """Return the distinct pairs (m, 2) of a token and a node that does not own it."""
    other = nodes != owner[tokens]
    return np.unique(np.stack([tokens[other], nodes[other]], 1), axis=0)


def _splits_character(text: bytes, starts: Ints, ends: Ints) -> Bools:
    """Return True where bytes [start, end) begin or end inside of a character."""
    raw = np.frombuffer(text + b" ", np.uint8)
    continues = raw & 0xC0 == 0x80
    return np.asarray(continues[starts] | continues[ends], bool)


class _MergedNodes:
    """Disjoint sets of nodes; the least node of a set, a parent before its child, represents it."""

    def __init__(self, outline: Outline) -> None:
        self.parents = list(outline.parents)
        self.same = list(range(len(self.parents)))
        self.is_wrapper = list(outline.wrappers)

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
            self.is_wrapper[top] = self.is_wrapper[top] and self.is_wrapper[node]

    def settle(self, owner: Ints, also: Ints, min_run: int) -> Ints:
        """Join short units and return the parents of all nodes, (nodes,); sets `roots` and `wrappers` of that shape."""
        if min_run > 1:
            self._join_short(owner, also, min_run)
        self.roots: Ints = np.array([self.find(node) for node in range(len(self.same))], np.int64)
        self.wrappers: Bools = np.array(self.is_wrapper, bool)[self.roots]
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
            if node == MARKUP or self.is_wrapper[node] or node in holds:
                last = MARKUP
            elif last == MARKUP or sizes[last] >= min_run or self.parents[last] != self.parents[node]:
                last = node
            elif node != last:
                self.same[node] = last
                sizes[last] += sizes[node]
