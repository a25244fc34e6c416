"""Formats of rows of keys and values in pages, by their numbers in ``page_rows.cuh``."""

from __future__ import annotations

Formats = tuple[int, int]
"""Format numbers of keys and of values."""

F16_ROWS, Q8_ROWS, Q4_ROWS, K5_ROWS, V4_ROWS = 16, 8, 4, 5, 14
PAIRS: tuple[Formats, ...] = (
    (F16_ROWS, F16_ROWS), (Q4_ROWS, Q4_ROWS), (K5_ROWS, V4_ROWS), (Q8_ROWS, Q8_ROWS), (Q8_ROWS, Q4_ROWS),
    (F16_ROWS, Q4_ROWS),
)  # fmt: skip
"""Pairs that are compiled ahead; all other pairs of keys and values work too."""
RECENT: Formats = V4_ROWS, V4_ROWS
"""Keys in K4 and values in V4, beside which a cache has the newest tokens exactly."""

ROOM, ROOMY = 99 << 10, 227 << 10
"""Most shared memory of a block on GPUs with the least of it, and on sm_90 and sm_100."""


def row_bytes(fmt: int, head_dim: int) -> int:
    """Return the bytes of a row.

    >>> [row_bytes(fmt, 128) for fmt in (F16_ROWS, Q8_ROWS, K5_ROWS, Q4_ROWS)]
    [256, 136, 88, 72]
    """
    if fmt == F16_ROWS:
        return 2 * head_dim
    return head_dim // 64 * {Q8_ROWS: 68, K5_ROWS: 44}.get(fmt, 36)


def is_packed(formats: Formats) -> bool:
    """Return True if keys or values are not float16."""
    return formats != (F16_ROWS, F16_ROWS)
