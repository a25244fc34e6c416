"""The header of a GGUF file, parsed with every count, length and offset checked before it is used.

A file is untrusted input. All arithmetic is in Python integers, which cannot wrap; every count is compared with the
remaining bytes before anything is allocated or looped over. Known attacks of this kind: CVE-2024-21802, CVE-2025-53630,
CVE-2026-27940, CVE-2026-33298. Source: the GGUF specification,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; type ids, and names and sizes of tensor types, come from the
`gguf` package, so that tensors which `sp` cannot decode are still listed by name.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType

from sp.errors import GGUFError
from sp.values import preview

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
DAMAGED = "the file is damaged or hostile: download it again and compare its checksum"

Array = npt.NDArray[Any]
Value = bool | int | float | str | list[str] | list[int] | list[float] | list[bool] | Array
"""Types of metadata values. A reader returns scalars, NumPy arrays and lists of str."""


ValueType = GGUFValueType  # type ids of metadata values

_CODES = {**dict(enumerate("BbHhIif?")), **dict(zip((10, 11, 12), "Qqd", strict=True))}
DTYPES: Mapping[int, np.dtype[Any]] = {ValueType(kind): np.dtype(f"<{code}") for kind, code in _CODES.items()}
"""NumPy type of every fixed-size value type."""
STRUCTS: Mapping[int, struct.Struct] = {
    ValueType(kind): struct.Struct(f"<{code}") for kind, code in _CODES.items() if code != "?"
}  # binary form of a scalar, by number type

TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    int(kind): (kind.name, block_size, block_bytes) for kind, (block_size, block_bytes) in GGML_QUANT_SIZES.items()
}  # ggml type id -> (name, values in a block, bytes in a block)

# Limits. The largest known vocabulary (262K tokens, 515K merges) needs a header of about 16 MiB.
MAX_HEADER = 48 << 20  # bytes from the magic to the last tensor info
MAX_STRING = 1 << 20  # bytes of one string value
MAX_KEY = (1 << 16) - 1  # bytes; the specification's own limit
MAX_TENSOR_NAME = 63  # bytes; ggml's buffer has 64 with the terminating zero
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 20  # strings in all arrays of one file
MAX_ARRAY = 1 << 22  # elements of one array of numbers
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_DIM = (1 << 31) - 1
MAX_ELEMENTS = 1 << 40  # of one tensor
MAX_SHARDS = 1000

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_READ_STEP = 1 << 20  # bytes
NAME = 80  # most characters of a name in an error message


class Cursor:
    """Reads forward through the header, fetching bytes as needed. `fd`, `size`, `path`: the open file, its size when it
    was opened, and its name for errors; `buffer`: the bytes fetched so far, from the start of the file; `pos`: offset
    of the next value."""

    def __init__(self, fd: int, size: int, path: str) -> None:
        self.fd, self.size, self.path = fd, size, path
        self.buffer, self.pos = bytearray(), 0

    def fail(self, problem: str, advice: str = DAMAGED) -> GGUFError:
        """Return an error that names the file, the problem and what to do."""
        return GGUFError(f"{self.path}: {problem}; {advice}")

    @property
    def remaining(self) -> int:
        """Bytes of the file after `pos`."""
        return self.size - self.pos

    def fetch(self, end: int, label: str) -> None:
        """Read on until the bytes up to `end` are in the buffer."""
        if end > self.size:
            raise self.fail(f"truncated: {label} at byte {self.pos} runs past the end ({self.size} bytes)")
        if end > MAX_HEADER:
            raise self.fail(f"header is longer than {MAX_HEADER >> 20} MiB, at {label}")
        while len(self.buffer) < end:
            ahead = max(end, 2 * len(self.buffer), _READ_STEP)  # doubling bounds the number of reads and copies
            want = min(self.size, MAX_HEADER, ahead) - len(self.buffer)
            piece = os.pread(self.fd, want, len(self.buffer))
            if not piece:
                raise self.fail(f"shrank to {len(self.buffer)} bytes while it was read")
            self.buffer += piece

    def take(self, count: int, label: str) -> int:
        """Step over `count` bytes and return their offset."""
        start, self.pos = self.pos, self.pos + count
        if self.pos > len(self.buffer):
            self.pos = start
            self.fetch(start + count, label)
            self.pos = start + count
        return start

    def u32(self, label: str) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4, label))[0])

    def u64(self, label: str) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8, label))[0])

    def text(self, limit: int, label: str) -> str:
        """Read a length-prefixed UTF-8 string of at most `limit` bytes."""
        length = self.u64(label)
        if length > limit:
            raise self.fail(f"{label} claims {length} bytes at byte {self.pos - 8}, more than {limit}")
        start = self.take(length, label)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{label} at byte {start} is not UTF-8 ({error.reason})") from None

    def name(self, limit: int, label: str) -> str:
        """Read a string that names something: not empty, no control characters."""
        name = self.text(limit, label)
        if not name or not name.isprintable():
            raise self.fail(f"{label} {preview(name, NAME)} is empty or contains unprintable characters")
        return name

    def skip_strings(self, count: int, label: str) -> None:
        """Step over `count` strings and check each length; the inner loop of opening a large vocabulary."""
        # Local names: attribute look-ups cost time in a loop over half a million strings.
        pos, available, length_at, buffer = self.pos, len(self.buffer), _U64.unpack_from, self.buffer
        for index in range(count):
            if pos + 8 > available:
                self.pos = min(pos, self.size)
                self.fetch(pos + 8, f"string {index} of {label}")
                available = len(buffer)
            length = length_at(buffer, pos)[0]
            if length > MAX_STRING:
                raise self.fail(f"string {index} of {label} claims {length} bytes, more than {MAX_STRING}")
            pos += 8 + length
        self.take(pos - self.pos, f"the last string of {label}")


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array that is not decoded yet: `count` elements of `kind` at offset `start` of the header."""

    kind: int
    count: int
    start: int


class Metadata(Mapping[str, Value]):
    """Key-value pairs of a header; arrays are decoded on first access. Opening a model must not create the half million
    Python strings of its vocabulary, which `sp` itself seldom needs."""

    def __init__(self, path: str, header: bytearray, entries: dict[str, Value | ArrayRef]) -> None:
        self._path, self._header, self._entries = path, header, entries

    def __getitem__(self, key: str) -> Value:
        value = self._entries[key]
        if isinstance(value, ArrayRef):
            value = self._decode(key, value)
            self._entries[key] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _decode(self, key: str, ref: ArrayRef) -> Value:
        if ref.kind == ValueType.STRING:
            return self._strings(key, ref)
        if ref.kind == ValueType.BOOL:
            raw = np.frombuffer(self._header, np.uint8, ref.count, ref.start)
            if raw.max(initial=0) > 1:
                raise GGUFError(f"{self._path}: key {preview(key)} contains bools that are not 0 or 1; {DAMAGED}")
            return raw.astype(np.bool_)
        return np.frombuffer(self._header, DTYPES[ref.kind], ref.count, ref.start).copy()

    def _strings(self, key: str, ref: ArrayRef) -> list[str]:
        header, length_at, pos = self._header, _U64.unpack_from, ref.start
        texts = []
        try:
            for _ in range(ref.count):
                end = pos + 8 + length_at(header, pos)[0]
                texts.append(header[pos + 8 : end].decode())
                pos = end
        except UnicodeDecodeError as error:
            where = f"string {len(texts)} of key {preview(key)}"
            raise GGUFError(f"{self._path}: {where} is not UTF-8 ({error.reason}); {DAMAGED}") from None
        return texts


_MIN_KEY_RECORD = 8 + 1 + 4 + 1  # length, name, type, value
_MIN_TENSOR_RECORD = 8 + 1 + 4 + 8 + 4 + 8  # length, name, n_dims, one dim, type, offset


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Position and packing of a tensor.

    `shape`: NumPy order, fastest axis last: ``(out, in)`` for a matrix; `ggml_type`: type id; `type_name`: its name;
    `nbytes`: packed size; `offset`: first byte, from the start of its file; `shard`: index of its file in a sharded
    model, from 0.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    type_name: str
    nbytes: int
    offset: int
    shard: int = 0

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A parsed header. `size`: the file size against which it was checked."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    size: int


def parse_header(fd: int, size: int, path: str, shard: int = 0) -> Header:
    """Parse and check the header of the open file `fd` of `size` bytes; GGUFError if anything is wrong."""
    cursor = Cursor(fd, size, path)
    version = _preamble(cursor)
    n_tensors = _count(cursor, "tensor count", MAX_TENSORS, _MIN_TENSOR_RECORD)
    n_keys = _count(cursor, "key count", MAX_KEYS, _MIN_KEY_RECORD)
    entries, kinds = _key_values(cursor, n_keys)
    alignment = _alignment(cursor, entries, kinds)
    infos = [_tensor_info(cursor, index) for index in range(n_tensors)]
    data_start = -(-cursor.pos // alignment) * alignment
    tensors = _place(cursor, infos, data_start, alignment, shard)
    return Header(version, alignment, Metadata(path, cursor.buffer, entries), tensors, size)


def _preamble(cursor: Cursor) -> int:
    """Check magic and version, with a separate message for each common mistake."""
    if cursor.size == 0:
        raise cursor.fail("is empty (0 bytes)", "download the file again")
    head = os.pread(cursor.fd, 4, 0)
    if head != MAGIC:
        advice = "give a .gguf file; models in other formats must be converted first"
        raise cursor.fail(f"is not a GGUF file: it starts with {head!r}, not {MAGIC!r}", advice)
    if cursor.size < 24:
        raise cursor.fail(f"truncated: {cursor.size} bytes cannot hold the 24-byte preamble")
    cursor.take(4, "magic")
    version = cursor.u32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, *VERSIONS):
            raise cursor.fail("is a big-endian GGUF file", "convert it to little-endian")
        raise cursor.fail(f"has GGUF version {version}, not 2 or 3", "convert the model with a current tool")
    return version


def _count(cursor: Cursor, label: str, limit: int, record: int) -> int:
    count = cursor.u64(label)
    if count > limit or count * record > cursor.remaining:
        raise cursor.fail(f"{label} {count} is over {limit} or needs more than the {cursor.remaining} remaining bytes")
    return count


def _key_values(cursor: Cursor, n_keys: int) -> tuple[dict[str, Value | ArrayRef], dict[str, int]]:
    entries: dict[str, Value | ArrayRef] = {}
    kinds: dict[str, int] = {}
    strings_left = MAX_STRINGS
    for index in range(n_keys):
        key = cursor.name(MAX_KEY, f"name of key {index}")
        label = f"key {preview(key, NAME)}"
        if key in entries:
            raise cursor.fail(f"{label} appears twice")
        kind = cursor.u32(label)
        value = _array(cursor, label, strings_left) if kind == ValueType.ARRAY else _scalar(cursor, kind, label)
        if isinstance(value, ArrayRef) and value.kind == ValueType.STRING:
            strings_left -= value.count
        entries[key], kinds[key] = value, kind
    return entries, kinds


def _scalar(cursor: Cursor, kind: int, label: str) -> Value:
    if kind == ValueType.STRING:
        return cursor.text(MAX_STRING, label)
    if kind == ValueType.BOOL:
        byte = cursor.buffer[cursor.take(1, label)]
        if byte > 1:
            raise cursor.fail(f"{label} is a bool of value {byte}, not 0 or 1")
        return bool(byte)
    if kind not in STRUCTS:
        raise cursor.fail(f"{label} has unknown value type {kind}")
    packed = STRUCTS[kind]
    value: int | float = packed.unpack_from(cursor.buffer, cursor.take(packed.size, label))[0]
    return value


def _array(cursor: Cursor, label: str, strings_left: int) -> ArrayRef:
    kind = cursor.u32(f"element type of {label}")
    count = cursor.u64(f"length of {label}")
    if kind == ValueType.ARRAY:
        raise cursor.fail(f"{label} is an array of arrays, which no model needs")
    if kind == ValueType.STRING:
        if count > strings_left or count * 8 > cursor.remaining:
            raise cursor.fail(f"{label} claims {count} strings in the {cursor.remaining} bytes left")
        start = cursor.pos
        cursor.skip_strings(count, label)
        return ArrayRef(kind, count, start)
    if kind not in DTYPES:
        raise cursor.fail(f"{label} has unknown element type {kind}")
    nbytes = count * DTYPES[kind].itemsize
    if count > MAX_ARRAY or nbytes > cursor.remaining:
        raise cursor.fail(f"{label} claims {count} elements in the {cursor.remaining} bytes left")
    return ArrayRef(kind, count, cursor.take(nbytes, label))


def _alignment(cursor: Cursor, entries: Mapping[str, object], kinds: Mapping[str, int]) -> int:
    value = entries.get("general.alignment", DEFAULT_ALIGNMENT)
    if kinds.get("general.alignment", ValueType.UINT32) != ValueType.UINT32 or not isinstance(value, int):
        raise cursor.fail("general.alignment is not a uint32")
    if value == 0 or value & (value - 1) or value > MAX_ALIGNMENT:
        raise cursor.fail(f"general.alignment {value} is not a power of two up to {MAX_ALIGNMENT}")
    return value


def _tensor_info(cursor: Cursor, index: int) -> TensorInfo:
    """Read one record; its offset still counts from the start of the data."""
    name = cursor.name(MAX_TENSOR_NAME, f"name of tensor {index}")
    label = f"tensor {name!r}"
    n_dims = cursor.u32(label)
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(f"{label} has {n_dims} dimensions, not 1 to {MAX_DIMS}")
    dims = struct.unpack_from(f"<{n_dims}Q", cursor.buffer, cursor.take(8 * n_dims, label))
    ggml_type = cursor.u32(label)
    offset = cursor.u64(label)
    elements = 1
    for size in dims:
        elements *= size
        if not 1 <= size <= MAX_DIM or elements > MAX_ELEMENTS:
            raise cursor.fail(f"{label} has impossible dimensions {dims}")
    if ggml_type not in TENSOR_TYPES:
        advice = "it is newer than the installed gguf package, or damaged"
        raise cursor.fail(f"unknown type {ggml_type} in {label}", advice)
    type_name, block_size, block_bytes = TENSOR_TYPES[ggml_type]
    if dims[0] % block_size:
        raise cursor.fail(f"{label}: a row of {dims[0]} is not whole {type_name} blocks of {block_size}")
    return TensorInfo(name, dims[::-1], ggml_type, type_name, elements // block_size * block_bytes, offset)


def _place(
    cursor: Cursor, infos: list[TensorInfo], data_start: int, alignment: int, shard: int
) -> tuple[TensorInfo, ...]:
    """Check that tensors are aligned, inside the file, disjoint and uniquely named, and make offsets absolute."""
    data_bytes = cursor.size - data_start
    names = set()
    for info in infos:
        label = f"tensor {info.name!r}"
        if info.name in names:
            raise cursor.fail(f"{label} appears twice")
        names.add(info.name)
        if info.offset % alignment:
            raise cursor.fail(f"{label} starts at {info.offset}, which is not aligned to {alignment}")
        if info.offset + info.nbytes > data_bytes:
            end = data_start + info.offset + info.nbytes
            raise cursor.fail(f"truncated: {label} ends at byte {end} of {cursor.size}")
    for tensor, following in pairwise(sorted(infos, key=lambda info: info.offset)):
        if tensor.offset + tensor.nbytes > following.offset:
            raise cursor.fail(f"tensors {tensor.name!r} and {following.name!r} overlap")
    return tuple(replace(info, offset=data_start + info.offset, shard=shard) for info in infos)
