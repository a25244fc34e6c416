"""Cases of `sp kernels bench`, one module a family; each is imported here."""

from __future__ import annotations

from sp.bench.families import memory, rows

__all__ = ["memory", "rows"]
