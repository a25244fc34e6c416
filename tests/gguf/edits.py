"""Edits of a file's bytes, of the kinds that find what a reader forgot to check."""

from __future__ import annotations

import struct
from collections.abc import Callable

from sp.errors import GGUFError

EDGES = [0, 1, 31, 33, 63, 64, 255, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1]


def edited(content: bytes, edit: tuple[str, int, int | bytes]) -> bytes:
    """A copy with one change of the kind u64, u32, bit, cut, copy or noise, at a byte (of a bit: at a bit)."""
    kind, at, value = edit
    if isinstance(value, bytes):
        return content[:at] + value + content[at:]
    if kind == "u64":
        return content[:at] + struct.pack("<Q", value) + content[at + 8 :]
    if kind == "u32":
        return content[:at] + struct.pack("<I", value) + content[at + 4 :]
    if kind == "bit":
        byte = at // 8
        return (
            content[:byte] + bytes([content[byte] ^ 1 << at % 8]) + content[byte + 1 :] if byte < len(content) else b""
        )
    if kind == "cut":
        return content[:at] + content[at + value :]
    return content[:at] + content[value : value + 64] + content[at:]


def refusal(action: Callable[[], object]) -> str | None:
    """The message of the GGUFError `action` ends in, None when it succeeds; anything else passes through."""
    try:
        action()
    except GGUFError as error:
        return str(error)
    return None
