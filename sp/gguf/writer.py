"""Write a GGUF v3 file: metadata, tensor table, then the data streamed tensor by tensor.

Bytes go to a temporary file next to the target, which is renamed once complete, so that neither an error nor an
interrupt leaves half a model behind."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sp.arrays import Bytes
from sp.errors import GGUFError
from sp.gguf import header as k
from sp.gguf.header import Value, ValueType
from sp.quant import BlockFormat

_BY_DTYPE: Mapping[Any, ValueType] = {dtype: ValueType(kind) for kind, dtype in k.DTYPES.items()}

# llama.cpp reads these keys with one exact type, which a Python value alone does not determine.
_SCALARS: Mapping[str, ValueType] = {
    **dict.fromkeys(("split.no", "split.count"), ValueType.UINT16),
    "split.tensors.count": ValueType.INT32,
    ".rope.freq_base": ValueType.FLOAT32,
    **{f".rope.scaling.{name}": ValueType.FLOAT32 for name in ("factor", "attn_factor")},
    **{
        f".rope.scaling.yarn_{name}": ValueType.FLOAT32
        for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow")
    },
    **{f".attention.layer_norm_{name}": ValueType.FLOAT32 for name in ("rms_epsilon", "epsilon")},
}
_ELEMENTS: Mapping[str, ValueType] = {
    "tokenizer.ggml.tokens": ValueType.STRING,
    "tokenizer.ggml.merges": ValueType.STRING,
    "tokenizer.ggml.token_type": ValueType.INT32,
    "tokenizer.ggml.scores": ValueType.FLOAT32,
}


def encode_string(text: str) -> bytes:
    """Return the length (u64) and the UTF-8 bytes."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise GGUFError(f"cannot write {text[:40]!r}: {error.reason}; GGUF text is UTF-8") from None
    return struct.pack("<Q", len(raw)) + raw


def encode_key_value(key: str, value: Value) -> bytes:
    """Return one metadata record.

    bool becomes bool; int u32, or i32, i64, u64 if it does not fit; float f32; lists of int i32 (or i64, u64); NumPy
    scalars and arrays have their own type. A few keys always have the one type that llama.cpp reads:
    ``rope.freq_base`` is f32 even for ``1000000``.

    GGUFError on a bad key, a type GGUF lacks, a list of mixed types or an empty list of unknown element type.

    >>> encode_key_value("a", 7)[9:].hex(), encode_key_value("a", np.uint16(7))[9:].hex()
    ('0400000007000000', '020000000700')
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
        raise GGUFError(f"cannot write key {key!r}: it needs a list, not a {type(value).__name__}")
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
        raise GGUFError(f"cannot write key {key!r}: {value!r:.40} is not a {kind.name.lower()}") from None


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
    raise GGUFError(f"cannot write key {key!r}: the integer {high} does not fit in 64 bits")


Data = Bytes | Callable[[], Iterable[Bytes]]


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    fmt: BlockFormat
    nbytes: int
    data: Data


class GGUFWriter:
    """Collects tensors, then writes them in the order they were added.

    Parameters
    ----------
    path : str or Path
        The file to create; an old one is replaced only when the new one is complete.
    metadata : mapping of str to value
        bool, int, float, str, lists of one of these, NumPy scalars and arrays. See
        `sp.gguf.writer.encode_key_value` for their types in the file.

    Examples
    --------
    >>> import tempfile
    >>> from sp.gguf.reader import GGUFFile
    >>> from sp.quant import Q8_0
    >>> writer = GGUFWriter(Path(tempfile.mkdtemp()) / "m.gguf", {"general.architecture": "qwen3"})
    >>> writer.add("blk.0.ffn_up.weight", (4, 32), Q8_0, lambda: (np.zeros(34, np.uint8) for _ in range(4)))
    >>> with GGUFFile.open(writer.write()) as file:
    ...     file.weight("blk.0.ffn_up.weight").dense().shape
    (4, 32)
    """

    def __init__(self, path: str | Path, metadata: Mapping[str, Value]) -> None:
        self.path = Path(path)
        self._pairs = [encode_key_value(key, value) for key, value in metadata.items()]
        alignment = metadata.get("general.alignment", k.DEFAULT_ALIGNMENT)
        valid = isinstance(alignment, int | np.integer) and 0 < alignment <= k.MAX_ALIGNMENT
        if not valid or int(alignment) & (int(alignment) - 1):  # type: ignore[arg-type]
            raise GGUFError(f"general.alignment {alignment} is not a power of two up to {k.MAX_ALIGNMENT}")
        self._alignment = int(alignment)  # type: ignore[arg-type]
        self._tensors: dict[str, _Tensor] = {}

    def add(self, name: str, shape: tuple[int, ...], fmt: BlockFormat, data: Data) -> None:
        """Declare a tensor. `shape`: NumPy order, fastest axis last: ``(out, in)``. `data`, uint8 array, or callable
        that returns an iterable of uint8 arrays: the packed bytes, whole or in pieces; a callable runs only when its
        tensor is written. GGUFError on a name that is used already or too long, an impossible shape, or bytes of the
        wrong size."""
        size = len(name.encode())
        if not 0 < size <= k.MAX_TENSOR_NAME or not name.isprintable() or name in self._tensors:
            raise GGUFError(f"{self.path}: tensor name {name!r} is used already, unprintable or not 1 to 63 bytes long")
        if not 1 <= len(shape) <= k.MAX_DIMS or not all(1 <= n <= k.MAX_DIM for n in shape):
            raise GGUFError(f"{self.path}: tensor {name!r} has a shape that GGUF does not support: {shape}")
        shape = tuple(int(n) for n in shape)  # a NumPy integer could wrap below
        nbytes = fmt.nbytes(shape)
        if isinstance(data, np.ndarray):
            self._check_piece(name, data)
            if data.size != nbytes:
                raise GGUFError(f"{self.path}: tensor {name!r} needs {nbytes} bytes, got {data.size}")
        self._tensors[name] = _Tensor(name, shape, fmt, nbytes, data)

    def write(self, progress: Callable[[int], None] | None = None) -> Path:
        """Write the file and return its path. `progress`: called after every piece with its bytes. GGUFError if the
        disk fails, or a tensor yields another number of bytes than declared; then no file is left."""
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with open(temporary, "xb") as out:
                out.write(self._header())
                for tensor in self._tensors.values():
                    self._write_tensor(out, tensor, progress)
            os.replace(temporary, self.path)
        except OSError as error:
            raise GGUFError(f"{self.path}: cannot be written ({error.strerror or error})") from error
        finally:
            with suppress(OSError):
                temporary.unlink()  # after success it has been renamed
        return self.path

    def _header(self) -> bytes:
        """Return everything before the data, padded to the alignment."""
        parts = [k.MAGIC, struct.pack("<IQQ", 3, len(self._tensors), len(self._pairs)), *self._pairs]
        offset = 0
        for tensor in self._tensors.values():
            dims = tensor.shape[::-1]  # the file lists the fastest axis first
            parts.append(encode_string(tensor.name))
            parts.append(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.fmt.ggml_type, offset))
            offset += tensor.nbytes + self._padding(tensor.nbytes)
        header = b"".join(parts)
        return header + bytes(self._padding(len(header)))

    def _padding(self, size: int) -> int:
        return -size % self._alignment

    def _write_tensor(self, out: BinaryIO, tensor: _Tensor, progress: Callable[[int], None] | None) -> None:
        done = 0
        for piece in [tensor.data] if isinstance(tensor.data, np.ndarray) else tensor.data():
            self._check_piece(tensor.name, piece)
            done += piece.size
            if done > tensor.nbytes:
                break
            out.write(np.ascontiguousarray(piece).reshape(-1).data)
            if progress is not None:
                progress(piece.size)
        if done != tensor.nbytes:
            raise GGUFError(
                f"{self.path}: tensor {tensor.name!r} needs {tensor.nbytes} bytes, its data has "
                f"{'more' if done > tensor.nbytes else done}"
            )
        out.write(bytes(self._padding(tensor.nbytes)))

    def _check_piece(self, name: str, piece: Bytes) -> None:
        if not isinstance(piece, np.ndarray) or piece.dtype != np.uint8:
            kind = getattr(piece, "dtype", type(piece).__name__)
            raise GGUFError(f"{self.path}: data of tensor {name!r} is {kind}, not uint8; encode it first")
