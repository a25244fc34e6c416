"""The target's part of a conversation where several GPUs share the target: a cache on each, in step with the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from sp.arrays import Ints
from sp.models import SessionCache
from sp.models.cache.transfer import CacheChanges
from sp.models.run.tensor_parallel import ShardModel
from sp.models.shards.shards import SharedModel
from sp.quant.cached import IN_BASIS
from sp.session.answer import PrefilledAnswer, Progress, answer_on_gpus
from sp.session.device.memory_manager import MemoryManager
from sp.session.loaded import Loaded
from sp.session.memory import CacheContents, Slots, TargetMemory, TurnPlan
from sp.session.options import RunOptions

T = TypeVar("T")


class SharedTargetMemory:
    """A `TargetMemory` on each GPU that shares the target, with the keys, values and states of that GPU's heads.

    All decide alike, so the slots and the transcript of the first are those of all. After a failure their caches may
    hold beginnings of different lengths; the next turn continues from what all of them hold. Caches grow, move and are
    copied on one GPU after the other while no GPU works: whoever waits for others within a step must not find them
    waiting for memory.

    Parameters
    ----------
    target : Loaded
    parts : list of TargetMemory
        By GPU.
    manager : MemoryManager
        Makes room where a cache does not fit.
    """

    def __init__(self, target: Loaded, parts: list[TargetMemory], manager: MemoryManager) -> None:
        assert isinstance(target.model, SharedModel), "only for shared targets"
        assert manager.cache_pool.gpus is not None, "a manager of the target"
        self._target, self._parts, self._manager, self._group = target, parts, manager, target.model.shards.group
        self._pools = manager.cache_pool.gpus
        self._pools.memories.add(self)

    @property
    def slots(self) -> Slots:
        """See `TargetMemory`."""
        return self._parts[0].slots

    @property
    def transcript(self) -> Ints:
        """See `TargetMemory`."""
        return self._parts[0].transcript

    @property
    def caches(self) -> tuple[SessionCache, ...]:
        """The caches, by GPU."""
        return tuple(part.cache for part in self._parts)

    def decided(self, ids: Ints) -> int:
        """See `TargetMemory`."""
        return self._parts[0].decided(ids)

    def cost(self, plan: TurnPlan) -> int:
        """See `TargetMemory`."""
        return len(plan.slots) - self._reachable(plan.common)

    def begin(
        self, plan: TurnPlan, transcript: Ints, ends: Ints, options: RunOptions, progress: Progress | None
    ) -> PrefilledAnswer:
        """Bring the caches of all GPUs to the slots of a plan; see `TargetMemory.begin` and `answer_on_gpus`."""
        tokens = self._reachable(plan.common)
        self._on_each(lambda part: part.reserve(tokens, len(plan.slots) - tokens + options.max_new_tokens))

        def start(part: ShardModel, own: RunOptions, progress: Progress | None) -> PrefilledAnswer:
            return self._parts[part.shard.rank].begin(plan, transcript, ends, own, progress)

        return answer_on_gpus(
            self._target, options, progress, start, lambda: self._parts[0].refused, spoiled=self._pools.spoiled
        )

    def put(self, slots: Slots, transcript: Ints, *contents: CacheContents) -> None:
        """See `TargetMemory`; `contents` by GPU."""
        for part, own in zip(self._parts, contents, strict=True):
            part.put(slots, transcript, own)

    def changes(self, *, full: bool) -> list[CacheChanges]:
        """See `TargetMemory`; by GPU."""
        return [changes for (changes,) in self._on_each(lambda part: part.changes(full=full))]

    def fork(self, ids: Ints) -> SharedTargetMemory:
        """See `TargetMemory`."""
        return SharedTargetMemory(self._target, self._on_each(lambda part: part.fork(ids)), self._manager)

    def end_graphs(self) -> None:
        """See `TargetMemory`."""
        for rank, part in enumerate(self._parts):
            with self._group.device(rank):
                part.end_graphs()

    def settle(self) -> None:
        """See `TargetMemory`."""
        self._on_each(TargetMemory.settle)

    def offload(self) -> bool:
        """See `TargetMemory`."""
        return any(self._on_each(TargetMemory.offload))

    def clear(self) -> None:
        """See `TargetMemory`."""
        self._on_each(TargetMemory.clear)

    @property
    def nbytes(self) -> int:
        """Size in bytes on all GPUs together."""
        return sum(part.nbytes for part in self._parts)

    def _reachable(self, tokens: int) -> int:
        """Return the number of slots, of so many, to which the caches of all GPUs can rewind."""
        while (least := min(part.cache.reachable(tokens) for part in self._parts)) < tokens:
            tokens = least
        return tokens

    def _on_each(self, work: Callable[[TargetMemory], T]) -> list[T]:
        """Return the results of work on the memory of each GPU, one after the other."""
        results = list[T]()
        for rank, part in enumerate(self._parts):
            with self._group.device(rank):
                results.append(self._manager.with_caches_moved(partial(work, part)))
        return results


def target_memory(
    target: Loaded, options: RunOptions, snapshots: int, manager: MemoryManager
) -> TargetMemory | SharedTargetMemory:
    """Return an empty memory of a target on one GPU or several; other parameters as for the classes."""
    if not isinstance(target.model, SharedModel):
        return TargetMemory(target, options, snapshots)
    shards = target.model.shards
    # Bases are measured by all GPUs together, so before any of them needs its own.
    bases = (
        shards.run(lambda part: part.bases_for(options.kv)) if options.kv.k in IN_BASIS else [{}] * len(shards.models)
    )

    def memory(part: ShardModel) -> TargetMemory:
        own = bases[part.shard.rank]
        return TargetMemory(replace(target, model=part), options, snapshots, lambda _: own)

    return SharedTargetMemory(target, [memory(part) for part in shards.models], manager)
