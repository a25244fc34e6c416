"""setting: a context variable that has a value inside of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside, `variable` is `value`; afterwards what it was.

    >>> wanted = ContextVar("wanted", default=1)
    >>> with setting(wanted, 2):
    ...     print(wanted.get())
    2
    >>> wanted.get()
    1
    """
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
