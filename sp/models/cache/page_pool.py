"""PagePool: the pages of keys and values that attention layers of one size share, and which of them are free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sp.errors import PromptError


@dataclass
class PagePool:
    """Pages of keys and of values, by number.

    Attributes
    ----------
    k, v : uint8 (pages, 128, kv_heads, bytes of a row)
        Where they lie.
    rows : slice
        Of its layers in `DeviceTables`, one after the other.
    free : list of int
        Pages that nobody holds; the last one is taken first.
    peak : int
        Most pages ever held at once.

    Examples
    --------
    >>> import numpy as np
    >>> pool = PagePool(np.empty((3, 128, 1, 4), np.uint8), np.empty((3, 128, 1, 4), np.uint8), slice(0, 1))
    >>> pages = pool.take(2)
    >>> pool.give(pages[:1])
    >>> pages, pool.used, pool.peak
    ([0, 1], 1, 2)
    """

    k: Any
    v: Any
    rows: slice
    free: list[int] = field(default_factory=list)
    peak: int = 0

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Let all pages be free."""
        self.free = list(range(len(self.k)))[::-1]

    def take(self, count: int) -> list[int]:
        """So many pages, those returned last first; PromptError when there are not as many."""
        if count > len(self.free):
            raise PromptError(
                f"the KV cache needs {count} more pages and has {len(self.free)} of {len(self.k)} free; "
                "make it larger, or release layers as they finish"
            )
        taken = [self.free.pop() for _ in range(count)]
        self.peak = max(self.peak, self.used)
        return taken

    def give(self, pages: Iterable[int]) -> None:
        """Return pages, each once."""
        self.free += pages
        assert len(self.free) <= len(self.k), "a page was returned twice"

    @property
    def used(self) -> int:
        """Pages that are held."""
        return len(self.k) - len(self.free)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return int(self.k.nbytes + self.v.nbytes)

    @property
    def peak_nbytes(self) -> int:
        """Bytes of `peak` pages."""
        return self.peak * (self.nbytes // len(self.k))
