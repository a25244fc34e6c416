"""Values of untrusted metadata by type, and short texts of them for messages.

A key of a GGUF file or of a JSON object may hold anything: a number, a text, a bool, a list of a million of them. These
functions return the expected type or None, never a value that compares or counts differently (an array in a condition,
a whole number that no float can hold). `sp.models.file.metadata_keys.Keys`, for metadata, and `sp.json_lines`, for
fields of JSON, word the errors and set limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray


def preview(value: object, limit: int = 60) -> str:
    r"""Format an untrusted value for a message: printable, at most `limit` characters, at a cost bounded by `limit`."""
    text = _short_repr(value, limit, 3)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _short_repr(value: object, limit: int, depth: int) -> str:
    """Return the repr of as much of a value as fits into `limit` characters; NumPy values look like Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and abs(value) >= 10**24:  # repr takes quadratic time, and refuses over 4,300 digits
        return f"a whole number of some {round(value.bit_length() * math.log10(2))} digits"
    if isinstance(value, str):
        return repr(value[: limit + 1])
    if isinstance(value, np.ndarray):
        value = value[: limit + 1].tolist()
    if isinstance(value, list | tuple):
        # an item takes at least three characters ("0, "), a pair at least six ("0: 0, ")
        items = [_short_repr(item, limit, depth - 1) for item in value[: limit // 3 + 1]] if depth else ["..."]
        return f"[{', '.join(items)}]"
    if isinstance(value, Mapping):
        pairs = islice(value.items(), limit // 6 + 1) if depth else ()
        texts = [f"{_short_repr(key, limit, 0)}: {_short_repr(item, limit, depth - 1)}" for key, item in pairs]
        return f"{{{', '.join(texts) if depth else '...'}}}"
    return repr(value)


def whole(value: object) -> int | None:
    """Return a whole number of a file's metadata; None for anything else, also for a bool."""
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


def real(value: object) -> float | None:
    """Return a finite number of a file's metadata; None for anything else, also for one beyond the range of floats."""
    if not is_number(value):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_number(value: object) -> bool:
    """Return True for a number, also NaN and infinities; a bool is none."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def flag(value: object) -> bool | None:
    """Return a bool of a file's metadata, which may be stored as 0 or 1; None for anything else."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return bool(value) if whole(value) in (0, 1) else None


def text(value: object) -> str | None:
    """Return a text of a file's metadata; None for anything else, also for an empty one.

    >>> text("qwen3"), text(""), text(["qwen3"])
    ('qwen3', None, None)
    """
    return value if isinstance(value, str) and value else None


def as_list(value: object) -> list[Any] | tuple[Any, ...] | NDArray[Any] | None:
    """Return a list of a file's metadata, unchanged; None for anything else."""
    return value if isinstance(value, list | tuple | np.ndarray) else None
