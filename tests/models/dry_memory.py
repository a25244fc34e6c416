"""Memory of the dry device: pools that count, cut pieces from blocks, obey a limit, and tell hooks."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np


class OutOfMemoryError(MemoryError):
    """Called as CuPy's is."""


class Memory:
    """Bytes of a pool; they go back when nobody holds this."""

    def __init__(self, pool: Pool, size: int, block: Block) -> None:
        self._pool, self._size, self._block = pool, size, block

    def __del__(self) -> None:
        self._pool.give_back(self._size, self._block)


class Block:
    """What was taken from the source at once; pieces are cut from it, wherever they lie."""

    def __init__(self, size: int, source: Any) -> None:
        self.size = self.free = size
        self.source = source


class Pool:
    """Cuts pieces from blocks; a block nothing uses can go back."""

    def __init__(self, source: Callable[[int], Any] | None = None) -> None:
        self._source, self._limit = source, 0
        self._blocks: list[Block] = []

    def malloc(self, size: int) -> Memory:
        size = -(-int(size) // 512) * 512
        for hook in hooks.entered:
            hook.malloc_preprocess(mem_size=size)
        block = None
        for one in self._blocks:  # the fullest with room
            if one.free >= size and (block is None or one.free < block.free):
                block = one
        if block is None:
            if self._limit and self.total_bytes() + size > self._limit:
                raise OutOfMemoryError(f"Out of memory allocating {size} bytes of {self._limit}")
            for hook in hooks.entered:
                hook.alloc_preprocess(mem_size=size)
            block = Block(size, self._source(size) if self._source else None)
            self._blocks.append(block)
            for hook in hooks.entered:
                hook.alloc_postprocess(mem_size=size)
        block.free -= size
        for hook in hooks.entered:
            hook.malloc_postprocess(mem_size=size, mem_ptr=1)
        return Memory(self, size, block)

    def give_back(self, size: int, block: Block) -> None:
        block.free += size
        for hook in hooks.entered:
            hook.free_postprocess(mem_size=size)

    def free_all_blocks(self) -> None:
        self._blocks = [block for block in self._blocks if block.free < block.size]

    def __del__(self) -> None:
        """CuPy's blocks hold one another once they are cut, and Python never looks for that: what is left is lost."""
        if self._source is not None:
            lost.extend(self._blocks)

    def used_bytes(self) -> int:
        return sum(block.size - block.free for block in self._blocks)

    def total_bytes(self) -> int:
        return sum(block.size for block in self._blocks)

    def set_limit(self, size: int) -> None:
        self._limit = size

    def get_limit(self) -> int:
        return self._limit


class MemoryHook:
    """Told of everything while it is entered."""

    def malloc_preprocess(self, **event: Any) -> None: ...
    def alloc_preprocess(self, **event: Any) -> None: ...
    def alloc_postprocess(self, **event: Any) -> None: ...
    def malloc_postprocess(self, **event: Any) -> None: ...
    def free_postprocess(self, **event: Any) -> None: ...

    def __enter__(self) -> None:
        hooks.entered.append(self)

    def __exit__(self, *_: object) -> None:
        hooks.entered.remove(self)


class PinnedMemory:
    """Host memory."""

    def __init__(self, size: int) -> None:
        if most_pinned and sum(pinned) + size > most_pinned[0]:
            raise MemoryError("cudaErrorMemoryAllocation: out of memory")
        self.bytes = (ctypes.c_ubyte * size).from_buffer(mmap.mmap(-1, size))
        self.ptr = ctypes.addressof(self.bytes)
        pinned.append(size)


class _Hooks(threading.local):
    """Those that a thread has entered; they are told of its own memory alone."""

    def __init__(self) -> None:
        self.entered: list[Any] = []


hooks = _Hooks()
lost: list[Block] = []
pinned: list[int] = []
most_pinned: list[int] = []
"""Bytes that can be pinned, if there is a limit."""
pool = Pool()


class Allocators(threading.local):
    """Those of a thread, the present one last."""

    def __init__(self) -> None:
        self.stack: list[Callable[[int], Any]] = [pool.malloc]


allocators = Allocators()


@contextmanager
def using_allocator(allocator: Callable[[int], Any]) -> Iterator[None]:
    allocators.stack.append(allocator)
    try:
        yield
    finally:
        allocators.stack.pop()


def address(host: np.ndarray) -> int:
    """Where an array begins."""
    return int(host.__array_interface__["data"][0])


def lend(nbytes: int) -> np.ndarray:
    """Zeros of host memory that stand for so many bytes of the device, as long as anything looks at them.

    What a pool made for work that is done again lends stays as long as the pool, as it would on a device.
    """
    malloc = allocators.stack[-1]
    own: Any = getattr(malloc, "__self__", pool)
    taken = mmap.mmap(
        -1, nbytes + 256, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )  # begins with a page; those nobody looks at are never made
    room = np.frombuffer(taken, np.uint8, nbytes)
    memory, start = malloc(nbytes), address(room)
    lent[start] = start + nbytes, next(numbers)
    if own is pool:
        weakref.finalize(room, lambda held: lent.pop(start), memory)
    else:
        weakref.finalize(room, lambda held: None, memory)
        weakref.finalize(own, lambda held: lent.pop(start), taken)
    return room


lent: dict[int, tuple[int, int]] = {}
"""Where what somebody looks at begins, where it ends, and a number of its own."""
numbers = itertools.count()


def number_of(address: int) -> int | None:
    """The number of what lies at an address, if anything does."""
    if exact := lent.get(address):
        return exact[1]
    return next((number for start, (end, number) in lent.copy().items() if start <= address < end), None)


NAMES: dict[str, Any] = {
    "MemoryPool": Pool,
    "MemoryHook": MemoryHook,
    "PinnedMemory": PinnedMemory,
    "UnownedMemory": lambda pointer, size, owner, device: owner,
    "MemoryPointer": lambda memory, offset: SimpleNamespace(memory=memory),
    "PinnedMemoryPointer": lambda memory, offset: memory.bytes,
    "memory": SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    "using_allocator": using_allocator,
    "get_allocator": lambda: allocators.stack[-1],
    "get_elapsed_time": lambda before, after: 1.0,
}
"""What `cupy.cuda` has of it."""
