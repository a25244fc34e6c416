"""SafetensorsFile: the tensors of one .safetensors file as packed weights, which are views of the mapped file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sp.arrays import Bytes
from sp.errors import ModelError, plain
from sp.quant import BF16, F16, F32, Weight
from sp.values import preview

DTYPES = {"F32": F32, "F16": F16, "BF16": BF16}


MOST_HEADER = 8 << 20  # bytes; the header of a checkpoint with ten thousand tensors has one million
LONGEST_NAME = 128  # characters of a tensor's name; the longest of published checkpoints have about 80


@dataclass(frozen=True)
class StoredTensor:
    """Entry of the header; `start` is an offset from the first byte after the header."""

    shape: tuple[int, ...]
    dtype: str
    start: int


class SafetensorsFile:
    """A file opened for reading; it must not change while it is in use.

    Attributes
    ----------
    nbytes : int
        Bytes of the file.

    Examples
    --------
    >>> import tempfile
    >>> from safetensors.numpy import save_file
    >>> path = Path(tempfile.mkdtemp()) / "tiny.safetensors"
    >>> save_file({"w": np.ones((2, 3), np.float32)}, path)
    >>> float(SafetensorsFile.open(path).weight("w").dense().sum())
    6.0
    """

    def __init__(self, path: Path, tensors: dict[str, StoredTensor], data: Bytes, start: int) -> None:
        self.path, self.tensors, self._data, self._start = path, tensors, data, start
        self.nbytes = start + len(data)

    @classmethod
    def open(cls, path: str | Path) -> SafetensorsFile:
        """Open a file whose header the safetensors library accepts. ModelError if the file cannot be read or is
        damaged."""
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        # Before the library reads the header into memory.
        _check_header_size(path)
        try:
            with safe_open(path, framework="numpy"):
                pass  # opening checks sizes, offsets and the length of the file
            mapped = np.memmap(path, np.uint8, "r")
        except SafetensorError as error:
            reason = plain(str(error), 120)
            raise ModelError(f"{path}: is no sound safetensors file ({reason}); get it again") from None
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
        # The file starts with the header's length, uint64 little-endian.
        end = 8 + int(mapped[:8].view("<u8")[0])
        header = json.loads(mapped[8:end].tobytes())
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(tuple(entry["shape"]), entry["dtype"], entry["data_offsets"][0])
            for name, entry in header.items()
        }
        # Names reach messages and terminals, so control characters are refused.
        odd = next((name for name in tensors if len(name) > LONGEST_NAME or not name.isprintable()), None)
        if odd is not None:
            raise ModelError(f"{path}: no model has a tensor {preview(odd)}; get the file again")
        return cls(path, tensors, mapped[end:], end)

    def weight(self, name: str) -> Weight:
        """Return the tensor `name`, packed. ModelError if it is not a matrix or vector of a supported type."""
        info = self.tensors[name]
        fmt = DTYPES.get(info.dtype)
        if fmt is None or not info.shape:
            raise ModelError(f"{self.path}: tensor {name} is {info.dtype}; sp reads {', '.join(DTYPES)}")
        rows = (*info.shape[:-1], fmt.row_bytes(info.shape[-1]))
        data = self._data[info.start : info.start + fmt.nbytes(info.shape)].view(np.ndarray)
        return Weight(name, fmt, info.shape, data.reshape(rows))

    def locate(self, data: Bytes) -> tuple[Path, int]:
        """Return the file, and the offset in it, of a view of `weight`'s data; see `GGUFFile.locate`."""
        offset = data.ctypes.data - self._data.ctypes.data
        assert 0 <= offset <= len(self._data) - data.nbytes, "no view of this file"
        return self.path, self._start + offset


def _check_header_size(path: Path) -> None:
    """Raise ModelError if a file claims a header larger than any checkpoint's, before anyone reads it."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            whole = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
    if MOST_HEADER < size < whole:
        raise ModelError(f"{path}: is no sound safetensors file (a header of {size:,} bytes); get it again")
