"""Scratch: memory for work that is done again and again, so that nobody else is given it in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

from sp.kernels.device import import_cupy
from sp.kernels.kept import lent
from sp.kernels.setting import setting

_asking: ContextVar[bool] = ContextVar("scratch_asking", default=False)


def from_a_pool() -> bool:
    """Whether a pool that takes memory takes it from another one, which may have some, and not from the driver. CuPy's
    hooks are told of both alike."""
    return _asking.get()


class Scratch:
    """Memory that no work but that inside `lent` is ever given, from the present allocator."""

    _lending: ClassVar[list[Any]] = []  # pools that outlive their owners, for others still use memory of theirs

    def __init__(self) -> None:
        cuda = import_cupy().cuda
        self._pool = cuda.MemoryPool(_from_here(cuda))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def lent(self) -> AbstractContextManager[None]:
        """Inside, arrays take their memory from here, but for what kernels keep (`sp.kernels.kept`)."""
        return lent(self._malloc)

    @property
    def nbytes(self) -> int:
        """Bytes it has taken from that allocator."""
        return int(self._pool.total_bytes())

    def end(self) -> None:
        """Give all memory back: pieces of one block hold one another, and a pool that ends with some loses the block.
        Arrays that somebody still holds, such as what a graph made last, stay, and so must the pool."""
        self._pool.free_all_blocks()
        if self._pool.used_bytes() and self._pool not in self._lending:
            self._lending.append(self._pool)

    def _malloc(self, size: int) -> Any:
        with setting(_asking, True):
            return self._pool.malloc(size)


def _from_here(cuda: Any) -> Callable[[int], Any]:
    """The present allocator, on the present stream whatever stream asks. A pool keeps what each stream gave back apart,
    and that of a lane goes with the lane."""
    source, home = cuda.get_allocator(), cuda.get_current_stream()

    def malloc(size: int) -> Any:
        with home, setting(_asking, False):
            return source(size)

    return malloc
