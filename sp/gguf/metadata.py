"""The key-value pairs of a header, with arrays decoded only when somebody asks for them.

Opening a model must not cost the half million Python strings of its vocabulary; `sp` itself seldom needs them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sp.errors import GGUFError
from sp.gguf.value_types import DAMAGED, DTYPES, Value, ValueType
from sp.values import shown

_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array not decoded yet: `count` elements of `kind` at `start` of the header."""

    kind: int
    count: int
    start: int


class Metadata(Mapping[str, Value]):
    """Key-value pairs of a header; arrays are decoded when first asked for."""

    def __init__(self, path: str, header: bytearray, entries: dict[str, Value | ArrayRef]) -> None:
        self._path = path
        self._header = header
        self._entries = entries

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
