"""The header of a GGUF file, parsed with every count, length and offset checked before it is used.

A file is untrusted input. All arithmetic is in Python integers, which cannot wrap; every claim of a count is held
against the bytes that are left before anything is allocated or looped over. The classes of attack: CVE-2024-21802,
CVE-2025-53630, CVE-2026-27940, CVE-2026-33298. Source: the GGUF specification,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; type ids, and names and sizes of tensor types, come from the
`gguf` package, so that tensors `sp` cannot decode are still listed by name.
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
from sp.values import shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
DAMAGED = "the file is damaged or hostile: get it again and compare its checksum"

Array = npt.NDArray[Any]
Value = bool | int | float | str | list[str] | list[int] | list[float] | list[bool] | Array
"""What a metadata key may hold. A reader gives scalars, NumPy arrays and lists of str."""


ValueType = GGUFValueType  # type ids of metadata values

_CODES = {**dict(enumerate("BbHhIif?")), **dict(zip((10, 11, 12), "Qqd", strict=True))}
DTYPES: Mapping[int, np.dtype[Any]] = {ValueType(kind): np.dtype(f"<{code}") for kind, code in _CODES.items()}
"""NumPy type of every fixed-size value type."""
STRUCTS: Mapping[int, struct.Struct] = {
    ValueType(kind): struct.Struct(f"<{code}") for kind, code in _CODES.items() if code != "?"
}  # how a scalar of every number type is packed

TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    int(kind): (kind.name, block_size, block_bytes) for kind, (block_size, block_bytes) in GGML_QUANT_SIZES.items()
}  # ggml type id -> (name, values in a block, bytes in a block)

# Limits. The largest real vocabulary known (262K tokens, 515K merges) needs a header of some 16 MiB.
MAX_HEADER = 48 << 20  # bytes from the magic to the last tensor info
MAX_STRING = 1 << 20  # bytes of one string value
MAX_KEY = (1 << 16) - 1  # bytes; the specification's own limit
MAX_TENSOR_NAME = 63  # bytes; ggml keeps 64 with the terminating zero
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
NAME = 80  # characters of a name that messages show


class Cursor:
    """Reads forward through the header, fetching bytes as they are needed. `fd`, `size`, `path`: the open file, its
    size when it was opened, and its name for errors; `buffer`: the bytes fetched so far, from the start of the file;
    `pos`: where the next value starts."""

    def __init__(self, fd: int, size: int, path: str) -> None:
        self.fd, self.size, self.path = fd, size, path
        self.buffer, self.pos = bytearray(), 0

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


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array not decoded yet: `count` elements of `kind` at `start` of the header."""

    kind: int
    count: int
    start: int


class Metadata(Mapping[str, Value]):
    """Key-value pairs of a header; arrays are decoded when first asked for. Opening a model must not cost the half
    million Python strings of its vocabulary; `sp` itself seldom needs them all."""

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
                raise GGUFError(f"{self._path}: key {shown(key)} holds bools that are not 0 or 1; {DAMAGED}")
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
            where = f"string {len(texts)} of key {shown(key)}"
            raise GGUFError(f"{self._path}: {where} is not UTF-8 ({error.reason}); {DAMAGED}") from None
        return texts


_MIN_KEY_RECORD = 8 + 1 + 4 + 1  # length, name, type, value
_MIN_TENSOR_RECORD = 8 + 1 + 4 + 8 + 4 + 8  # length, name, n_dims, one dim, type, offset


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and how it is packed.

    `shape`: NumPy order, fastest axis last: ``(out, in)`` for a matrix; `ggml_type`: type id; `type_name` is its name;
    `nbytes`: packed size; `offset`: first byte, counted from the start of its file; `shard`: which file of a sharded
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
    """A parsed header. `size` is the file size it was checked against."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    size: int


def parse_header(fd: int, size: int, path: str, shard: int = 0) -> Header:
    """Parse and check the header of the open file `fd` of `size` bytes; GGUFError on anything amiss."""
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
    """Magic and version, with a message of its own for each usual mistake."""
    if cursor.size == 0:
        raise cursor.fail("is empty (0 bytes)", "get the file again")
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


def _count(cursor: Cursor, what: str, limit: int, record: int) -> int:
    count = cursor.u64(what)
    if count > limit or count * record > cursor.left:
        raise cursor.fail(f"{what} {count} is over {limit} or needs more than the {cursor.left} bytes left")
    return count


def _key_values(cursor: Cursor, n_keys: int) -> tuple[dict[str, Value | ArrayRef], dict[str, int]]:
    entries: dict[str, Value | ArrayRef] = {}
    kinds: dict[str, int] = {}
    strings_left = MAX_STRINGS
    for index in range(n_keys):
        key = cursor.name(MAX_KEY, f"name of key {index}")
        what = f"key {shown(key, NAME)}"
        if key in entries:
            raise cursor.fail(f"{what} appears twice")
        kind = cursor.u32(what)
        value = _array(cursor, what, strings_left) if kind == ValueType.ARRAY else _scalar(cursor, kind, what)
        if isinstance(value, ArrayRef) and value.kind == ValueType.STRING:
            strings_left -= value.count
        entries[key], kinds[key] = value, kind
    return entries, kinds


def _scalar(cursor: Cursor, kind: int, what: str) -> Value:
    if kind == ValueType.STRING:
        return cursor.text(MAX_STRING, what)
    if kind == ValueType.BOOL:
        byte = cursor.buffer[cursor.take(1, what)]
        if byte > 1:
            raise cursor.fail(f"{what} is a bool of value {byte}, not 0 or 1")
        return bool(byte)
    if kind not in STRUCTS:
        raise cursor.fail(f"{what} has unknown value type {kind}")
    packed = STRUCTS[kind]
    value: int | float = packed.unpack_from(cursor.buffer, cursor.take(packed.size, what))[0]
    return value


def _array(cursor: Cursor, what: str, strings_left: int) -> ArrayRef:
    kind = cursor.u32(f"element type of {what}")
    count = cursor.u64(f"length of {what}")
    if kind == ValueType.ARRAY:
        raise cursor.fail(f"{what} is an array of arrays, which no model needs")
    if kind == ValueType.STRING:
        if count > strings_left or count * 8 > cursor.left:
            raise cursor.fail(f"{what} claims {count} strings in the {cursor.left} bytes left")
        start = cursor.pos
        cursor.skip_strings(count, what)
        return ArrayRef(kind, count, start)
    if kind not in DTYPES:
        raise cursor.fail(f"{what} has unknown element type {kind}")
    nbytes = count * DTYPES[kind].itemsize
    if count > MAX_ARRAY or nbytes > cursor.left:
        raise cursor.fail(f"{what} claims {count} elements in the {cursor.left} bytes left")
    return ArrayRef(kind, count, cursor.take(nbytes, what))


def _alignment(cursor: Cursor, entries: Mapping[str, object], kinds: Mapping[str, int]) -> int:
    value = entries.get("general.alignment", DEFAULT_ALIGNMENT)
    if kinds.get("general.alignment", ValueType.UINT32) != ValueType.UINT32 or not isinstance(value, int):
        raise cursor.fail("general.alignment is not a uint32")
    if value == 0 or value & (value - 1) or value > MAX_ALIGNMENT:
        raise cursor.fail(f"general.alignment {value} is not a power of two up to {MAX_ALIGNMENT}")
    return value


def _tensor_info(cursor: Cursor, index: int) -> TensorInfo:
    """One record; its offset still counts from the start of the data."""
    name = cursor.name(MAX_TENSOR_NAME, f"name of tensor {index}")
    what = f"tensor {name!r}"
    n_dims = cursor.u32(what)
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(f"{what} has {n_dims} dimensions, not 1 to {MAX_DIMS}")
    dims = struct.unpack_from(f"<{n_dims}Q", cursor.buffer, cursor.take(8 * n_dims, what))
    ggml_type = cursor.u32(what)
    offset = cursor.u64(what)
    elements = 1
    for size in dims:
        elements *= size
        if not 1 <= size <= MAX_DIM or elements > MAX_ELEMENTS:
            raise cursor.fail(f"{what} has impossible dimensions {dims}")
    if ggml_type not in TENSOR_TYPES:
        advice = "it is newer than the installed gguf package, or damaged"
        raise cursor.fail(f"unknown type {ggml_type} in {what}", advice)
    type_name, block_size, block_bytes = TENSOR_TYPES[ggml_type]
    if dims[0] % block_size:
        raise cursor.fail(f"{what}: a row of {dims[0]} is not whole {type_name} blocks of {block_size}")
    return TensorInfo(name, dims[::-1], ggml_type, type_name, elements // block_size * block_bytes, offset)


def _place(
    cursor: Cursor, infos: list[TensorInfo], data_start: int, alignment: int, shard: int
) -> tuple[TensorInfo, ...]:
    """Check that tensors are aligned, inside the file, apart from each other and named once."""
    data_bytes = cursor.size - data_start
    names = set()
    for info in infos:
        what = f"tensor {info.name!r}"
        if info.name in names:
            raise cursor.fail(f"{what} appears twice")
        names.add(info.name)
        if info.offset % alignment:
            raise cursor.fail(f"{what} starts at {info.offset}, which is not aligned to {alignment}")
        if info.offset + info.nbytes > data_bytes:
            end = data_start + info.offset + info.nbytes
            raise cursor.fail(f"truncated: {what} ends at byte {end} of {cursor.size}")
    for one, other in pairwise(sorted(infos, key=lambda info: info.offset)):
        if one.offset + one.nbytes > other.offset:
            raise cursor.fail(f"tensors {one.name!r} and {other.name!r} overlap")
    return tuple(replace(info, offset=data_start + info.offset, shard=shard) for info in infos)
