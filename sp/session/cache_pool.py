"""CachePool: the cache of one answer and what decodes from it, kept for the next answer that fits in it.

On the device a cache, its tables and the graphs that read them cost an answer's first tokens as much as many tokens
after. All of it stays where it is, and is only emptied.
"""

from __future__ import annotations

from sp.decode import Speculative
from sp.decode.cycle import Cycle
from sp.decode.graph import GraphDecoder
from sp.decode.graph_cycle import new_cycle
from sp.models import Cache, Draft, Model
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.graph import PrefillGraphs
from sp.parallel.group import Group

STEPS = 16
"""Caches are this many times larger than the steps by which they grow."""
SMALLEST = 512


class CacheGraphs:
    """A cache, and on the device the CUDA graphs that read into it and decode from it.

    With `kept` it is to serve more than one sequence.
    """

    def __init__(self, model: Model, cache: Cache, *, kept: bool = True) -> None:
        self.cache = cache
        self._model, self._trunk, self._kept = model, model.trunk, kept
        self._greedy: GraphDecoder | None = None
        self._prefill: PrefillGraphs | None = None

    def serves(self, model: Model, cache: Cache) -> bool:
        """Whether graphs know where the weights of a model and a cache lie."""
        return self._model is model and self._trunk is model.trunk and self.cache is cache

    def greedy(self) -> GraphDecoder | None:
        """What decodes greedily, on the device."""
        if self._greedy is None and self._model.device == "cuda" and self._model.captures:
            self._greedy = GraphDecoder(self._model, self.cache, self.cache.capacity)
        return self._greedy

    def prefill(self) -> PrefillGraphs | None:
        """What reads short runs of a prompt, on the device; None for one prompt, which would be read but once."""
        if self._prefill is None and self._kept and self._model.device == "cuda":
            self._prefill = PrefillGraphs(self._model, self.cache)
        return self._prefill

    def told(self) -> dict[str, int]:
        """Tokens of prompts read since this was asked last, by how; see `PrefillGraphs.told`."""
        return {} if self._prefill is None else self._prefill.told()

    @property
    def graph_nbytes(self) -> int:
        """Bytes of what reads prompts."""
        return 0 if self._prefill is None else self._prefill.nbytes

    def end(self) -> None:
        """Let go of everything but the cache."""
        for graphs in (self._greedy, self._prefill):
            if graphs is not None:
                graphs.end()


class PooledCache(CacheGraphs):
    """Room for one sequence, with or without a draft."""

    def __init__(self, model: Model, tokens: int, kv: str, rotate: bool | None, *, kept: bool) -> None:
        super().__init__(model, model.new_cache(tokens, kv, rotate=rotate), kept=kept)
        self._form = kv, rotate
        self._draft: Draft | None = None
        self._session: DraftSession | None = None
        self._cycle: tuple[int, Cycle] | None = None

    def fits(self, model: Model, tokens: int, kv: str, rotate: bool | None) -> bool:
        """Whether it does for such a sequence; not once weights have moved, for graphs know where they lay."""
        return self.serves(model, self.cache) and self._form == (kv, rotate) and tokens <= self.cache.capacity

    @property
    def refused(self) -> str | None:
        """Why something is launched kernel by kernel that would be a CUDA graph."""
        made = self._greedy, self._prefill, self._cycle and self._cycle[1]
        return next((one.refused for one in made if one is not None and one.refused), None)

    def session(self, draft: Draft) -> DraftSession:
        """A draft that remembers nothing yet."""
        if self._session is None or self._draft is not draft:
            self._end_cycle()
            self._draft, self._session = draft, DraftSession.begin(draft, self._model, self.cache.capacity)
        else:
            self._session.reset()
        return self._session

    def cycle(self, decoder: Speculative) -> Cycle:
        """What guesses and verifies by the session taken last."""
        assert self._session is not None, "a cycle needs a session"
        nodes = decoder.nodes(self._session.block_size)
        if self._cycle is None or self._cycle[0] != nodes:
            self._end_cycle()
            self._cycle = nodes, new_cycle(self._model, self._session, self.cache, nodes)
        return self._cycle[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the cache, and of what reads prompts into it."""
        return self.cache.nbytes + self.graph_nbytes

    def end(self) -> None:
        """Let go of everything."""
        self._end_cycle()
        super().end()

    def _end_cycle(self) -> None:
        if self._cycle is not None:
            self._cycle[1].end()
            self._cycle = None


class CachePool:
    """Lends caches, and keeps the one that came back last.

    With `keep` one is kept, on a `shelf` that others may share. `dropped` counts how often it had to go; caches of
    cards that share a model lie in `cards` and not here.
    """

    def __init__(self, keep: bool, shelf: list[PooledCache] | None = None) -> None:
        self._keep = keep
        self._shelf = [] if shelf is None else shelf
        self.dropped = 0
        self.cards: CardPools | None = None

    def sharing(self, keep: bool) -> CachePool:
        """Another for the same device, which lends and drops what this one keeps."""
        other = CachePool(keep, self._shelf)
        other.cards = self.cards
        return other

    def spread(self, group: Group) -> None:
        """Keep caches on the cards of a group from now on."""
        self.cards = self.cards or CardPools(group)

    @property
    def idle(self) -> PooledCache | None:
        """What is kept."""
        return self._shelf[0] if self._shelf else None

    def take(self, model: Model, tokens: int, kv: str, rotate: bool | None) -> PooledCache:
        """An empty cache for `tokens` tokens."""
        pooled = self._shelf.pop() if self._shelf else None
        if pooled is not None and pooled.fits(model, tokens, kv, rotate):
            return pooled
        if pooled is not None:
            pooled.end()
            del pooled  # before memory is asked for
        if self._keep and model.device != "cpu":  # a few tokens more, so that an answer a little longer fits too
            step = max(SMALLEST, (1 << tokens.bit_length()) // STEPS)
            tokens = -(-tokens // step) * step
        return PooledCache(model, tokens, kv, rotate, kept=self._keep)

    def give_back(self, pooled: PooledCache) -> None:
        """Take a cache back that is used no more; it is emptied at once, not while the next answer waits for it."""
        if self._keep and pooled.cache.device == "cuda":
            pooled.cache.reset()
            self.drop()
            self._shelf.append(pooled)
        else:
            pooled.end()

    def drop(self) -> bool:
        """Let go of what is kept, on cards too, and tell whether there was anything."""
        found = self.cards is not None and self.cards.drop()
        if self._shelf:
            self._shelf.pop().end()
            found = True
        self.dropped += found
        return found


class CardPools:
    """A pool for each of the cards that share a model."""

    def __init__(self, group: Group, keep: bool = True) -> None:
        self.group, self.pools = group, [CachePool(keep) for _ in range(group.size)]

    def drop(self) -> bool:
        """Let go of what is kept on any card, and tell whether there was anything; while no card is at work."""
        found = False
        for rank, pool in enumerate(self.pools):
            with self.group.at(rank):
                found = pool.drop() or found
        return found
