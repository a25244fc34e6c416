"""What kernels keep for themselves from their first use on, such as counters: never in memory that is only lent, and
never part of what is recorded to be repeated.

Work that becomes a CUDA graph takes its arrays from memory lent to it, and gives them back as it goes; other graphs are
lent the same. Something made there to stay would lie where a graph captured before goes on writing at every replay."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from sp.kernels.device import import_cupy
from sp.kernels.repeats import unrecorded
from sp.kernels.setting import setting

Given = ParamSpec("Given")
Made = TypeVar("Made")
Allocator = Callable[[int], Any]

_before: ContextVar[Allocator | None] = ContextVar("allocator_before_lending", default=None)


@contextmanager
def lent(malloc: Allocator) -> Iterator[None]:
    """Inside, arrays take their memory from `malloc`, but for those that `cache` makes."""
    cuda = import_cupy().cuda
    with setting(_before, _before.get() or cuda.get_allocator()), cuda.using_allocator(malloc):
        yield


def cache(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """`functools.cache` for functions that make arrays: their memory is that from outside of all `lent`."""

    @functools.cache
    @functools.wraps(make)
    def once(*given: Given.args, **named: Given.kwargs) -> Made:
        allocator = _before.get()
        with unrecorded(), nullcontext() if allocator is None else import_cupy().cuda.using_allocator(allocator):
            return make(*given, **named)

    return once  # type: ignore[return-value]
