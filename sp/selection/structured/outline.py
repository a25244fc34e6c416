"""A text cut into pieces, each of which belongs to a node; a node is kept only together with its parent."""

from __future__ import annotations

MARKUP = 0
"""The node of all text that is kept or left out by other rules than these."""
TOP = -1


class Outline:
    """Nodes, and the pieces of a text that belong to them.

    `parents`: parent of each node, a node before it; `TOP` for none; `shells`: whether a node only holds others
    together (brackets, fences, tags) and is no choice by itself; `starts`, `nodes`: byte at which each piece begins,
    ascending, and its node. A piece ends where the next begins.

    >>> outline = Outline()
    >>> bracket = outline.node(TOP, shell=True)
    >>> for at, node in ((0, bracket), (1, outline.node(bracket)), (4, bracket)):
    ...     outline.put(at, node)
    >>> outline.starts, outline.nodes, outline.parents
    ([0, 1, 4], [1, 2, 1], [-1, -1, 1])
    """

    def __init__(self) -> None:
        self.parents = [TOP]
        self.shells = [True]
        self.starts = [0]
        self.nodes = [MARKUP]

    def node(self, parent: int, *, shell: bool = False) -> int:
        """A new node."""
        self.parents.append(parent)
        self.shells.append(shell)
        return len(self.parents) - 1

    def put(self, at: int, node: int) -> None:
        """Begin a piece; one that would be empty is forgotten."""
        if at <= self.starts[-1]:
            self.nodes[-1] = node
        elif node != self.nodes[-1]:
            self.starts.append(at)
            self.nodes.append(node)
