"""Metadata values to bytes, in the value types llama.cpp expects to find."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from sp.errors import GGUFError
from sp.gguf import value_types as k
from sp.gguf.value_types import Value, ValueType

_BY_DTYPE: Mapping[Any, ValueType] = {dtype: ValueType(kind) for kind, dtype in k.DTYPES.items()}

# llama.cpp reads these with one exact type; a Python value alone would not tell it.
_SCALARS: Mapping[str, ValueType] = {
    "split.no": ValueType.UINT16,
    "split.count": ValueType.UINT16,
    "split.tensors.count": ValueType.INT32,
    ".rope.freq_base": ValueType.FLOAT32,
    ".rope.scaling.factor": ValueType.FLOAT32,
    ".rope.scaling.attn_factor": ValueType.FLOAT32,
    ".rope.scaling.yarn_ext_factor": ValueType.FLOAT32,
    ".rope.scaling.yarn_attn_factor": ValueType.FLOAT32,
    ".rope.scaling.yarn_beta_fast": ValueType.FLOAT32,
    ".rope.scaling.yarn_beta_slow": ValueType.FLOAT32,
    ".attention.layer_norm_rms_epsilon": ValueType.FLOAT32,
    ".attention.layer_norm_epsilon": ValueType.FLOAT32,
}
_ELEMENTS: Mapping[str, ValueType] = {
    "tokenizer.ggml.tokens": ValueType.STRING,
    "tokenizer.ggml.merges": ValueType.STRING,
    "tokenizer.ggml.token_type": ValueType.INT32,
    "tokenizer.ggml.scores": ValueType.FLOAT32,
}


def encode_string(text: str) -> bytes:
    """Length (u64) and UTF-8 bytes."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise GGUFError(f"cannot write {text[:40]!r}: {error.reason}; GGUF text is UTF-8") from None
    return struct.pack("<Q", len(raw)) + raw


def encode_key_value(key: str, value: Value) -> bytes:
    """One metadata record.

    bool becomes bool; int u32, or i32, i64, u64 when it does not fit; float f32; lists of int i32 (or i64, u64);
    NumPy scalars and arrays keep their own type. A few keys have the one type llama.cpp reads, whatever the
    Python value: ``rope.freq_base`` is f32 even for ``1000000``.

    Raises
    ------
    GGUFError
        On a bad key, a type GGUF lacks, a list of mixed types or an empty list of unknown element type.

    Examples
    --------
    >>> encode_key_value("a", 7)[9:].hex()
    '0400000007000000'
    >>> import numpy as np
    >>> encode_key_value("a", np.uint16(7))[9:].hex()
    '020000000700'
    """
    raw_key = encode_string(key)
    if not key.isprintable() or not 8 < len(raw_key) <= 8 + k.MAX_KEY:
        raise GGUFError(f"cannot write key {key[:40]!r}: it must be 1 to {k.MAX_KEY} printable bytes")
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, list | tuple | np.ndarray):
        kind, body = _array(key, value, _ELEMENTS.get(key))
        return raw_key + struct.pack("<IIQ", ValueType.ARRAY, kind, len(value)) + body
    if key in _ELEMENTS:
        raise GGUFError(f"cannot write key {key!r}: it holds a list, not a {type(value).__name__}")
    fixed = next((kind for suffix, kind in _SCALARS.items() if key.endswith(suffix)), None)
    kind = fixed if fixed is not None else _scalar_type(key, value)
    return raw_key + struct.pack("<I", kind) + _scalar(key, kind, value)


def _scalar_type(key: str, value: object) -> ValueType:
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, np.generic) and value.dtype in _BY_DTYPE:
        return _BY_DTYPE[value.dtype]
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        order = (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64)
        return _narrowest(key, value, value, order)
    if isinstance(value, float):
        return ValueType.FLOAT32
    raise GGUFError(f"cannot write key {key!r}: GGUF has no type for {type(value).__name__}")


def _scalar(key: str, kind: ValueType, value: Any) -> bytes:
    try:
        if kind == ValueType.STRING:
            return encode_string(value)
        if kind == ValueType.BOOL:
            return bytes([bool(value)])
        return k.STRUCTS[kind].pack(float(value) if kind in (6, 12) else int(value))
    except (struct.error, OverflowError, TypeError, ValueError, AttributeError):
        raise GGUFError(f"cannot write key {key!r}: {value!r:.40} is no {kind.name.lower()}") from None


def _array(key: str, value: Any, fixed: ValueType | None) -> tuple[ValueType, bytes]:
    if fixed == ValueType.STRING or (fixed is None and len(value) and isinstance(value[0], str)):
        if not all(isinstance(item, str) for item in value):
            raise GGUFError(f"cannot write key {key!r}: not every element is a str")
        return ValueType.STRING, b"".join(map(encode_string, value))
    if isinstance(value, np.ndarray) and fixed is None:
        fixed = _BY_DTYPE.get(value.dtype)
        if value.ndim != 1 or fixed is None:
            raise GGUFError(f"cannot write key {key!r}: an array of {value.dtype} and {value.ndim} dimensions")
    kind = fixed if fixed is not None else _element_type(key, value)
    try:
        packed = np.asarray(value, dtype=k.DTYPES[kind])
    except (OverflowError, TypeError, ValueError):
        raise GGUFError(f"cannot write key {key!r}: not every element is a {kind.name.lower()}") from None
    return kind, packed.tobytes()


def _element_type(key: str, value: list[Any]) -> ValueType:
    types = {type(item) for item in value}
    if types == {bool}:
        return ValueType.BOOL
    if types == {int}:
        order = (ValueType.INT32, ValueType.INT64, ValueType.UINT64)
        return _narrowest(key, min(value), max(value), order)
    if types and types <= {int, float}:
        return ValueType.FLOAT32
    problem = "is an empty list, whose type is unknown" if not types else "mixes types"
    raise GGUFError(f"cannot write key {key!r}: it {problem}; give a NumPy array")


def _narrowest(key: str, low: int, high: int, order: tuple[ValueType, ...]) -> ValueType:
    for kind in order:
        bounds = np.iinfo(k.DTYPES[kind])
        if bounds.min <= low and high <= bounds.max:
            return kind
    raise GGUFError(f"cannot write key {key!r}: the integer {high} does not fit 64 bits")
