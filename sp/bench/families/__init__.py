"""Cases of `sp kernels bench`, one module a family; each is imported here."""

from __future__ import annotations

from sp.bench.families import attention, delta, flashprefill, importance, matmul, memory, rows

__all__ = ["attention", "delta", "flashprefill", "importance", "matmul", "memory", "rows"]
