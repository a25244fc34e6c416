"""Sizes of memory as people write them."""

from __future__ import annotations

from sp.errors import ConfigError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_bytes(text: str | int, option: str = "--vram") -> int:
    """Bytes of a size such as ``24g`` (GiB), ``900m`` or ``17.5g``; ConfigError names the `option` it is for.

    A number is bytes already.

    >>> parse_bytes("1.5g") // (1 << 20)
    1536
    """
    written = text if isinstance(text, str) else repr(text)
    number, unit = written.strip().lower().removesuffix("ib").removesuffix("b"), ""
    if number[-1:] in UNITS:
        number, unit = number[:-1], number[-1:]
    try:
        size = float(number) * UNITS[unit]
    except ValueError:
        size = 0.0
    if not 0 < size < 1 << 50:
        raise ConfigError(f"{option} takes a size such as 24g or 900m, not {text!r}")
    return int(size)


def format_bytes(budget: int | None) -> str | None:
    """A budget as `parse_bytes` takes it, for records; None for none.

    >>> format_bytes(parse_bytes("23g")), format_bytes(None)
    ('23g', None)
    """
    return None if budget is None else f"{budget / UNITS['g']:g}g"
