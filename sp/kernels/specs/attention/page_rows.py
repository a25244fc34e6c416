"""Formats of rows of keys and values in pages, by the numbers that ``page_rows.cuh`` has for them."""

from __future__ import annotations

Formats = tuple[int, int]
"""Those of keys and of values."""

F16_ROWS, Q8_ROWS, Q4_ROWS, K5_ROWS, V4_ROWS = 16, 8, 4, 5, 14
PAIRS: tuple[Formats, ...] = (
    (F16_ROWS, F16_ROWS), (Q4_ROWS, Q4_ROWS), (K5_ROWS, V4_ROWS), (Q8_ROWS, Q8_ROWS), (Q8_ROWS, Q4_ROWS),
    (F16_ROWS, Q4_ROWS),
)  # fmt: skip
"""Those that are compiled ahead; any others of keys and of values go together too."""

ROOM, ROOMY = 99 << 10, 227 << 10
"""Most shared memory of a block on the cards that have least, and on sm_90 and sm_100."""


def row_bytes(fmt: int, head_dim: int) -> int:
    """Bytes of a row.

    >>> [row_bytes(fmt, 128) for fmt in (F16_ROWS, Q8_ROWS, K5_ROWS, Q4_ROWS)]
    [256, 136, 88, 72]
    """
    if fmt == F16_ROWS:
        return 2 * head_dim
    return head_dim // 64 * {Q8_ROWS: 68, K5_ROWS: 44}.get(fmt, 36)


def is_packed(formats: Formats) -> bool:
    """Whether keys or values are anything but float16."""
    return formats != (F16_ROWS, F16_ROWS)
