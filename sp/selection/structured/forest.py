"""An outline in tokens: which node each token belongs to, and which nodes a token that lies on an edge ties together.

A token is kept or left out as a whole, so one that reaches from one piece into the next decides for both: where it has
ink of one of them, the two are made one node, with all that stands between them. Where it is white space on both sides,
such as a line break with the next line's indentation, it is kept with either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Doubles, Ints
from sp.selection.base import SelectionRequest
from sp.selection.structured.outline import MARKUP, TOP, Outline


@dataclass(frozen=True)
class Forest:
    """Tokens of a prompt and what they need.

    Parameters
    ----------
    owner : array (n,)
        Node of each token; `MARKUP` for those that no node is asked about.
    also : array (m, 2)
        Pairs of a token and a node that needs it, too.
    parents : array (nodes,)
        Node that each one needs; `TOP` for none.
    units : array
        Nodes to choose from, in the order of the text.
    cuts : array (k, 4)
        Tokens that markup and a piece share with ink on both sides, the node of the piece, and the markup's bytes.
    """

    owner: Ints
    also: Ints
    parents: Ints
    units: Ints
    cuts: Ints

    def first(self, steps: Doubles) -> Doubles:
        """Step at which each token is taken, shape (n,), from the steps at which units are."""
        taken = np.full(len(self.parents), np.inf)
        taken[self.units] = steps
        least, above = taken.tolist(), self.parents.tolist()
        for node in range(len(least) - 1, MARKUP, -1):  # parents come before their children
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
        found = np.full(len(self.parents), np.inf)
        np.minimum.at(found, self.owner, values)
        np.minimum.at(found, self.also[:, 1], values[self.also[:, 0]])
        found[MARKUP] = np.inf
        return found

    def sizes(self) -> tuple[Ints, Ints]:
        """Tokens of each node, and of it and all that it needs."""
        own = np.bincount(self.owner, minlength=len(self.parents)).astype(np.int64)
        own[MARKUP] = 0
        own += np.bincount(self.also[:, 1], minlength=len(own))
        total, above = own.tolist(), self.parents.tolist()
        for node in range(1, len(total)):
            if above[node] != TOP:
                total[node] += total[above[node]]
        return own, np.array(total, np.int64)

    def read(self, kept: Bools, spans: Ints) -> Ints | None:
        """Bytes that are read of each token, shape (n, 2): of what is left out, nothing, though markup holds a token of it.

        None if that is all of each. Where markup stands on both sides of so little, the token stays as it is.
        """
        lost = [row for row in self.cuts.tolist() if kept[row[0]] and not self._whole(row[1], kept)]
        if not lost:
            return None
        read = spans.copy()
        for token, _, low, high in lost:
            read[token] = low, high
        return read

    def _whole(self, node: int, kept: Bools) -> bool:
        """Whether a node is kept with all that it needs."""
        return all(kept[self.owner == one].all() for one in self.needs(node))

    def needs(self, node: int) -> list[int]:
        """A node and all that it needs."""
        found = []
        while node != TOP:
            found.append(node)
            node = int(self.parents[node])
        return found


def grow(outline: Outline, request: SelectionRequest, min_run: int) -> Forest:
    """The forest of a prompt's tokens.

    Parameters
    ----------
    outline : Outline
    request : SelectionRequest
        With the bytes of its tokens.
    min_run : int
        Units of fewer tokens are joined with those behind them that have the same parent.
    """
    assert request.spans is not None
    starts, ends = np.ascontiguousarray(request.spans[:, 0]), request.spans[:, 1]
    edges, nodes = np.array(outline.starts, np.int64), np.array(outline.nodes, np.int64)
    owner = nodes[np.searchsorted(edges, starts, side="right") - 1]
    merged = _Merged(outline)
    before = np.searchsorted(starts, edges, side="left") - 1  # the last token that begins before each edge
    over = (before >= 0) & (ends[np.maximum(before, 0)] > edges)
    also, cuts = [], []
    for number in over.nonzero()[0].tolist():
        token, edge = int(before[number]), int(edges[number])
        left, right = int(nodes[number - 1]), int(nodes[number])
        low, high = int(starts[token]), int(ends[token])
        if left == MARKUP:
            until = edges[number + 1] if number + 1 < len(edges) else high
            if request.text[edge : min(high, int(until))].strip():
                also.append((token, right))
                cuts.append((token, right, low, edge))
        elif right == MARKUP:
            if request.text[low:edge].strip():
                cuts.append((token, left, edge, high))
            elif owner[token] == left:
                owner[token] = MARKUP
        elif request.text[low:high].strip():
            merged.join(left, right)
        else:
            also.append((token, right))
    parents = merged.settle(owner, min_run)
    found = merged.found
    owner = found[owner]
    pairs = np.array(also, np.int64).reshape(-1, 2)
    pairs[:, 1] = found[pairs[:, 1]]
    units, first = np.unique(owner, return_index=True)
    units = units[np.argsort(first, kind="stable")]
    shared = np.array(cuts, np.int64).reshape(-1, 4)
    shared[:, 1] = found[shared[:, 1]]
    return Forest(owner, pairs, parents, units[~merged.shells[units]], shared)


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

    def settle(self, owner: Ints, min_run: int) -> Ints:
        """Join short units, then: parents of all nodes, shape (nodes,); `found` and `shells` likewise."""
        if min_run > 1:
            self._join_short(owner, min_run)
        self.found: Ints = np.array([self.find(node) for node in range(len(self.same))], np.int64)
        self.shells: Bools = np.array(self.shell, bool)[self.found]
        above = np.array(self.parents, np.int64)[self.found]
        return np.where(above == TOP, TOP, self.found[above])

    def _join_short(self, owner: Ints, min_run: int) -> None:
        roots = np.array([self.find(node) for node in range(len(self.same))], np.int64)
        holds = {self.find(self.parents[node]) for node in set(roots.tolist())}
        tokens = roots[owner]
        sizes = np.bincount(tokens, minlength=len(roots))
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
