"""Write a GGUF v3 file: metadata, tensor table, then the data streamed tensor by tensor.

Bytes go to a temporary file beside the target, renamed over it once complete, so that neither an error nor an
interrupt leaves half a model behind.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sp.arrays import Bytes
from sp.errors import GGUFError
from sp.gguf import value_types as k
from sp.gguf.encode import encode_key_value, encode_string
from sp.gguf.value_types import Value
from sp.quant import BlockFormat

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
        The file to make; an old one is replaced only when the new one is complete.
    metadata : mapping of str to value
        bool, int, float, str, lists of one of these, NumPy scalars and arrays. See
        `sp.gguf.encode.encode_key_value` for the types they become.

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
        """Declare a tensor.

        Parameters
        ----------
        name : str
        shape : tuple of int
            NumPy order, fastest axis last: ``(out, in)``.
        fmt : BlockFormat
        data : uint8 array, or callable that returns an iterable of uint8 arrays
            The packed bytes, whole or in pieces; a callable runs only when its turn to be written comes.

        Raises
        ------
        GGUFError
            On a name that is taken or too long, an impossible shape, or bytes of the wrong size.
        """
        size = len(name.encode())
        if not 0 < size <= k.MAX_TENSOR_NAME or not name.isprintable() or name in self._tensors:
            raise GGUFError(f"{self.path}: tensor name {name!r} is taken, unprintable or not 1 to 63 bytes long")
        if not 1 <= len(shape) <= k.MAX_DIMS or not all(1 <= n <= k.MAX_DIM for n in shape):
            raise GGUFError(f"{self.path}: tensor {name!r} has a shape GGUF cannot hold: {shape}")
        shape = tuple(int(n) for n in shape)  # a NumPy integer could wrap below
        nbytes = fmt.nbytes(shape)
        if isinstance(data, np.ndarray):
            self._check_piece(name, data)
            if data.size != nbytes:
                raise GGUFError(f"{self.path}: tensor {name!r} needs {nbytes} bytes, got {data.size}")
        self._tensors[name] = _Tensor(name, shape, fmt, nbytes, data)

    def write(self, progress: Callable[[int], None] | None = None) -> Path:
        """Write the file and return its path.

        Parameters
        ----------
        progress : callable, optional
            Called after every piece with its bytes.

        Raises
        ------
        GGUFError
            When the disk refuses, or a tensor yields another number of bytes than declared. No file is left.
        """
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
                temporary.unlink()  # gone already when all went well
        return self.path

    def _header(self) -> bytes:
        """Everything before the data, padded to the alignment."""
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
        for piece in _pieces(tensor.data):
            self._check_piece(tensor.name, piece)
            done += piece.size
            if done > tensor.nbytes:
                break
            out.write(np.ascontiguousarray(piece).reshape(-1).data)
            if progress is not None:
                progress(piece.size)
        if done != tensor.nbytes:
            raise GGUFError(
                f"{self.path}: tensor {tensor.name!r} needs {tensor.nbytes} bytes, its data gave "
                f"{'more' if done > tensor.nbytes else done}"
            )
        out.write(bytes(self._padding(tensor.nbytes)))

    def _check_piece(self, name: str, piece: Bytes) -> None:
        if not isinstance(piece, np.ndarray) or piece.dtype != np.uint8:
            kind = getattr(piece, "dtype", type(piece).__name__)
            raise GGUFError(f"{self.path}: data of tensor {name!r} is {kind}, not uint8; encode it first")


def _pieces(data: Data) -> Iterator[Bytes]:
    if isinstance(data, np.ndarray):
        yield data
    else:
        yield from data()
