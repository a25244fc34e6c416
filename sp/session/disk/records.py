"""A file of records, each some facts and arrays, that is only appended to and that a torn end does no harm.

A record is `MAGIC`, the length of its head (uint32), the SHA-256 of the head, the head, which is JSON, and the arrays,
each from a multiple of `ALIGN` bytes on. The head has the SHA-256 of each array and that of the head before, so that
records of another file do not follow it. SHA-256, for processors have instructions for it: twice the speed of BLAKE2b.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO

import numpy as np

from sp.errors import SpError

Array = np.ndarray[Any, np.dtype[Any]]
MAGIC = b"SPtalk\x00\x01"
FRAME = struct.Struct("<I32s")
ALIGN = 64
LONGEST_HEAD = 64 << 20
KINDS = ("|u1", "<f4", "<i8")  # types of arrays, as NumPy names them
MOST_AXES = 4
AT_ONCE = 8 << 20  # bytes that are written by one call


class DamagedError(SpError):
    """A file is not as it was written, or was never written by this."""


@dataclass(frozen=True)
class Part:
    """Where an array lies in a file, and what it is."""

    kind: str
    shape: tuple[int, ...]
    start: int
    digest: str

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * np.dtype(self.kind).itemsize

    def read(self, file: BinaryIO) -> Array:
        """The array; several threads may read. DamagedError: it is not what was written."""
        found = np.empty(self.shape, self.kind)
        view, done = _bytes(found), 0
        while done < len(view) and (count := os.preadv(file.fileno(), [view[done:]], self.start + done)):
            done += count
        if done < len(view) or sha256(view).hexdigest() != self.digest:
            raise DamagedError("an array is not what was written")
        return found


@dataclass(frozen=True)
class Record:
    """A record of a file: its facts, its arrays by name, where it ends, and the SHA-256 of its head."""

    facts: Mapping[str, Any]
    parts: Mapping[str, Part]
    end: int
    digest: str


def records(file: BinaryIO) -> Iterator[Record]:
    """The records of a file, up to the first that is not whole; of their arrays nothing is read."""
    at, before, size = 0, "", os.fstat(file.fileno()).st_size
    while (found := _record(file, at, before, size)) is not None:
        yield found
        at, before = found.end, found.digest


def _record(file: BinaryIO, at: int, before: str, size: int) -> Record | None:
    lead = os.pread(file.fileno(), len(MAGIC) + FRAME.size, at)
    if len(lead) < len(MAGIC) + FRAME.size or not lead.startswith(MAGIC):
        return None
    length, digest = FRAME.unpack(lead[len(MAGIC) :])
    if length > min(LONGEST_HEAD, size - at):
        return None
    raw = os.pread(file.fileno(), length, at + len(lead))
    if len(raw) < length or sha256(raw).digest() != digest:
        return None
    try:
        head = json.loads(raw)
        start = _aligned(at + len(lead) + length)
        parts, end = {}, start
        for name, kind, shape, sha in head["parts"]:
            sound = isinstance(name, str) and isinstance(sha, str) and kind in KINDS and len(shape) <= MOST_AXES
            if not sound or not all(type(each) is int and 0 <= each <= size for each in shape):
                return None
            parts[name] = Part(kind, tuple(shape), end, sha)
            end = _aligned(end + parts[name].nbytes)
        whole = head["before"] == before and end <= size and isinstance(head["facts"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Record(head["facts"], parts, end, digest.hex()) if whole else None


def append(file: BinaryIO, before: Record | None, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Record:
    """Write a record behind another, or as the first, and wait until it is on the disk; what stood there is gone."""
    at = 0 if before is None else before.end
    views = {name: _bytes(np.ascontiguousarray(each)) for name, each in arrays.items()}
    listed = [[name, each.dtype.str, each.shape, sha256(views[name]).hexdigest()] for name, each in arrays.items()]
    head = {"before": "" if before is None else before.digest, "facts": facts, "parts": listed}
    raw = json.dumps(head, separators=(",", ":")).encode()
    digest = sha256(raw).digest()
    lead = MAGIC + FRAME.pack(len(raw), digest)
    file.truncate(at)
    _write(file, at, memoryview(lead + raw))
    parts, end = {}, _aligned(at + len(lead) + len(raw))
    for name, kind, shape, sha in listed:
        parts[name] = Part(kind, tuple(shape), end, sha)
        _write(file, end, views[name])
        end = _aligned(end + len(views[name]))
    file.truncate(end)
    os.fsync(file.fileno())
    return Record(facts, parts, end, digest.hex())


def _bytes(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _write(file: BinaryIO, at: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(file.fileno(), view[done : done + AT_ONCE], at + done)


def _aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN
