"""Set a context variable inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set `variable` to `value` inside the block, and back to its old value afterwards.

    >>> level = ContextVar("level", default=1)
    >>> with setting(level, 2):
    ...     print(level.get())
    2
    >>> level.get()
    1
    """
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
