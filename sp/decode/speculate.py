"""Decoding in cycles: a draft guesses, and the target verifies many tokens at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sp.arrays import Floats, Ints
from sp.decode.base import Decoder
from sp.models import Cache, Model
from sp.models.layer.steps import Nodes
from sp.models.run.captured_graph import CapturedGraph, CaptureStream, PinnedStaging
from sp.models.run.chunked import check_context
from sp.models.run.tree import MOST_NODES, TreePass, TreeReader, ancestry
from sp.ops.feature_rows import pick_features


@dataclass(frozen=True)
class Tree:
    """Tokens that may come next, read by the target in one pass."""

    tokens: Ints  # the first is known already, the others are guesses
    parents: Ints  # index of the token before each; less than its own, -1 for the first

    @cached_property
    def depths(self) -> Ints:
        """Tokens of the tree before each one on its path."""
        depths = np.zeros(len(self.parents), np.int64)
        for node, parent in enumerate(self.parents[1:], 1):
            depths[node] = depths[parent] + 1
        return depths


class Speculative(Decoder, ABC):
    """Guesses of a draft, verified by the target many at a time.

    Logits lie where the models run; what decides about tokens comes to the host.
    """

    @abstractmethod
    def nodes(self, block_size: int) -> int:
        """Most nodes of a tree, where the draft's blocks have `block_size` tokens; `MOST_NODES` at most."""

    @abstractmethod
    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        """The token after the prompt, from its logits (vocab,)."""

    @abstractmethod
    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        """A tree whose first token is `token`, from the draft's logits (depth, vocab) of those after it."""

    @abstractmethod
    def accept(self, tree: Tree, guessed: Floats, seen: TreePass, rng: np.random.Generator) -> tuple[Ints, int]:
        """What the target makes of the tree.

        Parameters
        ----------
        tree : Tree
            As proposed from `guessed`.
        seen : TreePass
            Of the nodes of the tree, and perhaps of others behind them.

        Returns
        -------
        path : int64 (kept,)
            Nodes that are part of the answer, from the first on.
        token : int
            The one after them.
        """


class Guesser(Protocol):
    """A draft at work on one sequence, for example a `DraftSession`."""

    block_size: int
    layers: tuple[int, ...]

    def remember(self, features: Floats, positions: Ints) -> None:
        """Take in the outputs of `layers` for tokens the target has read."""
        ...

    def guess(self, token: int, position: int, depth: int) -> Floats:
        """Logits (depth, vocab) of the tokens after `token`, where the target is; they stay until the next guess."""
        ...

    def end(self) -> None:
        """Let go of what only goes on guessing needs."""
        ...


class Cycle:
    """A target and a guesser at work on one sequence, each call launched as it comes. `guesser`: remembers all that
    `cache` holds.
    """

    def __init__(self, model: Model, guesser: Guesser, cache: Cache, nodes: int) -> None:
        self._guesser, self.block_size = guesser, guesser.block_size
        self._reader = TreeReader(model, cache, guesser.layers, nodes)

    @property
    def refused(self) -> str | None:
        """Why a pass is launched kernel by kernel that would be a CUDA graph; None where nothing is in the way."""
        return None

    def working(self) -> AbstractContextManager[None]:
        """Around all other calls and what is made of their results."""
        return nullcontext()

    def guess(self, token: int, position: int, depth: int) -> Floats:
        return self._guesser.guess(token, position, depth)

    def read(self, tree: Tree, position: int) -> TreePass:
        """Read a tree whose first token stands at `position`. The result may come with more nodes behind its own."""
        return self._reader.read_tree(tree.tokens, tree.parents, position + tree.depths)

    def keep(self, path: Ints) -> None:
        """Keep a path of the tree just read."""
        self._reader.commit_path(path)

    def remember(self, path: Ints, positions: Ints) -> None:
        """Have the guesser take in the path just kept, whose nodes stand at `positions`."""
        self._guesser.remember(self._reader.features[path], positions)

    def rest(self) -> None:
        """Wait for all work."""

    def end(self) -> None:
        """Wait for all work and let go of its memory."""
        self._guesser.end()


class GraphCycle(Cycle):
    """A cycle on the device, see `Cycle`; a tree and a path are read and kept launch by launch the first time alone."""

    def __init__(self, model: Model, guesser: Guesser, cache: Cache, nodes: int) -> None:
        super().__init__(model, guesser, cache, nodes)
        self._model, self._cache, self._nodes = model, cache, nodes
        self._lane = CaptureStream()
        self._tree = PinnedStaging(ids=(np.int32, nodes), positions=(np.int64, nodes), seen=(np.uint64, nodes))
        self._path = PinnedStaging(path=(np.int32, MOST_NODES), kept=(np.int32, 1))
        self._picked: Any = None
        how: dict[str, Any] = {"agreed": model.agreed, "cache": cache}
        self._reading: CapturedGraph[TreePass] = CapturedGraph(**how)
        self._keeping: CapturedGraph[Any] = CapturedGraph(**how)

    @property
    def refused(self) -> str | None:
        return self._reading.refused or self._keeping.refused

    def working(self) -> AbstractContextManager[None]:
        """See `Cycle`: a stream and memory of its own."""
        return self._lane.working()

    def read(self, tree: Tree, position: int) -> TreePass:
        n, nodes = len(tree.tokens), self._nodes
        assert n <= nodes, f"a tree of {n} nodes for graphs of {nodes}"
        positions = position + tree.depths
        check_context(self._model, positions)
        self._cache.reserve(nodes)
        host = self._tree.open()
        for name, values in (("ids", tree.tokens), ("positions", positions), ("seen", ancestry(tree.parents))):
            host[name][:n] = values
            host[name][n:] = values[0]
        host["seen"][n:] |= np.uint64(1) << np.arange(n, nodes, dtype=np.uint64)
        self._tree.send()
        counting = self._reading.ready
        seen = self._reading(self._read)
        if counting:  # while the device is at work
            self._cache.count(nodes)
        self._model.settled()
        return seen

    def keep(self, path: Ints) -> None:
        host = self._path.open()
        host["path"][: len(path)] = path
        host["kept"][:] = len(path)
        self._path.send()
        self._picked = self._keeping(self._keep)
        self._cache.count(len(path) - self._nodes)

    def remember(self, path: Ints, positions: Ints) -> None:
        self._guesser.remember(self._picked[: len(path)], positions)

    def rest(self) -> None:
        self._lane.stream.synchronize()

    def end(self) -> None:
        self.rest()
        self._picked = None
        self._reading.clear()
        self._keeping.clear()
        super().end()
        self._lane.end()

    def _read(self) -> TreePass:
        tree = self._tree.device
        return self._reader.read(Nodes(tree["ids"], tree["positions"], tree["seen"]))

    def _keep(self) -> Any:
        """Keep the path; features of its nodes, as many rows as a tree has nodes."""
        path, kept = self._path.device["path"], self._path.device["kept"]
        self._reader.keep(self._nodes, path, kept)
        if not self._reader.layers:
            return self._reader.features
        picked, _ = pick_features(self._reader.features, self._tree.device["positions"], path, kept, self._nodes)
        return picked


def new_cycle(model: Model, guesser: Guesser, cache: Cache, nodes: int) -> Cycle:
    """A cycle for trees of at most `nodes` nodes; on the device in CUDA graphs, where the model can be captured."""
    kind = GraphCycle if model.device == "cuda" and model.captures else Cycle
    return kind(model, guesser, cache, nodes)


def speculate(
    model: Model,
    guesser: Guesser,
    decoder: Speculative,
    logits: Floats,
    position: int,
    cache: Cache,
    *,
    limit: int,
    seed: int = 0,
    on_pass: Callable[[int], None] | None = None,
    cycle: Cycle | None = None,
) -> Generator[int]:
    """Tokens of the answer one by one, up to `limit`: those of `sp.decode.base.generate`, in fewer passes.

    A pass reads many tokens together, whose sums are rounded in another order than one by one; the answers can part
    where the two likeliest tokens are that close.

    `guesser`: remembers all that `cache` holds; `decoder`: what is guessed, and what of it stands; `logits` float32
    (vocab,): of the last token read; `cache`: with room for ``limit - 1 + decoder.nodes(guesser.block_size)`` more
    tokens. Whoever stops early finds it further on; `seed`: of the random numbers where tokens are sampled; `on_pass`:
    called with the tokens each pass of the target gave; `cycle`: of the same model, guesser and cache, and of as many
    nodes, that goes on living; by default one is made.
    """
    rng = np.random.default_rng(seed)
    token, left = decoder.first(logits, rng), limit - 1
    yield token
    if not left:
        return
    mine = cycle or new_cycle(model, guesser, cache, decoder.nodes(guesser.block_size))
    try:
        while left:
            known, token = _round(mine, decoder, token, position, left, rng)
            left, position = left - len(known), position + len(known)
            if on_pass is not None:
                on_pass(len(known))
            yield from known[1:]
            yield token
    finally:
        mine.rest() if cycle else mine.end()


def _round(
    cycle: Cycle, decoder: Speculative, token: int, position: int, left: int, rng: np.random.Generator
) -> tuple[list[int], int]:
    """Tokens that stand, `token` itself the first of them, and the one after; `left` are wanted in all."""
    with cycle.working():
        depth = min(cycle.block_size - 1, left - 1)  # the target itself gives one token a pass
        guessed = cycle.guess(token, position, depth) if depth else np.empty((0, 1), np.float32)
        tree = decoder.propose(token, guessed, rng)
        path, after = decoder.accept(tree, guessed, cycle.read(tree, position), rng)
        cycle.keep(path)
        if left > len(path):
            cycle.remember(path, position + tree.depths[path])
    return tree.tokens[path].tolist(), after
