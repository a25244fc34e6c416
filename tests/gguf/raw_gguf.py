"""GGUF files byte by byte, so that a test can write what no writer would. Layout: the GGUF specification."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def text(value: str | bytes) -> bytes:
    """Length and bytes."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, body: bytes) -> bytes:
    """One metadata record."""
    return text(name) + struct.pack("<I", kind) + body


def u32(name: str | bytes, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def string(name: str | bytes, value: str | bytes) -> bytes:
    return key(name, STRING, text(value))


def array(name: str, kind: int, count: int, body: bytes) -> bytes:
    return key(name, ARRAY, struct.pack("<IQ", kind, count) + body)


def tensor(name: str | bytes, dims: Sequence[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    """One tensor record; `dims` fastest first."""
    count = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def build(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; counts and magic can lie."""
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % alignment if tensors else 0) + data
