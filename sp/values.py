"""What a stranger's metadata may be taken for, and how a value is shown: the one place that looks at kinds.

A key of a GGUF file or of a JSON object holds what its writer liked: a number, a text, a bool, a list of a million of
them. Whoever reads one says here which kind is meant and gets that kind or None, never something that compares or
counts otherwise (an array in a condition, a whole number that no float can hold). `sp.models.file.metadata_keys.Keys`,
for metadata, and `sp.json_lines`, for fields of JSON, word the refusals and set limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray


def shown(value: object, limit: int = 60) -> str:
    r"""A stranger's value for a message: printable, at most `limit` characters, at a cost its size does not tell."""
    text = _written(value, limit, 3)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _written(value: object, limit: int, depth: int) -> str:
    """The repr of as much of a value as `limit` characters can show; NumPy's as Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and abs(value) >= 10**24:
        return f"a whole number of some {round(value.bit_length() * math.log10(2))} digits"
    if isinstance(value, str):
        return repr(value[: limit + 1])
    if isinstance(value, np.ndarray):
        value = value[: limit + 1].tolist()
    if isinstance(value, list | tuple):
        items = [_written(one, limit, depth - 1) for one in value[: limit // 3 + 1]] if depth else ["..."]
        return f"[{', '.join(items)}]"
    if isinstance(value, Mapping):
        pairs = islice(value.items(), limit // 6 + 1) if depth else ()
        told = [f"{_written(key, limit, 0)}: {_written(one, limit, depth - 1)}" for key, one in pairs]
        return f"{{{', '.join(told) if depth else '...'}}}"
    return repr(value)


def whole(value: object) -> int | None:
    """A whole number of a file's metadata, which is no bool; None for anything else."""
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


def real(value: object) -> float | None:
    """A finite number of a file's metadata; None for anything else, and for one that no float can hold."""
    if not is_number(value):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_number(value: object) -> bool:
    """Whether it is a number of any size, infinite or none among them; a bool is not."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def flag(value: object) -> bool | None:
    """A bool of a file's metadata, which may be written as 0 or 1; None for anything else."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return bool(value) if whole(value) in (0, 1) else None


def text(value: object) -> str | None:
    """A text of a file's metadata; None for anything else, and for an empty one.

    >>> text("qwen3"), text(""), text(["qwen3"])
    ('qwen3', None, None)
    """
    return value if isinstance(value, str) and value else None


def listed(value: object) -> list[Any] | tuple[Any, ...] | NDArray[Any] | None:
    """A list of a file's metadata, as it is; None for anything else."""
    return value if isinstance(value, list | tuple | np.ndarray) else None
