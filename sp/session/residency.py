"""Residency: two models share a GPU by a byte budget; caches are lent and kept, and what is not needed leaves.

Nothing is planned from formulas. Whoever works asks for memory as always, by way of `Residency`'s allocator; where the
budget has none left, parts of the model that is not at work leave the device, one after the other, and only when none
is left is the request refused. Weights never change, so a part is copied to the host once; from then on leaving costs
nothing and coming back one copy over the bus, on a stream of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from traceback import clear_frames
from typing import Any, TypeVar
from weakref import WeakSet

from sp.decode import Speculative
from sp.decode.base import GraphDecoder
from sp.decode.speculate import Cycle, new_cycle
from sp.errors import DeviceError
from sp.kernels import device_errors, import_cupy
from sp.models import Cache, Draft, Model
from sp.models.device.parts import Parts
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.graph import PrefillGraphs
from sp.models.shards.shards import SharedModel
from sp.parallel.group import ParallelGroup
from sp.session.device_memory import Guest, Journal, Meter, Pool
from sp.session.loaded import Loaded

STEPS = 16  # caches are this many times larger than the steps by which they grow
SMALLEST = 512


class CacheGraphs:
    """A cache, and on the device the CUDA graphs that read into it and decode from it; `kept` for several sequences."""

    def __init__(self, model: Model, cache: Cache, *, kept: bool = True) -> None:
        self.cache = cache
        self._model, self._weights, self._kept = model, model.weights, kept
        self._greedy: GraphDecoder | None = None
        self._prefill: PrefillGraphs | None = None

    def serves(self, model: Model, cache: Cache) -> bool:
        """Whether graphs know where the weights of a model and a cache lie."""
        return self._model is model and self._weights is model.weights and self.cache is cache

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

    def take_counts(self) -> dict[str, int]:
        """Tokens of prompts read since this was asked last, by how; see `PrefillGraphs.take_counts`."""
        return {} if self._prefill is None else self._prefill.take_counts()

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
        super().__init__(model, model.new_cache(tokens, kv, rotate=rotate, once=True), kept=kept)
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
    """Lends caches, and keeps the one that came back last: with its tables and graphs it costs an answer's first tokens
    as much as many tokens after. With `keep` one is kept, on a `shelf` that others may share. `dropped` counts how
    often it had to go; caches of GPUs that share a model lie in `gpus` and not here.
    """

    def __init__(self, keep: bool, shelf: list[PooledCache] | None = None) -> None:
        self._keep = keep
        self._shelf = [] if shelf is None else shelf
        self.dropped = 0
        self.gpus: GPUPools | None = None

    def sharing(self, keep: bool) -> CachePool:
        """Another for the same device, which lends and drops what this one keeps."""
        other = CachePool(keep, self._shelf)
        other.gpus = self.gpus
        return other

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
        """Let go of what is kept, on GPUs too, and tell whether there was anything."""
        found = self.gpus is not None and self.gpus.drop()
        if self._shelf:
            self._shelf.pop().end()
            found = True
        self.dropped += found
        return found


class GPUPools:
    """A pool for each of the GPUs that share a model."""

    def __init__(self, group: ParallelGroup, keep: bool = True) -> None:
        self.group, self.pools = group, [CachePool(keep) for _ in range(group.size)]

    def drop(self) -> bool:
        """Let go of what is kept on any GPU, and tell whether there was anything; while no GPU is at work."""
        found = False
        for rank, pool in enumerate(self.pools):
            with self.group.device(rank):
                found = pool.drop() or found
        return found


Made = TypeVar("Made")


@dataclass
class Residency:
    """Who is on the device. `budget`: most bytes CuPy's default pool may take from the driver, for models, caches and
    work together; the whole GPU if left out. Kernels and the driver's own context are not counted.
    """

    budget: int | None = None
    cache_pool: CachePool = field(init=False)
    pool: Pool = field(init=False)
    guests: WeakSet[Guest] = field(default_factory=WeakSet)
    _left: int = 0
    _models: dict[str, Parts] = field(default_factory=dict)
    _busy: str | None = None
    _offloaded_for: dict[tuple[str, int], dict[str, list[str]]] = field(default_factory=dict)
    _stream: Any = None
    _journal: Journal = field(default_factory=Journal)
    _meter: Meter | None = None

    def __post_init__(self) -> None:
        # Within a budget what lies about between answers would cut the free memory in two.
        self.cache_pool = CachePool(keep=self.budget is None)
        self.pool = Pool(self.budget)

    def within(self, budget: int | None) -> Residency:
        """The same models under another budget, which holds from its next use on."""
        other = replace(self, budget=budget, _offloaded_for={})
        other.cache_pool = self.cache_pool.sharing(keep=budget is None)
        return other

    def load(self, name: str, make: Callable[[], Loaded]) -> Loaded:
        """Load a model on the device and take it on; those that are there already leave for it if they must."""
        start = time.perf_counter()
        with self._allocating():
            made = make()
        self.add(name, made.model, start)
        return made

    def hold(self, name: str, make: Callable[[], Draft]) -> Draft:
        """Make what stays on the device as long as it lives; models that are there leave for it if they must."""
        start = time.perf_counter()
        with self._allocating():
            made = make()
        self._journal.note("load", name, 1, made.nbytes, start, time.perf_counter() - start)
        return made

    def add(self, name: str, model: Model, since: float | None = None) -> None:
        """Take a model on, loaded `since` then; one on the CPU is nobody's concern, a known one stays as it is."""
        if isinstance(model, SharedModel):  # it never leaves; what its GPUs keep between answers may
            self.cache_pool.gpus = self.cache_pool.gpus or GPUPools(model.shards.group)
        elif model.device != "cpu" and not (name in self._models and self._models[name].model is model):
            self._models[name] = parts = Parts(model)
            times = () if since is None else (since, time.perf_counter() - since)
            self._journal.note("load", name, len(parts.sizes), sum(parts.sizes.values()), *times)

    @contextmanager
    def using(self, name: str, tokens: int) -> Iterator[None]:
        """Inside, the model `name` is at work on `tokens` tokens and wholly on the device. DeviceError: the memory is
        full and nothing is left that could leave.
        """
        if name not in self._models:
            yield
            return
        with self._allocating():
            self._busy = name
            try:
                self.prepare(name, tokens)
                before = self._away(name)
                yield
                if (away := self._away(name)) != before:
                    self._offloaded_for[name, tokens.bit_length()] = away
            finally:
                self._busy = None

    def attempt(self, stack: ExitStack, name: str, tokens: int, work: Callable[[], Made]) -> Made:
        """What `work` makes while the model `name` is in use, which it stays until `stack` is closed. Where memory ran
        out although others left it, what is free now lies in scraps: the work is begun anew, with all of it in one
        piece. Before that it goes on without weights kept rounded.
        """
        if not self._models:
            return work()
        before, first = self._gone(name), True
        while True:
            try:
                with ExitStack() as mine:
                    mine.enter_context(self.using(name, tokens))
                    before = self._gone(name)
                    with self.metered():
                        made = work()
                    stack.enter_context(mine.pop_all())
                    return made
            except DeviceError:
                if name in self._models and self._models[name].drop_prequantized_rows():
                    continue
                if not first or self._gone(name) == before:
                    raise
                first = False
                self._offloaded_for[name, tokens.bit_length()] = self._away(name)

    def prepare(self, name: str, tokens: int) -> bool:
        """Bring back what of a model has left, if it is soon to be used on about so many tokens; whether there was any.
        Returns at once; work given to the device afterwards waits. Calling it ahead of `using` lets the copies run
        beside what the host does meanwhile.
        """
        if name not in self._models or (not self._models[name].offloaded and self._busy is None):
            return False
        busy, self._busy = self._busy, name
        try:
            with self._allocating():
                # First what had to leave for about as much work, then one piece of all free memory, then who comes.
                for other, gone in self._offloaded_for.get((name, tokens.bit_length()), {}).items():
                    if going := [part for part in gone if part in self._models[other].resident]:
                        # The buffer of a part is not free before all that lie in it have left.
                        back = self._models[other].onloaded if set(self._models[other].onloaded) & set(going) else ()
                        self._leave(other, [*going, *(part for part in back if part not in going)])
                self.pool.tidy()
                parts, cuda = self._models[name], import_cupy().cuda
                if not (missing := parts.offloaded):
                    return False
                before, after = cuda.Event(), cuda.Event()
                self._stream.wait_event(cuda.get_current_stream().record())
                before.record(self._stream)
                parts.onload(missing, self._stream)
                after.record(self._stream)
                note = self._journal.note("onload", name, len(missing), sum(parts.sizes[part] for part in missing))
                self._journal.copying(note, before, after)
                return True
        finally:
            self._busy = busy

    @contextmanager
    def metered(self) -> Iterator[None]:
        """Inside, memory is counted by the byte; see `Meter`."""
        if not self._models:
            yield
            return
        self._meter = self._meter or Meter()
        self._meter.start(self.pool.source.used_bytes())
        with self._meter.hook:
            yield
        self._meter.mark()

    def report(self, start: float) -> dict[str, Any]:
        """For the trace: all since the last report, once the device has done its part; times count from `start`."""
        if (meter := self._meter) is None:
            return {}
        found = {
            "budget_bytes": self.budget,
            "peak_bytes": meter.peak,
            "pool_bytes": int(self.pool.source.total_bytes()),
            "driver_requests": meter.requests,
            "transitions": self._journal.take(start),
            "memory": [[at - start, used] for at, used in meter.points],
        }
        meter.restart()
        return found

    def malloc(self, size: int) -> Any:
        """Memory from the pool; parts of idle models leave for it if they must."""
        try:
            return self.pool.source.malloc(size)
        except import_cupy().cuda.memory.OutOfMemoryError:
            return self._squeeze(size)

    def _enforce(self) -> None:
        """Make the pool obey this budget, if it obeyed another one."""
        if self.pool.obeys:
            return
        self.cache_pool.drop()
        for name, parts in self._models.items():
            if self.budget:
                parts.drop_prequantized_rows()
            if back := parts.onloaded:  # in pieces of memory that suited the other
                self._leave(name, back)
        self.pool.limit()
        while (over := self.pool.over) and self._leave_room(over):
            self.pool.release()

    @contextmanager
    def _allocating(self) -> Iterator[None]:
        """Arrays made inside take their memory from `malloc`; a failure leaves none behind."""
        self._stream = self._stream or import_cupy().cuda.Stream(non_blocking=True)
        self._enforce()
        try:
            with device_errors(), import_cupy().cuda.using_allocator(self.malloc):
                yield
        except DeviceError as error:
            # Arrays of the frames that failed would live as long as somebody holds the error.
            clear_frames(error.__traceback__)
            raise

    def _squeeze(self, size: int) -> Any:
        """Memory that the budget has none of: pieces nothing uses go back to the driver, then parts leave."""
        full = import_cupy().cuda.memory.OutOfMemoryError
        self.pool.release()
        while True:
            try:
                return self.pool.source.malloc(size)
            except full:
                if not self._leave_room(max(size, (self.budget or 0) // 64)):
                    break
                self.pool.release()
                self.pool.take_free()
        raise self.pool.refusal(size)

    def _leave_room(self, size: int) -> bool:
        """Let parts of idle models leave, of `size` bytes if there are so many; False if there are none. An idle cache
        goes before all else: it takes milliseconds to make, and the weights of a model longer to copy. Then what guests
        hold, the one used longest ago first, and what can be done without: weights kept rounded, and room that experts
        are brought to.
        """
        if size and self.cache_pool.drop():
            return True
        for guest in sorted(self.guests, key=lambda guest: guest.used):
            if size and guest.leave_for(self._busy):
                self._left += 1
                return True
        for name, parts in self._models.items():
            if size and name != self._busy and (parts.drop_prequantized_rows() or parts.drop_ring()):
                self._left += 1
                return True
        freed = 0
        for name, parts in self._models.items():
            while freed < size and name != self._busy and (going := parts.next_to_offload()):
                self._leave(name, going)
                freed += sum(parts.sizes[part] for part in going)
        return freed > 0

    def _leave(self, name: str, going: list[str]) -> None:
        parts, start = self._models[name], time.perf_counter()
        parts.offload(going)
        size = sum(parts.sizes[part] for part in going)
        self._journal.note("offload", name, len(going), size, start, time.perf_counter() - start)

    def _gone(self, name: str) -> tuple[dict[str, list[str]], int]:
        """What has left for the model `name`."""
        return self._away(name), self.cache_pool.dropped + self._left

    def _away(self, name: str) -> dict[str, list[str]]:
        """What has left of the other models."""
        return {other: parts.offloaded for other, parts in self._models.items() if other != name}
