"""Sizes of memory as people write them."""

from __future__ import annotations

from sp.errors import ConfigError

UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_bytes(text: str | int, option: str = "--vram") -> int:
    """Bytes of a size such as ``24g`` (GiB), ``900m`` or ``17.5g``; ConfigError names the `option` it is for.

    A whole number is bytes already; a text of digits alone is refused, for it may have meant GiB.

    >>> parse_bytes("1.5g") // (1 << 20)
    1536
    """
    written = text if isinstance(text, str) else f"{text!r}b"
    sized = written.strip().lower().removesuffix("ib").removesuffix("b")
    number, factor = (sized[:-1], UNITS[sized[-1]]) if sized[-1:] in UNITS else (sized, 1)
    try:
        size = float(number) * factor if written.strip()[-1:].isalpha() else 0.0
    except ValueError:
        size = 0.0
    if not 0 < size < 1 << 50:
        raise ConfigError(f"{option} takes a size with its unit, such as 24g or 900m, not {text!r}")
    return int(size)


class Size(int):
    """Bytes, which options have as a text such as ``24g``."""

    @classmethod
    def parse(cls, text: str, option: str) -> Size:
        """Read them; see `parse_bytes`."""
        return cls(parse_bytes(text, option))

    def __str__(self) -> str:
        return str(format_bytes(int(self)))


def format_bytes(budget: int | None) -> str | None:
    """A budget as `parse_bytes` takes it, for records; None for none.

    >>> format_bytes(parse_bytes("23g")), format_bytes(None)
    ('23g', None)
    """
    return None if budget is None else f"{budget / UNITS['g']:g}g"
