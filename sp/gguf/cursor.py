"""Reads the values of a header one after another, each length checked before it is used.

The bytes come by `pread` rather than through a memory map, so a file that shrinks meanwhile is an error and not a
SIGBUS.
"""

from __future__ import annotations

import os
import struct

from sp.errors import GGUFError
from sp.gguf.value_types import DAMAGED, MAX_HEADER, MAX_STRING
from sp.values import shown

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_READ_STEP = 1 << 20  # bytes
NAME = 80  # characters of a name that messages show


class Cursor:
    """Reads forward through the header, fetching bytes as they are needed.

    Attributes
    ----------
    fd, size, path
        The open file, its size when it was opened, and its name for errors.
    buffer : bytearray
        The bytes fetched so far, from the start of the file.
    pos : int
        Where the next value starts.
    """

    def __init__(self, fd: int, size: int, path: str) -> None:
        self.fd, self.size, self.path = fd, size, path
        self.buffer = bytearray()
        self.pos = 0

    def fail(self, problem: str, advice: str = DAMAGED) -> GGUFError:
        return GGUFError(f"{self.path}: {problem}; {advice}")

    @property
    def left(self) -> int:
        return self.size - self.pos

    def fetch(self, end: int, what: str) -> None:
        """Make the bytes up to `end` available."""
        if end > self.size:
            raise self.fail(f"truncated: {what} at byte {self.pos} runs past the end ({self.size} bytes)")
        if end > MAX_HEADER:
            raise self.fail(f"header is longer than {MAX_HEADER >> 20} MiB, at {what}")
        while len(self.buffer) < end:
            ahead = max(end, 2 * len(self.buffer), _READ_STEP)
            want = min(self.size, MAX_HEADER, ahead) - len(self.buffer)
            piece = os.pread(self.fd, want, len(self.buffer))
            if not piece:
                raise self.fail(f"shrank to {len(self.buffer)} bytes while it was read")
            self.buffer += piece

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes and say where they start."""
        start, self.pos = self.pos, self.pos + count
        if self.pos > len(self.buffer):
            self.pos = start
            self.fetch(start + count, what)
            self.pos = start + count
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8, what))[0])

    def text(self, limit: int, what: str) -> str:
        """A length-prefixed UTF-8 string of at most `limit` bytes."""
        length = self.u64(what)
        if length > limit:
            raise self.fail(f"{what} claims {length} bytes at byte {self.pos - 8}, more than {limit}")
        start = self.take(length, what)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} at byte {start} is not UTF-8 ({error.reason})") from None

    def name(self, limit: int, what: str) -> str:
        """A string that names something: not empty, no control characters."""
        name = self.text(limit, what)
        if not name or not name.isprintable():
            raise self.fail(f"{what} {shown(name, NAME)} is empty or holds unprintable characters")
        return name

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings, checking each length; the inner loop of opening a large vocabulary."""
        pos, available, length_at, buffer = self.pos, len(self.buffer), _U64.unpack_from, self.buffer
        for index in range(count):
            if pos + 8 > available:
                self.pos = min(pos, self.size)
                self.fetch(pos + 8, f"string {index} of {what}")
                available = len(buffer)
            length = length_at(buffer, pos)[0]
            if length > MAX_STRING:
                raise self.fail(f"string {index} of {what} claims {length} bytes, more than {MAX_STRING}")
            pos += 8 + length
        self.take(pos - self.pos, f"the last string of {what}")
