"""Simulated acceptance: a decoder whose draft and verification run for real, but whose accepted lengths are given.

Random weights in the shapes of a large model have the speed of trained ones, but their drafts are never accepted. The
number of tokens per pass then comes from a trace recorded with a trained pair, or is one length for all passes. All
results that use it are marked `SIMULATED`.
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
from sp.json_lines import ATOM, LIST, OBJECT, TEXT, FieldType, check, check_each, is_whole, read_object, whole
from sp.trace import write_atomic

SIMULATED = "simulated acceptance"  # marks every table, record and plot that uses it

LENGTHS = FieldType(
    "a list of whole numbers of at least 1", lambda row: isinstance(row, list) and all(map(_length, row))
)

DecodeSetting = tuple[str, int]  # method, and budget: draft tokens per pass, 0 for greedy decoding


def _length(value: Any) -> bool:
    return is_whole(value) and value >= 1


@dataclass(frozen=True)
class Acceptance:
    """Accepted lengths of passes, in tokens.

    >>> always = Acceptance.always(8)
    >>> always.of(("ddtree", 22), 16), always.of(("ddtree", 4), 16)
    ((8,), ())
    """

    name: str  # ``"8 a pass"``, or ``"as in accepted.json"``
    origin: str  # where the lengths come from
    lengths: Mapping[DecodeSetting, tuple[int, ...]]  # in recorded order; each at least 1
    constant: int | None = None  # length of all passes, in place of `lengths`

    @classmethod
    def always(cls, tokens: int) -> Acceptance:
        """Accept the same number of tokens in every pass; ConfigError if less than 1."""
        if tokens < 1:
            raise ConfigError(f"--accept {tokens}: a pass of the target gives at least 1 token")
        return cls(f"{tokens} a pass", "chosen, not measured", {}, tokens)

    def of(self, setting: DecodeSetting, block_size: int) -> tuple[int, ...]:
        """Return the lengths of a setting with draft blocks of a size; none if impossible or not in the trace."""
        if self.constant is not None:
            return (self.constant,) if self.constant <= min(setting[1] + 1, block_size) else ()
        return self.lengths.get(setting, ())


def read_trace(path: Path) -> Acceptance:
    """Read accepted lengths that `write_trace` wrote. ConfigError: the file cannot be read or is no such trace."""
    try:
        trace = read_object(path, "a trace of sp bench decode --trace")
        check(trace, {"origin": OBJECT, "accepted": LIST}, str(path))
        check_each(trace["origin"], ATOM.optional, f"{path}: origin")
        for way in trace["accepted"]:
            check({"way": way}, {"way": OBJECT}, f"{path}: accepted")
            check(way, {"method": TEXT, "budget": whole(), "lengths": LENGTHS}, f"{path}: accepted")
    except ConfigError as error:
        raise ConfigError(f"{error}; make a trace of accepted lengths with sp bench decode --trace") from None
    lengths = {(way["method"], way["budget"]): tuple(way["lengths"]) for way in trace["accepted"]}
    origin = ", ".join(f"{name} {value}" for name, value in trace["origin"].items())
    if not lengths or min(min(row, default=0) for row in lengths.values()) < 1:
        raise ConfigError(f"{path}: every method and budget of a trace needs lengths of at least 1; record it again")
    return Acceptance(f"as in {path.name}", origin, lengths)


def write_trace(path: Path, origin: Mapping[str, Any], lengths: Mapping[DecodeSetting, Sequence[int]]) -> Path:
    """Write accepted lengths by method and budget, and their origin, for `read_trace`."""
    ways = [{"method": method, "budget": budget, "lengths": list(row)} for (method, budget), row in lengths.items()]
    meaning = "tokens that each pass of the target gave, the end of an answer included"
    return write_atomic(path, (json.dumps({"what": meaning, "origin": dict(origin), "accepted": ways}) + "\n").encode())


class Simulated(Speculative):
    """Runs a decoder, then accepts the deepest branch up to a given length, whatever the target's tokens are.
    `lengths`: tokens of successive passes, repeated from the first at their end."""

    def __init__(self, decoder: Speculative, lengths: Sequence[int]) -> None:
        self._decoder = decoder
        self._lengths: Iterator[int] = cycle(lengths)

    def nodes(self, block_size: int) -> int:
        """Return the most nodes of a tree of the decoder."""
        return self._decoder.nodes(block_size)

    def first(self, *arguments: Any) -> int:
        """Choose the first token as the decoder does."""
        return self._decoder.first(*arguments)

    def propose(self, *arguments: Any) -> Tree:
        """Propose the decoder's tree."""
        return self._decoder.propose(*arguments)

    def accept(self, tree: Tree, *arguments: Any) -> tuple[Ints, int]:
        """Verify as the decoder does, then return the simulated path and the decoder's next token."""
        _, token = self._decoder.accept(tree, *arguments)
        return deepest(tree)[: next(self._lengths)], token


def deepest(tree: Tree) -> Ints:
    """Return the nodes from the root to the deepest node, the first of several."""
    path = [int(tree.depths.argmax())]
    while (parent := int(tree.parents[path[-1]])) >= 0:
        path.append(parent)
    return np.array(path[::-1])
