"""PagePool: the pages of keys and values that attention layers of one size share, and which of them are free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        Pages that nobody holds; the last one is taken first, those that were returned last among them.
    peak : int
        Most pages ever held at once.
    """

    k: Any
    v: Any
    rows: slice
    free: list[int]
    peak: int = 0

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
