"""A file of records, each some facts and arrays, that is only appended to and survives a torn end.

A record is `MAGIC`, the length of its head (uint32), the SHA-256 of the head, the head, which is JSON, and the arrays,
each aligned to `ALIGN` bytes. The head has the SHA-256 of each array and that of the head before, so that records of
another file cannot follow it. SHA-256 because processors have instructions for it: twice the speed of BLAKE2b.
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
KINDS = ("|u1", "<f4", "<i8")  # NumPy names of the array types
MOST_AXES = 4
WRITE_SIZE = 8 << 20  # bytes of one write


class DamagedError(SpError):
    """A file is not as it was written, or not of this format."""


@dataclass(frozen=True)
class StoredArray:
    """An array in a file.

    `kind`: NumPy name of its type; `shape`; `start`: offset of its first byte; `digest`: SHA-256 of its bytes in hex.
    """

    kind: str
    shape: tuple[int, ...]
    start: int
    digest: str

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * np.dtype(self.kind).itemsize

    def load(self, file: BinaryIO) -> Array:
        """Read the array; several threads may do so at once. DamagedError if its bytes have another digest."""
        array = np.empty(self.shape, self.kind)
        view, done = _bytes(array), 0
        # May read less than requested.
        while done < len(view) and (count := os.preadv(file.fileno(), [view[done:]], self.start + done)):
            done += count
        if done < len(view) or sha256(view).hexdigest() != self.digest:
            raise DamagedError("an array has changed since it was written")
        return array


@dataclass(frozen=True)
class DiskRecord:
    """A record of a file.

    `facts`: its JSON object; `parts`: its arrays by name; `end`: offset of its end; `digest`: SHA-256 of its head in
    hex.
    """

    facts: Mapping[str, Any]
    parts: Mapping[str, StoredArray]
    end: int
    digest: str


def records(file: BinaryIO) -> Iterator[DiskRecord]:
    """Yield the records of a file up to the first incomplete one; arrays are not read."""
    offset, before, size = 0, "", os.fstat(file.fileno()).st_size
    while (record := _record(file, offset, before, size)) is not None:
        yield record
        offset, before = record.end, record.digest


def _record(file: BinaryIO, offset: int, before: str, size: int) -> DiskRecord | None:
    lead = os.pread(file.fileno(), len(MAGIC) + FRAME.size, offset)
    if len(lead) < len(MAGIC) + FRAME.size or not lead.startswith(MAGIC):
        return None
    # Nothing of the file is trusted: a length is checked before it is allocated, a head before it is parsed.
    length, digest = FRAME.unpack(lead[len(MAGIC) :])
    if length > min(LONGEST_HEAD, size - offset):
        return None
    raw = os.pread(file.fileno(), length, offset + len(lead))
    if len(raw) < length or sha256(raw).digest() != digest:
        return None
    try:
        head = json.loads(raw)
        start = _aligned(offset + len(lead) + length)
        parts, end = {}, start
        for name, kind, shape, sha in head["parts"]:
            sound = isinstance(name, str) and isinstance(sha, str) and kind in KINDS and len(shape) <= MOST_AXES
            if not sound or not all(type(axis) is int and 0 <= axis <= size for axis in shape):
                return None
            parts[name] = StoredArray(kind, tuple(shape), end, sha)
            end = _aligned(end + parts[name].nbytes)
        # Chained to its predecessor, and complete.
        whole = head["before"] == before and end <= size and isinstance(head["facts"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return DiskRecord(head["facts"], parts, end, digest.hex()) if whole else None


def append(
    file: BinaryIO, before: DiskRecord | None, facts: Mapping[str, Any], arrays: Mapping[str, Array]
) -> DiskRecord:
    """Write a record behind `before`, or as the first, and wait until it is on the disk.

    All that follows `before` in the file is overwritten.
    """
    offset = 0 if before is None else before.end
    views = {name: _bytes(np.ascontiguousarray(array)) for name, array in arrays.items()}
    entries = [[name, array.dtype.str, array.shape, sha256(views[name]).hexdigest()] for name, array in arrays.items()]
    head = {"before": "" if before is None else before.digest, "facts": facts, "parts": entries}
    raw = json.dumps(head, separators=(",", ":")).encode()  # shapes become lists
    digest = sha256(raw).digest()
    lead = MAGIC + FRAME.pack(len(raw), digest)
    file.truncate(offset)
    _write(file, offset, memoryview(lead + raw))
    parts, end = {}, _aligned(offset + len(lead) + len(raw))
    for name, kind, shape, sha in entries:
        parts[name] = StoredArray(kind, tuple(shape), end, sha)
        _write(file, end, views[name])
        end = _aligned(end + len(views[name]))
    file.truncate(end)  # the last array is padded, too
    # The caller may report the record as saved only after this.
    os.fsync(file.fileno())
    return DiskRecord(facts, parts, end, digest.hex())


def _bytes(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _write(file: BinaryIO, offset: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(file.fileno(), view[done : done + WRITE_SIZE], offset + done)  # may write less than requested


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN
