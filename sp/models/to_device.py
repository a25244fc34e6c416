"""trunk_to_device: the weights of a model from their file to the device, packed there as its kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.gguf import GGUFFile
from sp.kernels import device_errors, import_cupy
from sp.kernels.device import require_device
from sp.models.trunk import Trunk, mapped
from sp.models.upload import Part, stream_parts
from sp.ops.packed import TILE, allocate, pack_rows
from sp.quant import BF16, F32, BlockFormat, Weight

SLICE = 64 << 20
"""Most bytes of a matrix that are staged at a time; whole tiles of rows."""


def trunk_to_device(trunk: Trunk, file: GGUFFile, progress: Callable[[int], None] | None = None) -> tuple[Trunk, int]:
    """Copy a trunk whose matrices are views of `file` to the current device.

    Matrices are packed (see `sp.ops.packed`), float32 ones rounded to BF16 first; the embedding table keeps its rows,
    norms and other vectors are float32. A tied embedding is held twice: as a table and, packed, as the head.

    Returns
    -------
    trunk : Trunk
    nbytes : int
        Of everything copied, as it is held.

    Raises
    ------
    DeviceError
        When the device is missing, too old or too small.
    ModelError
        When a matrix has no packed form.
    GGUFError
        When the file cannot be read.
    """
    require_device()
    try:
        with device_errors():
            return _copied(trunk, file, progress)
    except DeviceError as error:
        if "memory is full" not in str(error):
            raise
        free, total = import_cupy().cuda.runtime.memGetInfo()
        raise DeviceError(
            f"{file.path}: its {file.nbytes / 1e9:.1f} GB of weights do not fit the device, which has "
            f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free; take a smaller model or free the device"
        ) from error


def _copied(trunk: Trunk, file: GGUFFile, progress: Callable[[int], None] | None) -> tuple[Trunk, int]:
    cupy = import_cupy()
    table = Weight(
        trunk.embed.name, trunk.embed.format, trunk.embed.shape, cupy.empty(trunk.embed.data.shape, np.uint8)
    )
    placed: dict[int, Any] = {}
    sources: list[Weight] = []

    def place(leaf: Any) -> Any:
        """What stands for a leaf on the device; matrices are filled later."""
        if id(leaf) not in placed:
            if isinstance(leaf, Weight):
                assert len(leaf.shape) == 2, f"{leaf.name} {leaf.shape}"
                placed[id(leaf)] = allocate(leaf.name, packed_format(leaf.format), leaf.shape)
                sources.append(leaf)
            else:
                placed[id(leaf)] = cupy.asarray(leaf, np.float32)
        return placed[id(leaf)]

    moved = Trunk(
        table,
        mapped(trunk.blocks, place),
        place(trunk.output_norm),
        place(trunk.output),
    )
    if trunk.output is not trunk.embed:
        sources.append(trunk.embed)
    pieces = [(*file.locate(w.data[rows]), w, rows) for w in sources for rows in row_slices(*w.data.shape)]
    pieces.sort(key=lambda piece: piece[:2])
    parts = [Part(path, offset, w.data[rows].nbytes) for path, offset, w, rows in pieces]
    for index, raw in stream_parts(parts, progress):
        _, _, w, rows = pieces[index]
        raw = raw.reshape(w.data[rows].shape)
        if w is trunk.embed:
            table.data[rows] = raw
        if id(w) in placed:
            pack_rows(placed[id(w)], rows.start, raw if w.format is not F32 else to_bf16(raw))
        del raw  # the last one would hold the staging memory
    cupy.cuda.get_current_stream().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return moved, table.nbytes + sum(int(item.nbytes) for item in placed.values())


def packed_format(fmt: BlockFormat) -> BlockFormat:
    """The format a matrix has on the device; the kernels have no float32 operands."""
    return BF16 if fmt is F32 else fmt


def to_bf16(raw: Any) -> Any:
    """Rows of float32 bytes as rows of BF16 bytes, rounded to even; cupy uint8 (rows, 4 n) -> (rows, 2 n)."""
    bits = raw.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)


def row_slices(rows: int, row_bytes: int) -> list[slice]:
    """Row ranges of a matrix, whole tiles, of at most SLICE bytes."""
    step = max(1, SLICE // (row_bytes * TILE)) * TILE
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
