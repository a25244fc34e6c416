"""What a trained scorer judges as one: chunks of equal length, or lines of the text; and how it pools their tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.ops.array_module import array_module
from sp.prompt.sentences import cut_long
from sp.scoring.base import ScoreRequest

NEWLINE = 10


def line_units(request: ScoreRequest, longest: int) -> Ints:
    """Bounds (units + 1,) in tokens of the lines of a prompt, its blank lines joined to those before them.

    A token that reaches over the end of a line belongs to the line it begins in. Lines of more than `longest` tokens
    are cut into parts that differ by one token at most; of a prompt whose text is not known all is one line.
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
    """Places of the tokens of each unit, where the values lie: one gather pools any number of rows.

    `index` int (units, longest unit): tokens of a unit; its last one again where it is shorter; `inside` float32
    (units, longest unit): 1 for the unit's own tokens, 0 for repeated ones; `lengths` float32 (units,).
    """

    index: Any
    inside: Any
    lengths: Any

    @classmethod
    def of(cls, bounds: Ints, like: Any) -> Pool:
        """For units with these bounds, as arrays of the kind of `like`."""
        lengths = np.diff(bounds)
        steps = np.arange(int(lengths.max()))
        index = np.minimum(bounds[:-1, None] + steps, bounds[1:, None] - 1)
        inside = (steps < lengths[:, None]).astype(np.float32)
        xp = array_module(like)
        return cls(xp.asarray(index), xp.asarray(inside), xp.asarray(lengths.astype(np.float32)))

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
