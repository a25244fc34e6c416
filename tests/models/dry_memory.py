"""Memory of the dry device: pools that count, lend whole pieces, obey a limit, and tell hooks."""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np


class OutOfMemoryError(MemoryError):
    """Called as CuPy's is."""


class Memory:
    """Bytes of a pool; they go back when nobody holds this."""

    def __init__(self, pool: Pool, size: int, taken: Any) -> None:
        weakref.finalize(self, pool.give_back, size, taken)


class Pool:
    """Pieces of any size, kept by size once they were taken from the source: as wasteful as a pool can be."""

    def __init__(self, source: Callable[[int], Any] | None = None) -> None:
        self._source, self._limit = source, 0
        self._used = self._total = 0
        self._free: dict[int, list[Any]] = defaultdict(list)

    def malloc(self, size: int) -> Memory:
        size = -(-int(size) // 512) * 512
        for hook in hooks:
            hook.malloc_preprocess(mem_size=size)
        if self._free[size]:
            taken = self._free[size].pop()
        else:
            if self._limit and self._total + size > self._limit:
                raise OutOfMemoryError(f"Out of memory allocating {size} bytes of {self._limit}")
            for hook in hooks:
                hook.alloc_preprocess(mem_size=size)
            taken = self._source(size) if self._source else object()
            self._total += size
            for hook in hooks:
                hook.alloc_postprocess(mem_size=size)
        self._used += size
        for hook in hooks:
            hook.malloc_postprocess(mem_size=size, mem_ptr=1)
        return Memory(self, size, taken)

    def give_back(self, size: int, taken: Any) -> None:
        self._used -= size
        self._free[size].append(taken)
        for hook in hooks:
            hook.free_postprocess(mem_size=size)

    def free_all_blocks(self) -> None:
        self._total -= sum(size * len(pieces) for size, pieces in self._free.items())
        self._free.clear()

    def used_bytes(self) -> int:
        return self._used

    def total_bytes(self) -> int:
        return self._total

    def set_limit(self, size: int) -> None:
        self._limit = size

    def get_limit(self) -> int:
        return self._limit


class MemoryHook:
    """Told of everything while it is entered."""

    def __enter__(self) -> None:
        hooks.append(self)

    def __exit__(self, *_: object) -> None:
        hooks.remove(self)


class PinnedMemory:
    """Host memory."""

    def __init__(self, size: int) -> None:
        self.bytes = (ctypes.c_ubyte * size)()
        pinned.append(size)


hooks: list[Any] = []
pinned: list[int] = []
pool = Pool()
allocators: list[Callable[[int], Any]] = [pool.malloc]


@contextmanager
def using_allocator(allocator: Callable[[int], Any]) -> Iterator[None]:
    allocators.append(allocator)
    try:
        yield
    finally:
        allocators.pop()


def lend(nbytes: int) -> np.ndarray:
    """Zeros of host memory that stand for so many bytes of the device, as long as anything looks at them."""
    room = np.zeros(nbytes + 256, np.uint8)
    memory = allocators[-1](nbytes)
    weakref.finalize(room, lambda held: None, memory)
    return room


NAMES: dict[str, Any] = {
    "MemoryPool": Pool,
    "MemoryHook": MemoryHook,
    "PinnedMemory": PinnedMemory,
    "PinnedMemoryPointer": lambda memory, offset: memory.bytes,
    "memory": SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    "using_allocator": using_allocator,
    "get_allocator": lambda: allocators[-1],
    "get_elapsed_time": lambda before, after: 1.0,
}
"""What `cupy.cuda` has of it."""
