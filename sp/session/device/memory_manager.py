"""MemoryManager: two models share a device under a byte budget, and weights that are not needed are offloaded.

Nothing is planned from formulas. All work allocates as usual, through the allocator of `MemoryManager`; where the
budget is exhausted, parts of the idle model are offloaded, one after the other, and the request is refused only when
none is left. Weights never change, so a part is copied to the host once; after that offloading it costs nothing, and
onloading one copy over the bus, on a separate stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from traceback import clear_frames
from typing import Any, TypeVar
from weakref import WeakSet

from sp.errors import DeviceError
from sp.kernels import device_errors, import_cupy
from sp.models import Draft, Model
from sp.models.device.parts import Parts
from sp.models.shards.shards import SharedModel
from sp.session.device.cache_pool import CachePool, GPUPools
from sp.session.device_memory import Journal, MemoryPool, Meter, OffloadClient
from sp.session.loaded import Loaded

Result = TypeVar("Result")


@dataclass
class MemoryManager:
    """Manages the memory of a device for models, caches and work.

    `budget`: most bytes that CuPy's default pool may take from the driver; None for the whole device. Kernels and the
    driver's own context are not counted.
    """

    budget: int | None = None
    cache_pool: CachePool = field(init=False)
    pool: MemoryPool = field(init=False)
    clients: WeakSet[OffloadClient] = field(default_factory=WeakSet)
    _offloads: int = 0
    _models: dict[str, Parts] = field(default_factory=dict)
    _busy: str | None = None
    _offloaded_for: dict[tuple[str, int], dict[str, list[str]]] = field(default_factory=dict)
    _stream: Any = None
    _journal: Journal = field(default_factory=Journal)
    _meter: Meter | None = None

    def __post_init__(self) -> None:
        # Within a budget a cache kept between answers would fragment the free memory.
        self.cache_pool = CachePool(keep=self.budget is None)
        self.pool = MemoryPool(self.budget)

    def within(self, budget: int | None) -> MemoryManager:
        """Return a manager of the same models under another budget, which applies from its next use on."""
        other = replace(self, budget=budget, _offloaded_for={})
        other.cache_pool = self.cache_pool.sharing(keep=budget is None)
        return other

    def load(self, name: str, make: Callable[[], Loaded]) -> Loaded:
        """Load a model on the device and register it; registered models are offloaded for it if necessary."""
        start = time.perf_counter()
        with self._allocating():
            loaded = make()
        self.add(name, loaded.model, start)
        return loaded

    def hold(self, name: str, make: Callable[[], Draft]) -> Draft:
        """Load a draft, which is never offloaded; registered models are offloaded for it if necessary."""
        start = time.perf_counter()
        with self._allocating():
            draft = make()
        self._journal.note("load", name, 1, draft.nbytes, start, time.perf_counter() - start)
        return draft

    def add(self, name: str, model: Model, since: float | None = None) -> None:
        """Register a model, loaded `since` then; models on the CPU and registered ones are ignored."""
        if isinstance(
            model, SharedModel
        ):  # never offloaded; but caches that its GPUs keep between answers can be dropped
            self.cache_pool.gpus = self.cache_pool.gpus or GPUPools(model.shards.group)
        elif model.device != "cpu" and not (name in self._models and self._models[name].model is model):
            self._models[name] = parts = Parts(model)
            times = () if since is None else (since, time.perf_counter() - since)
            self._journal.note("load", name, len(parts.sizes), sum(parts.sizes.values()), *times)

    @contextmanager
    def using(self, name: str, tokens: int) -> Iterator[None]:
        """Enter while the model `name` works on `tokens` tokens; all of its weights are on the device inside.

        DeviceError if the memory is full and nothing is left to offload.
        """
        if name not in self._models:
            yield
            return
        with self._allocating():
            self._busy = name  # its own parts must not be offloaded
            try:
                self.prepare(name, tokens)
                before = self._offloaded_others(name)
                yield
                if (away := self._offloaded_others(name)) != before:
                    self._offloaded_for[name, tokens.bit_length()] = away
            finally:
                self._busy = None

    def attempt(self, stack: ExitStack, name: str, tokens: int, work: Callable[[], Result]) -> Result:
        """Return the result of `work` done while the model `name` is in use, until `stack` is closed.

        If memory ran out although others were offloaded, the free memory is fragmented: the work is repeated with all
        of it in one block. Before that, prequantized weights are dropped.
        """
        if not self._models:
            return work()
        before, first = self._offload_state(name), True
        while True:
            try:
                with ExitStack() as resources:
                    resources.enter_context(self.using(name, tokens))
                    before = self._offload_state(name)
                    with self.metered():
                        result = work()
                    stack.enter_context(resources.pop_all())
                    return result
            except DeviceError:
                if name in self._models and self._models[name].drop_prequantized_rows():
                    continue
                if not first or self._offload_state(name) == before:
                    raise
                first = False  # one repetition only: a second failure is final
                self._offloaded_for[name, tokens.bit_length()] = self._offloaded_others(name)

    def prepare(self, name: str, tokens: int) -> bool:
        """Onload the missing parts of a model that is about to work on so many tokens; returns True if there were any.

        Returns at once; work queued on the device afterwards waits. Called ahead of `using`, it overlaps the copies
        with work on the host.
        """
        if name not in self._models or (not self._models[name].offloaded and self._busy is None):
            return False
        busy, self._busy = self._busy, name
        try:
            with self._allocating():
                # First offload what a similar amount of work had to offload, then merge the free memory, then onload.
                for other, gone in self._offloaded_for.get((name, tokens.bit_length()), {}).items():
                    if going := [part for part in gone if part in self._models[other].resident]:
                        # Onloaded parts share a buffer, which is free only when all of them are offloaded.
                        back = self._models[other].onloaded if set(self._models[other].onloaded) & set(going) else ()
                        self._offload(other, [*going, *(part for part in back if part not in going)])
                self.pool.tidy()
                parts, cuda = self._models[name], import_cupy().cuda
                if not (missing := parts.offloaded):
                    return False
                before, after = cuda.Event(), cuda.Event()
                self._stream.wait_event(cuda.get_current_stream().record())  # memory may still be in use by queued work
                before.record(self._stream)
                parts.onload(missing, self._stream)
                after.record(self._stream)
                note = self._journal.note("onload", name, len(missing), sum(parts.sizes[part] for part in missing))
                self._journal.copying(note, before, after)
                return True
        finally:
            self._busy = busy

    def with_caches_moved(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which allocates on any GPU; caches are dropped or offloaded while it fails.

        For GPUs that share a model, whose memory has no budget.
        """
        while True:
            try:
                with device_errors():
                    return work()
            except DeviceError:
                if not self._move_cache():
                    raise

    @contextmanager
    def metered(self) -> Iterator[None]:
        """Count memory by the byte inside; see `Meter`."""
        if not self._models:
            yield
            return
        self._meter = self._meter or Meter()
        self._meter.start(self.pool.source.used_bytes())
        with self._meter.hook:
            yield
        self._meter.mark()

    def report(self, start: float) -> dict[str, Any]:
        """Return the facts for the trace since the last report, once the device is done; times count from `start`."""
        if (meter := self._meter) is None:
            return {}
        facts = {
            "budget_bytes": self.budget,
            "peak_bytes": meter.peak,
            "pool_bytes": int(self.pool.source.total_bytes()),
            "driver_requests": meter.requests,
            "transitions": self._journal.take(start),
            "memory": [[moment - start, used] for moment, used in meter.points],
        }
        meter.restart()  # the next report starts here
        return facts

    def malloc(self, size: int) -> Any:
        """Allocate from the pool; parts of idle models are offloaded if necessary."""
        try:
            return self.pool.source.malloc(size)
        except import_cupy().cuda.memory.OutOfMemoryError:
            return self._squeeze(size)

    def _enforce(self) -> None:
        """Apply this budget to the pool, if it has another one."""
        if self.pool.obeys:
            return
        self.cache_pool.drop()
        for name, parts in self._models.items():
            if self.budget:
                parts.drop_prequantized_rows()
            if back := parts.onloaded:  # into blocks allocated under the other budget
                self._offload(name, back)
        self.pool.limit()
        while (over := self.pool.over) and self._leave_room(over):
            self.pool.release()

    @contextmanager
    def _allocating(self) -> Iterator[None]:
        """Allocate arrays inside with `malloc`; a failure leaves none behind."""
        self._stream = self._stream or import_cupy().cuda.Stream(non_blocking=True)
        self._enforce()
        try:
            with device_errors(), import_cupy().cuda.using_allocator(self.malloc):
                yield
        except DeviceError as error:
            # The traceback keeps the frames alive, and they keep their arrays.
            clear_frames(error.__traceback__)
            raise

    def _squeeze(self, size: int) -> Any:
        """Allocate beyond the budget: release unused blocks, then offload parts until it fits."""
        full = import_cupy().cuda.memory.OutOfMemoryError
        self.pool.release()
        while True:
            try:
                return self.pool.source.malloc(size)
            except full:
                if not self._leave_room(max(size, (self.budget or 0) // 64)):  # in steps of at least 1/64 of the budget
                    break
                self.pool.release()
                self.pool.take_free()
        raise self.pool.refusal(size)

    def _leave_room(self, size: int) -> bool:
        """Offload parts of idle models, of `size` bytes if possible; False if there are none.

        An idle cache is dropped first: creating one takes milliseconds, copying a model's weights longer. Then clients
        are offloaded, the least recently used first, then what can be dispensed with: prequantized weights, and the
        room that experts are copied to.
        """
        if size and self._move_cache():
            return True
        for name, parts in self._models.items():
            if size and name != self._busy and (parts.drop_prequantized_rows() or parts.drop_ring()):
                self._offloads += 1
                return True
        freed = 0
        for name, parts in self._models.items():
            while freed < size and name != self._busy and (going := parts.next_to_offload()):
                self._offload(name, going)
                freed += sum(parts.sizes[part] for part in going)
        return freed > 0

    def _move_cache(self) -> bool:
        """Drop the idle cache, or else offload the client used longest ago; False if there is none."""
        if self.cache_pool.drop():
            return True
        moved = any(client.offload_for(self._busy) for client in sorted(self.clients, key=lambda client: client.used))
        self._offloads += moved
        return moved

    def _offload(self, name: str, going: list[str]) -> None:
        parts, start = self._models[name], time.perf_counter()
        parts.offload(going)
        size = sum(parts.sizes[part] for part in going)
        self._journal.note("offload", name, len(going), size, start, time.perf_counter() - start)

    def _offload_state(self, name: str) -> tuple[dict[str, list[str]], int]:
        """Return what is offloaded or dropped for the model `name`."""
        return self._offloaded_others(name), self.cache_pool.dropped + self._offloads

    def _offloaded_others(self, name: str) -> dict[str, list[str]]:
        """Return the offloaded parts of the other models."""
        return {other: parts.offloaded for other, parts in self._models.items() if other != name}
