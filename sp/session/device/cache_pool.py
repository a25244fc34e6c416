"""Caches of single sequences, with their CUDA graphs, that are reused from one answer to the next."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from sp.decode import Speculative
from sp.decode.base import GraphDecoder
from sp.decode.speculate import Cycle, new_cycle
from sp.models import Cache, Draft, Model
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.graph import PrefillGraphs
from sp.parallel.group import ParallelGroup

STEPS = 16  # a cache is at least this many times larger than the step to which its size is rounded up
SMALLEST = 512  # tokens of the smallest step


class CacheGraphs:
    """A cache, and on the device the CUDA graphs that prefill and decode with it.

    `reused`: the cache serves several sequences, so that graphs for prefill pay.
    """

    def __init__(self, model: Model, cache: Cache, *, reused: bool = True) -> None:
        self.cache = cache
        self._model, self._weights, self._reused = model, model.weights, reused
        self._greedy: GraphDecoder | None = None
        self._prefill: PrefillGraphs | None = None

    def serves(self, model: Model, cache: Cache) -> bool:
        """Return True if the graphs have captured the addresses of this model's weights and of this cache."""
        return self._model is model and self._weights is model.weights and self.cache is cache

    def greedy(self) -> GraphDecoder | None:
        """Return the decoder with a CUDA graph, on the device."""
        if self._greedy is None and self._model.device == "cuda" and self._model.captures:
            self._greedy = GraphDecoder(self._model, self.cache, self.cache.capacity)
        return self._greedy

    def prefill(self) -> PrefillGraphs | None:
        """Return the graphs for short runs of a prompt, on the device; None for a single prompt, which is read once."""
        if self._prefill is None and self._reused and self._model.device == "cuda":
            self._prefill = PrefillGraphs(self._model, self.cache)
        return self._prefill

    def take_counts(self) -> dict[str, int]:
        """Return and reset the counts of prompt tokens by the way they were read; see `PrefillGraphs.take_counts`."""
        return {} if self._prefill is None else self._prefill.take_counts()

    @property
    def refused(self) -> str | None:
        """Reason why something is launched kernel by kernel instead of as a CUDA graph."""
        return next((graph.refused for graph in self._graphs if graph is not None and graph.refused), None)

    @property
    def graph_nbytes(self) -> int:
        """Size in bytes of the graphs for prefill."""
        return 0 if self._prefill is None else self._prefill.nbytes

    def end(self) -> None:
        """Free everything but the cache."""
        for graphs in (self._greedy, self._prefill):
            if graphs is not None:
                graphs.end()

    @property
    def _graphs(self) -> tuple[GraphDecoder | PrefillGraphs | Cycle | None, ...]:
        return self._greedy, self._prefill


class PooledCache(CacheGraphs):
    """A cache for one sequence, with or without a draft, and its graphs."""

    def __init__(self, model: Model, tokens: int, kv: str, rotate: bool | None, *, reused: bool) -> None:
        super().__init__(model, model.new_cache(tokens, kv, rotate=rotate, once=True), reused=reused)
        self._form = kv, rotate
        self._draft: Draft | None = None
        self._session: DraftSession | None = None
        self._cycle: tuple[int, Cycle] | None = None

    def fits(self, model: Model, tokens: int, kv: str, rotate: bool | None) -> bool:
        """Return True if it can hold such a sequence; not once weights have moved, as graphs contain addresses."""
        return self.serves(model, self.cache) and self._form == (kv, rotate) and tokens <= self.cache.capacity

    def session(self, draft: Draft) -> DraftSession:
        """Return a session of the draft that has no history yet."""
        if self._session is None or self._draft is not draft:
            self._end_cycle()
            # Its buffers are as long as the cache.
            self._draft, self._session = draft, DraftSession.begin(draft, self._model, self.cache.capacity)
        else:
            self._session.reset()
        return self._session

    def cycle(self, decoder: Speculative) -> Cycle:
        """Return the cycle that guesses with the last session and verifies."""
        assert self._session is not None, "a cycle needs a session"
        nodes = decoder.nodes(self._session.block_size)  # graphs are captured for a fixed number of nodes
        if self._cycle is None or self._cycle[0] != nodes:
            self._end_cycle()
            self._cycle = nodes, new_cycle(self._model, self._session, self.cache, nodes)
        return self._cycle[1]

    @property
    def nbytes(self) -> int:
        """Size in bytes of the cache and of the graphs for prefill."""
        return self.cache.nbytes + self.graph_nbytes

    def end(self) -> None:
        """Free everything."""
        self._end_cycle()
        super().end()

    @property
    def _graphs(self) -> tuple[GraphDecoder | PrefillGraphs | Cycle | None, ...]:
        return *super()._graphs, self._cycle and self._cycle[1]

    def _end_cycle(self) -> None:
        if self._cycle is not None:
            self._cycle[1].end()
            self._cycle = None


class CachePool:
    """Hands out caches, and keeps the one returned last for reuse.

    Building its tables and graphs costs as much as many tokens of an answer. With `keep` one cache is kept, on a
    `shelf` that other pools may share. `dropped` counts how often it was dropped; caches of GPUs that share a model
    are in `gpus` instead.
    """

    def __init__(self, keep: bool, shelf: list[PooledCache] | None = None) -> None:
        self._keep = keep
        self._shelf = [] if shelf is None else shelf
        self.dropped = 0
        self.gpus: GPUPools | None = None

    def sharing(self, keep: bool) -> CachePool:
        """Return another pool for the same device that shares the kept cache."""
        other = CachePool(keep, self._shelf)
        other.gpus = self.gpus
        return other

    @property
    def idle(self) -> PooledCache | None:
        """The cache that is kept."""
        return self._shelf[0] if self._shelf else None

    def take(self, model: Model, tokens: int, kv: str, rotate: bool | None) -> PooledCache:
        """Return an empty cache for `tokens` tokens."""
        pooled = self._shelf.pop() if self._shelf else None
        if pooled is not None and pooled.fits(model, tokens, kv, rotate):
            return pooled
        if pooled is not None:
            pooled.end()
            del pooled  # its memory is needed for the new one
        if self._keep and model.device != "cpu":  # rounded up, so that it fits a slightly longer answer, too
            step = max(SMALLEST, (1 << tokens.bit_length()) // STEPS)
            tokens = -(-tokens // step) * step
        return PooledCache(model, tokens, kv, rotate, reused=self._keep)

    def give_back(self, pooled: PooledCache) -> None:
        """Take back a cache after use; it is emptied at once, so that the next answer need not wait for it."""
        if self._keep and pooled.cache.device == "cuda":
            pooled.cache.reset()
            self.drop()
            self._shelf.append(pooled)  # at most one
        else:
            pooled.end()

    def drop(self) -> bool:
        """Free the kept cache, on other GPUs too; returns True if there was any."""
        dropped = self.gpus is not None and self.gpus.drop()
        if self._shelf:
            self._shelf.pop().end()
            dropped = True
        self.dropped += dropped
        return dropped


class CapturedMemory(Protocol):
    """A part of a conversation on GPUs that share a model, with graphs."""

    def end_graphs(self) -> None:
        """End the graphs."""


class GPUPools:
    """A cache pool for each of the GPUs that share a model, and the `memories` of conversations on them."""

    def __init__(self, group: ParallelGroup, keep: bool = True) -> None:
        self.group, self.pools = group, [CachePool(keep) for _ in range(group.size)]
        self.memories = WeakSet[CapturedMemory]()

    def spoiled(self) -> None:
        """Drop kept caches and end all graphs after a run that failed: they have captured its communicators."""
        self.drop()
        for memory in self.memories:
            memory.end_graphs()

    def drop(self) -> bool:
        """Free the kept caches of all GPUs while none is working; returns True if there was any."""
        dropped = False
        for rank, pool in enumerate(self.pools):
            with self.group.device(rank):
                dropped = pool.drop() or dropped
        return dropped
