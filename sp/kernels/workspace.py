"""Workspace: memory for work that is repeated, which nothing else uses in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

from sp.kernels.device import import_cupy
from sp.kernels.kept import use_workspace
from sp.kernels.setting import setting

_nested: ContextVar[bool] = ContextVar("workspace_nested", default=False)


def from_a_pool() -> bool:
    """Return True if the allocating pool gets memory from another pool, which may have some, and not from the driver.
    CuPy calls the same hooks for both."""
    return _nested.get()


class Workspace:
    """A pool of memory, from the current allocator, that is used only inside `use`."""

    _outliving: ClassVar[list[Any]] = []  # pools that outlive their owners, because arrays still use their memory

    def __init__(self) -> None:
        cuda = import_cupy().cuda
        self._pool = cuda.MemoryPool(_from_current(cuda))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def use(self) -> AbstractContextManager[None]:
        """Allocate arrays here inside the block, except persistent ones of kernels (`sp.kernels.kept`)."""
        return use_workspace(self._malloc)

    @property
    def nbytes(self) -> int:
        """Bytes taken from that allocator."""
        return int(self._pool.total_bytes())

    def end(self) -> None:
        """Free all memory: chunks of a block refer to each other, and a pool that is destroyed with some of them loses
        the block. Arrays that are still referenced, such as a graph's last output, stay, and so must the pool."""
        self._pool.free_all_blocks()
        if self._pool.used_bytes() and self._pool not in self._outliving:
            self._outliving.append(self._pool)

    def _malloc(self, size: int) -> Any:
        with setting(_nested, True):
            return self._pool.malloc(size)


def _from_current(cuda: Any) -> Callable[[int], Any]:
    """Return the current allocator, bound to the current stream. A pool has separate free lists for each stream, and
    those of a capture stream are lost with the stream."""
    source, stream = cuda.get_allocator(), cuda.get_current_stream()

    def malloc(size: int) -> Any:
        with stream, setting(_nested, False):
            return source(size)

    return malloc
