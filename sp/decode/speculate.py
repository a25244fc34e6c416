"""Speculative decoding in cycles: a draft proposes tokens, and the target verifies many of them in one pass."""

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
    """Candidate tokens that the target reads in one pass."""

    tokens: Ints  # (nodes,) the first is known, the others are guesses
    parents: Ints  # (nodes,) index of the token before each, below its own; -1 for the first

    @cached_property
    def depths(self) -> Ints:
        """Number of tokens before each one on its path, int64 (nodes,)."""
        depths = np.zeros(len(self.parents), np.int64)
        for node, parent in enumerate(self.parents[1:], 1):
            depths[node] = depths[parent] + 1
        return depths


class Speculative(Decoder, ABC):
    """A decoder whose draft's guesses the target verifies many at a time.

    Logits stay where the models run; the numbers that decide about tokens are copied to the host.
    """

    @abstractmethod
    def nodes(self, block_size: int) -> int:
        """Return the most nodes of a tree for draft blocks of `block_size` tokens; at most `MOST_NODES`."""

    @abstractmethod
    def first(self, logits: Floats, rng: np.random.Generator) -> int:
        """Choose the token after the prompt from its logits (vocab,)."""

    @abstractmethod
    def propose(self, token: int, guessed: Floats, rng: np.random.Generator) -> Tree:
        """Return a tree whose first token is `token`, from the draft's logits (depth, vocab) of the tokens after it."""

    @abstractmethod
    def accept(self, tree: Tree, guessed: Floats, seen: TreePass, rng: np.random.Generator) -> tuple[Ints, int]:
        """Decide which part of the tree becomes part of the answer.

        Parameters
        ----------
        tree : Tree
            The tree proposed from `guessed`.
        guessed : float32 (depth, vocab)
            The draft's logits.
        seen : TreePass
            The target's results for the nodes of the tree, possibly followed by padding nodes.
        rng : numpy.random.Generator

        Returns
        -------
        path : int64 (accepted,)
            Accepted nodes, from the first on.
        token : int
            The target's token after them.
        """


class Guesser(Protocol):
    """A draft at work on one sequence, for example a `DraftSession`."""

    block_size: int
    layers: tuple[int, ...]

    def remember(self, features: Floats, positions: Ints) -> None:
        """Take in the outputs of `layers` for tokens the target has read."""
        ...

    def guess(self, token: int, position: int, depth: int) -> Floats:
        """Return logits (depth, vocab) of the tokens after `token`, on the target's device until the next call."""
        ...

    def end(self) -> None:
        """Free what only further guesses need."""
        ...


class Cycle:
    """A target and a draft at work on one sequence, launched kernel by kernel.

    `guesser`: has taken in all tokens that `cache` holds.
    """

    def __init__(self, model: Model, guesser: Guesser, cache: Cache, nodes: int) -> None:
        self._guesser, self.block_size = guesser, guesser.block_size
        self._reader = TreeReader(model, cache, guesser.layers, nodes)

    @property
    def refused(self) -> str | None:
        """Reason why a pass is launched kernel by kernel instead of as a CUDA graph; None if there is none."""
        return None

    def working(self) -> AbstractContextManager[None]:
        """Return the context for all other calls and for the use of their results."""
        return nullcontext()

    def guess(self, token: int, position: int, depth: int) -> Floats:
        return self._guesser.guess(token, position, depth)

    def verify(self, tree: Tree, position: int) -> TreePass:
        """Let the target read a tree whose first token is at `position`; padding nodes may follow its own."""
        return self._reader.read_tree(tree.tokens, tree.parents, position + tree.depths)

    def commit(self, path: Ints) -> None:
        """Commit a path of the tree just read to the cache."""
        self._reader.commit_path(path)

    def remember(self, path: Ints, positions: Ints) -> None:
        """Let the draft take in the committed path, whose nodes are at `positions`."""
        self._guesser.remember(self._reader.features[path], positions)

    def rest(self) -> None:
        """Wait for all work."""

    def end(self) -> None:
        """Wait for all work and free its memory."""
        self._guesser.end()


class GraphCycle(Cycle):
    """A cycle on the device as CUDA graphs, see `Cycle`; only the first tree and path are launched eagerly."""

    def __init__(self, model: Model, guesser: Guesser, cache: Cache, nodes: int) -> None:
        super().__init__(model, guesser, cache, nodes)
        self._model, self._cache, self._nodes = model, cache, nodes
        self._capture = CaptureStream()
        self._tree = PinnedStaging(ids=(np.int32, nodes), positions=(np.int64, nodes), seen=(np.uint64, nodes))
        self._path = PinnedStaging(path=(np.int32, MOST_NODES), accepted=(np.int32, 1))
        self._picked: Any = None
        options: dict[str, Any] = {"all_agree": model.all_agree, "cache": cache}
        self._verifying: CapturedGraph[TreePass] = CapturedGraph(**options)
        self._committing: CapturedGraph[Any] = CapturedGraph(**options)

    @property
    def refused(self) -> str | None:
        return self._verifying.refused or self._committing.refused

    def working(self) -> AbstractContextManager[None]:
        """Return the context that puts work on a stream and in memory of its own; see `Cycle`."""
        return self._capture.working()

    def verify(self, tree: Tree, position: int) -> TreePass:
        n, nodes = len(tree.tokens), self._nodes
        assert n <= nodes, f"a tree of {n} nodes for graphs of {nodes}"
        positions = position + tree.depths
        check_context(self._model, positions)  # before anything is launched
        self._cache.reserve(nodes)  # pages for all nodes, as a graph cannot allocate
        host = self._tree.open()
        # A graph always has `nodes` nodes: those beyond the tree repeat its first token and see only it and themselves.
        for name, values in (("ids", tree.tokens), ("positions", positions), ("seen", ancestry(tree.parents))):
            host[name][:n] = values
            host[name][n:] = values[0]
        host["seen"][n:] |= np.uint64(1) << np.arange(n, nodes, dtype=np.uint64)
        self._tree.send()
        counting = self._verifying.ready
        seen = self._verifying(self._verify)
        if counting:  # a replay runs no Python; the host counts while the device works
            self._cache.count(nodes)
        self._model.wait_until_done()
        return seen

    def commit(self, path: Ints) -> None:
        host = self._path.open()
        host["path"][: len(path)] = path
        host["accepted"][:] = len(path)
        self._path.send()
        self._picked = self._committing(self._commit)
        self._cache.count(len(path) - self._nodes)  # `verify` counted all nodes

    def remember(self, path: Ints, positions: Ints) -> None:
        self._guesser.remember(self._picked[: len(path)], positions)

    def rest(self) -> None:
        self._capture.stream.synchronize()

    def end(self) -> None:
        self.rest()
        self._picked = None
        self._verifying.clear()
        self._committing.clear()
        super().end()
        self._capture.end()

    def _verify(self) -> TreePass:
        tree = self._tree.device
        return self._reader.read_nodes(Nodes(tree["ids"], tree["positions"], tree["seen"]))

    def _commit(self) -> Any:
        """Commit the path; returns features of its nodes, padded to as many rows as a tree has nodes."""
        path, accepted = self._path.device["path"], self._path.device["accepted"]
        self._reader.commit(self._nodes, path, accepted)
        if not self._reader.layers:
            return self._reader.features
        # Picked on the device, so that the host need not know the path to launch the next step.
        picked, _ = pick_features(self._reader.features, self._tree.device["positions"], path, accepted, self._nodes)
        return picked


def new_cycle(model: Model, guesser: Guesser, cache: Cache, nodes: int) -> Cycle:
    """Return a cycle for trees of at most `nodes` nodes; as CUDA graphs where the model can be captured."""
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
    """Yield up to `limit` tokens of the answer: those of `sp.decode.base.generate`, in fewer passes.

    A pass reads many tokens together, whose sums are rounded in another order than for single tokens; the answers can
    differ where the two likeliest tokens are that close.

    Parameters
    ----------
    model : Model
    guesser : Guesser
        Has taken in all tokens that `cache` holds.
    decoder : Speculative
        Decides which tokens are proposed and which are accepted.
    logits : float32 (vocab,)
        Logits of the last token in the cache.
    position : int
        Position of the first generated token.
    cache : Cache
        With room for ``limit - 1 + decoder.nodes(guesser.block_size)`` more tokens. If the caller stops early, it may
        hold more tokens than were yielded.
    limit : int
    seed : int
        Seed of the random numbers where tokens are sampled.
    on_pass : callable, optional
        Called with the number of tokens that each pass of the target gave.
    cycle : Cycle, optional
        A cycle of the same model, guesser, cache and number of nodes that outlives the call; by default one is created.
    """
    rng = np.random.default_rng(seed)  # on the host, where tokens are accepted
    token, remaining = decoder.first(logits, rng), limit - 1
    yield token
    if not remaining:
        return
    own_cycle = cycle or new_cycle(model, guesser, cache, decoder.nodes(guesser.block_size))
    try:
        while remaining:
            known, token = _round(own_cycle, decoder, token, position, remaining, rng)
            remaining, position = remaining - len(known), position + len(known)
            if on_pass is not None:
                on_pass(len(known))
            yield from known[1:]
            yield token
    finally:
        own_cycle.rest() if cycle else own_cycle.end()


def _round(
    cycle: Cycle, decoder: Speculative, token: int, position: int, remaining: int, rng: np.random.Generator
) -> tuple[list[int], int]:
    """Run one cycle; returns the accepted tokens, `token` first, and the one after them.

    `remaining`: tokens still wanted in all.
    """
    with cycle.working():
        depth = min(cycle.block_size - 1, remaining - 1)  # the target itself gives one token a pass
        guessed = cycle.guess(token, position, depth) if depth else np.empty((0, 1), np.float32)  # (depth, vocab)
        tree = decoder.propose(token, guessed, rng)
        path, after = decoder.accept(tree, guessed, cycle.verify(tree, position), rng)
        cycle.commit(path)
        if remaining > len(path):  # the draft need not follow to the end of the answer
            cycle.remember(path, position + tree.depths[path])
    return tree.tokens[path].tolist(), after
