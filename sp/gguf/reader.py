"""Open a GGUF model, whole or sharded: metadata, a table of tensors, and weights as views of the mapped file."""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

import numpy as np

from sp.arrays import Bytes
from sp.errors import ChangedError, GGUFError
from sp.gguf.header import MAX_SHARDS, MAX_TENSORS, Header, TensorInfo, Value, parse_header
from sp.hub import model_path
from sp.quant import FORMATS, Weight
from sp.values import text, whole

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class _Shard:
    """One file of the model."""

    path: Path
    header: Header
    map: mmap.mmap
    status: os.stat_result  # at the time of opening

    @property
    def changed(self) -> bool:
        """True if the file was written to since it was opened. Replacing it by another file leaves the mapped one
        intact."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        same = (now.st_dev, now.st_ino) == (self.status.st_dev, self.status.st_ino)
        return same and (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns)


class GGUFFile:
    """A model file opened for reading; a context manager.

    Do not change or shorten the file while it is open: weights are views of the mapped file, and reading a page that no
    longer exists kills the process (SIGBUS); `check` detects changes. The header is read with `pread`, which is safe.

    Attributes
    ----------
    path : Path
        The file that was opened; of a sharded model, its first shard.
    paths : tuple of Path
        Every file of the model.
    version : int
        2 or 3.
    metadata : mapping of str to value
        Scalars as int, float, bool or str; arrays of numbers as NumPy arrays, of strings as lists of str,
        decoded on first access.
    tensors : mapping of str to TensorInfo
        In file order.
    nbytes : int
        Total size of the files in bytes.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from sp.gguf.writer import GGUFWriter
    >>> from sp.quant import F32
    >>> path = Path(tempfile.mkdtemp()) / "tiny.gguf"
    >>> writer = GGUFWriter(path, {"general.architecture": "qwen3"})
    >>> writer.add("w", (2, 3), F32, F32.encode(np.ones((2, 3), np.float32)))
    >>> _ = writer.write()
    >>> with GGUFFile.open(path) as file:
    ...     file.architecture, file.tensors["w"].shape, float(file.weight("w").dense().sum())
    ('qwen3', (2, 3), 6.0)
    """

    def __init__(self, parts: tuple[_Shard, ...]) -> None:
        first = parts[0]
        self.path = first.path
        self.paths = tuple(part.path for part in parts)
        self.version = first.header.version
        self.metadata: Mapping[str, Value] = first.header.metadata
        self.nbytes = sum(part.header.size for part in parts)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_all_tensors(parts))
        self._parts, self._maps = parts, tuple(part.map for part in parts)

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Open `path`; for one shard of a model (`...-00001-of-00003.gguf`) all shards in its folder. The name of a
        known model stands for its file, see `sp.hub.model_path`. GGUFError if a file cannot be read, is damaged or
        hostile, or a shard is missing."""
        parts: list[_Shard] = []
        try:
            for index, shard in enumerate(_shard_paths(model_path(path))):
                parts.append(_open_shard(shard, index))
                if index == 0 and _split(parts[0], "split.count") <= 1:
                    break  # only named like a shard
            _check_split(parts)
            return cls(tuple(parts))
        except BaseException:
            for part in parts:
                part.map.close()
            raise

    @property
    def architecture(self) -> str:
        """Name of the architecture, e.g. ``"qwen3"``; GGUFError if the file does not name one."""
        name = text(self.metadata.get("general.architecture"))
        if name is None:
            problem = "key 'general.architecture' is missing or not a string"
            raise GGUFError(f"{self.path}: {problem}; this is not a model file")
        return name

    def weight(self, name: str) -> Weight:
        """Return the tensor `name`, packed, as a read-only view of the mapped file. GGUFError if there is no such
        tensor or `sp` has no decoder for its type."""
        info = self.tensors.get(name)
        if info is None:
            near = get_close_matches(name, self.tensors, n=2)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see `sp inspect` for its tensors"
            raise GGUFError(f"{self.path}: no tensor {name!r}; {hint}")
        fmt = FORMATS.get(info.ggml_type)
        if fmt is None:
            known = ", ".join(sorted(fmt.name for fmt in FORMATS.values()))
            raise GGUFError(
                f"{self.path}: unsupported type {info.type_name} in tensor {name}: "
                f"use a file whose tensors are all among {known}"
            )
        view = self._maps[info.shard]
        if view.closed:
            raise GGUFError(
                f"{self.paths[info.shard]}: the file was closed before tensor {name} was read; open it again"
            )
        data = np.frombuffer(view, np.uint8, info.nbytes, info.offset)
        return Weight(name, fmt, info.shape, data.reshape(*info.shape[:-1], fmt.row_bytes(info.shape[-1])))

    def locate(self, data: Bytes) -> tuple[Path, int]:
        """Return the file and the offset of a view of `weight`'s data, for reading the bytes in another way. GGUFError
        if `data` is not a view of this file."""
        address = data.ctypes.data
        for path, view in zip(self.paths, self._maps, strict=True):
            if not view.closed:
                start = np.frombuffer(view, np.uint8).ctypes.data
                if start <= address and address + data.nbytes <= start + len(view):
                    return path, address - start
        raise GGUFError(f"{self.path}: these bytes are not a view of the open file; was it closed?")

    def check(self) -> None:
        """Raise ChangedError if the file was written to since it was opened: its weights have changed or are gone."""
        if changed := next((part.path for part in self._parts if part.changed), None):
            raise ChangedError(f"{changed.name} was changed while in use; restore the right file and start again")

    def close(self) -> None:
        """Unmap the file; weights still in use keep their bytes mapped until they are freed."""
        for view in self._maps:
            with suppress(BufferError):
                view.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_shard(path: Path, shard: int) -> _Shard:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for its writer
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file; check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise GGUFError(f"{path}: cannot be opened ({reason}); give a readable .gguf file") from None
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise GGUFError(f"{path}: is a directory; give the .gguf file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise GGUFError(f"{path}: is not a regular file; give a .gguf file")
        header = parse_header(fd, status.st_size, str(path), shard)
        return _Shard(path, header, mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ), status)
    except (OSError, ValueError) as error:
        raise GGUFError(f"{path}: cannot be read ({error}); check the disk and the file") from None
    finally:
        os.close(fd)


def _shard_paths(path: Path) -> list[Path]:
    """Return the paths of all shards of the model that `path` belongs to; just `path` for a whole file."""
    if (match := _SHARD_NAME.fullmatch(path.name)) is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= MAX_SHARDS or not 1 <= int(match["number"]) <= count:
        raise GGUFError(f"{path}: shard number or count out of range; at most {MAX_SHARDS} shards are read")
    return [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def _split(part: _Shard, key: str) -> int:
    value = whole(part.header.metadata.get(key, 0))
    if value is None:
        raise GGUFError(f"{part.path}: key {key!r} is not an integer; split the model again")
    return value


def _check_split(parts: list[_Shard]) -> None:
    """Check that each shard's metadata agrees with its name on its number and on the count."""
    claimed = _split(parts[0], "split.count")
    if claimed <= 1 and len(parts) == 1:
        return
    if claimed != len(parts):
        raise GGUFError(
            f"{parts[0].path}: is one of {claimed} shards but its name says {len(parts)}; "
            "name shards ...-00001-of-000NN.gguf and keep them in one folder"
        )
    for index, part in enumerate(parts):
        if _split(part, "split.no") != index or _split(part, "split.count") != claimed:
            raise GGUFError(
                f"{part.path}: metadata and name give different shard numbers; put the right files together"
            )
    total = sum(len(part.header.tensors) for part in parts)
    if "split.tensors.count" in parts[0].header.metadata:
        expected = _split(parts[0], "split.tensors.count")
        if total != expected:
            raise GGUFError(f"{parts[0].path}: shards contain {total} tensors, not {expected}; download them all again")


def _all_tensors(parts: tuple[_Shard, ...]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for part in parts:
        for info in part.header.tensors:
            if info.name in tensors:
                raise GGUFError(f"{part.path}: tensor {info.name!r} is in two shards; put the right files together")
            tensors[info.name] = info
    if len(tensors) > MAX_TENSORS:
        raise GGUFError(f"{parts[0].path}: has {len(tensors)} tensors, more than {MAX_TENSORS}")
    return tensors
