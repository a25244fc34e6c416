"""Persistent arrays of kernels, such as counters: created on first use, never in a workspace and never part of a
recording.

Work that becomes a CUDA graph allocates from a workspace and gives the memory back as it goes; other graphs share the
same workspace. A persistent array allocated there would be overwritten at every replay of an earlier graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from sp.kernels.device import import_cupy
from sp.kernels.launch_replay import unrecorded
from sp.kernels.setting import setting

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Allocator = Callable[[int], Any]

_outer: ContextVar[Allocator | None] = ContextVar("outer_allocator", default=None)


@contextmanager
def use_workspace(malloc: Allocator) -> Iterator[None]:
    """Allocate arrays by `malloc` inside the block, except those that `cache` creates."""
    cuda = import_cupy().cuda
    with setting(_outer, _outer.get() or cuda.get_allocator()), cuda.using_allocator(malloc):
        yield


def cache(make: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`functools.cache` for functions that create arrays: they use the allocator outside of all workspaces."""

    @functools.cache
    @functools.wraps(make)
    def once(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        allocator = _outer.get()
        with unrecorded(), nullcontext() if allocator is None else import_cupy().cuda.using_allocator(allocator):
            return make(*args, **kwargs)

    return once  # type: ignore[return-value]
