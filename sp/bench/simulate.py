"""Simulated acceptance: a decoder whose draft and verification run for real, but whose guesses are taken as told.

Random weights in the shapes of a large model have the speed of the trained ones but guess nothing right. How many
tokens stand in each pass then comes from elsewhere: a trace recorded on a pair that was trained, or one length for
all. Whatever rests on it says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.decode.speculate import Speculative, Tree
from sp.errors import ConfigError
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, Wanted, check, check_each, is_whole, read_object, whole
from sp.trace import write_atomic

SIMULATED = "simulated acceptance"  # stands in every table, record and plot that rests on it

LENGTHS = Wanted("a list of whole numbers of at least 1", lambda row: isinstance(row, list) and all(map(_length, row)))

Way = tuple[str, int]  # method and budget: guesses in a pass, 0 for greedy decoding


def _length(value: Any) -> bool:
    return is_whole(value) and value >= 1


@dataclass(frozen=True)
class Acceptance:
    """Tokens that passes are taken to give.

    >>> always = Acceptance.always(8)
    >>> always.of(("ddtree", 22), 16), always.of(("ddtree", 4), 16)
    ((8,), ())
    """

    name: str  # ``"8 a pass"``, or ``"as in accepted.json"``
    origin: str  # where the lengths come from
    lengths: Mapping[Way, tuple[int, ...]]  # by method and budget, in recorded order; each at least 1
    constant: int | None = None  # the one length of all passes, in place of `lengths`

    @classmethod
    def always(cls, tokens: int) -> Acceptance:
        """The same number of tokens in every pass; ConfigError if less than 1."""
        if tokens < 1:
            raise ConfigError(f"--accept {tokens}: a pass of the target gives at least 1 token")
        return cls(f"{tokens} a pass", "chosen, not measured", {}, tokens)

    def of(self, way: Way, block_size: int) -> tuple[int, ...]:
        """Lengths of a way with blocks of a size; none where it cannot have them or the trace does not tell of it."""
        if self.constant is not None:
            return (self.constant,) if self.constant <= min(way[1] + 1, block_size) else ()
        return self.lengths.get(way, ())


def read_trace(path: Path) -> Acceptance:
    """Accepted lengths that `write_trace` wrote. ConfigError: the file cannot be read or holds something else."""
    try:
        found = read_object(path, "a trace of sp bench decode --trace")
        check(found, {"origin": OBJECT, "accepted": LIST}, str(path))
        check_each(found["origin"], ATOM.optional, f"{path}: origin")
        for way in found["accepted"]:
            check({"way": way}, {"way": OBJECT}, f"{path}: accepted")
            check(way, {"method": TEXT, "budget": whole(), "lengths": LENGTHS}, f"{path}: accepted")
    except ConfigError as error:
        raise ConfigError(f"{error}; make a trace of accepted lengths with sp bench decode --trace") from None
    lengths = {(way["method"], way["budget"]): tuple(way["lengths"]) for way in found["accepted"]}
    origin = ", ".join(f"{name} {value}" for name, value in found["origin"].items())
    if not lengths or min(min(one, default=0) for one in lengths.values()) < 1:
        raise ConfigError(f"{path}: every method and budget of a trace needs lengths of at least 1; record it anew")
    return Acceptance(f"as in {path.name}", origin, lengths)


def write_trace(path: Path, origin: Mapping[str, Any], lengths: Mapping[Way, Sequence[int]]) -> Path:
    """Write accepted lengths by method and budget, with where they come from, for `read_trace`."""
    ways = [{"method": method, "budget": budget, "lengths": list(one)} for (method, budget), one in lengths.items()]
    what = "tokens that each pass of the target gave, the end of an answer included"
    return write_atomic(path, (json.dumps({"what": what, "origin": dict(origin), "accepted": ways}) + "\n").encode())


class Simulated(Speculative):
    """Does all that a decoder does, then takes the deepest branch as far as told, whatever the target says: `lengths`
    are tokens of one pass after the other, from the first again at the end."""

    def __init__(self, decoder: Speculative, lengths: Sequence[int]) -> None:
        self._decoder = decoder
        self._lengths: Iterator[int] = cycle(lengths)

    def nodes(self, block_size: int) -> int:
        """See `Speculative`."""
        return self._decoder.nodes(block_size)

    def first(self, *given: Any) -> int:
        """See `Speculative`."""
        return self._decoder.first(*given)

    def propose(self, *given: Any) -> Tree:
        """See `Speculative`."""
        return self._decoder.propose(*given)

    def accept(self, tree: Tree, *given: Any) -> tuple[Ints, int]:
        """See `Speculative`."""
        _, token = self._decoder.accept(tree, *given)
        return deepest(tree)[: next(self._lengths)], token


def deepest(tree: Tree) -> Ints:
    """Nodes from the first one to the deepest; of several the first."""
    path = [int(tree.depths.argmax())]
    while (parent := int(tree.parents[path[-1]])) >= 0:
        path.append(parent)
    return np.array(path[::-1])
