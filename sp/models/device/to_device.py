"""to_device: weights from their file to the device, packed there in the layout that its kernels read."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from sp.arrays import Bytes
from sp.errors import DeviceError
from sp.kernels import device_errors, import_cupy
from sp.kernels.device import require_device
from sp.models.device.parts import arrays_of
from sp.models.device.upload import FileRange, stream_parts
from sp.models.file.weights import CopiedWeight
from sp.models.layer.block import Block
from sp.models.layer.cold_experts import ColdExperts, PinnedWeight, StackRing, allocate_pinned, pack_rows_pinned
from sp.models.layer.feed_forward import Experts
from sp.models.network.weights import ModelWeights, map_leaves
from sp.ops.matmul.packed import PackedWeight, allocate, pack_rows
from sp.ops.matmul.split_weight import SplitWeight
from sp.quant import BF16, F32, BlockFormat, Weight
from sp.quant.packing import TILE
from sp.quant.repack import Repacked, count_repacked, device_format, is_split, repack


def stacks_of(weights: ModelWeights, layers: Iterable[int]) -> dict[int, tuple[Any, ...]]:
    """Return the expert stacks of some layers, in the order in which a layer uses them."""
    stacks = {}
    for index in layers:
        ffn = _experts(weights.blocks[index], index)
        stacks[index] = (*ffn.into, ffn.down_stack)
    return stacks


def with_cold(weights: ModelWeights, layers: Sequence[int]) -> tuple[ModelWeights, ColdExperts | None]:
    """Connect the cold layers, whose stacks are `PinnedWeight`, to a ring on the device; None without cold layers."""
    if not layers:
        return weights, None
    last = len(weights.blocks) - 1
    ring = StackRing(stacks_of(weights, layers), [layer for layer in layers if layer != last])
    ring.open()
    cold = ColdExperts(ring, last + 1, _experts(weights.blocks[layers[0]], layers[0]).sizes.count)
    blocks = list(weights.blocks)
    for index in layers:
        blocks[index] = replace(blocks[index], ffn=replace(_experts(blocks[index], index), cold=cold.layer(index)))
    return replace(weights, blocks=tuple(blocks)), cold


def _experts(block: Block, index: int) -> Experts:
    assert isinstance(block.ffn, Experts), f"layer {index} has no experts"
    return block.ffn


SLICE = 64 << 20  # most bytes of a matrix that are staged at a time, in whole tiles of rows
Parts = TypeVar("Parts")


class WeightFile(Protocol):
    """An open file of weights: a `GGUFFile`, or a `SafetensorsFile`."""

    path: Path
    nbytes: int

    def locate(self, data: Bytes) -> tuple[Path, int]:
        """Return the file, and the offset in it, of a view of a weight's data."""
        ...


def weights_to_device(
    weights: ModelWeights, file: WeightFile, progress: Callable[[int], None] | None = None, cold: Sequence[int] = ()
) -> tuple[ModelWeights, int, tuple[Repacked, ...], ColdExperts | None]:
    """Run `to_device` for a whole model; also return its repacked weights and the state of its `cold` layers. A tied
    embedding is stored twice: as a table and, packed, as the head. The bytes are those on the device, including the
    slots for stacks of cold layers."""
    parts, tables = (weights.blocks, weights.output_norm, weights.output), (weights.embed,)
    pinned = [weight for stacks in stacks_of(weights, cold).values() for weight in stacks]
    (blocks, norm, output), (table,), nbytes = to_device(parts, tables, file, progress, pinned)
    moved, shared = with_cold(ModelWeights(table, blocks, norm, output), cold)
    return moved, nbytes + (shared.ring.room if shared else 0), repacked(parts, tables), shared


def to_device(
    parts: Parts,
    tables: tuple[Weight, ...],
    file: WeightFile,
    progress: Callable[[int], None] | None = None,
    pinned: Sequence[Weight] = (),
) -> tuple[Parts, tuple[Weight, ...], int]:
    """Copy weights of `file` to the current device.

    Parameters
    ----------
    parts : tree of dataclasses and tuples
        Its matrices are views of the file, or `CopiedWeight`. They are packed (see `sp.ops.matmul.packed`), and formats
        without a kernel are converted (see `sp.quant.repack`); norms and other vectors become float32.
    tables : tuple of Weight
        Matrices that are read row by row; they keep the rows of the file if kernels read their format.
    progress : callable, optional
        See `load_model`.
    pinned : sequence of Weight
        Members of `parts` that are packed on the device and moved to pinned host memory.

    Returns
    -------
    parts, tables
        The same on the device.
    nbytes : int
        Bytes of everything that stays on the device, as stored.

    Raises
    ------
    DeviceError
        If the device is missing, too old or too small.
    ModelError
        If a matrix is too narrow to be packed.
    GGUFError
        If the file cannot be read.
    """
    require_device()
    try:
        with device_errors():
            return _copied(parts, tables, file, progress, {id(w) for w in pinned})
    except DeviceError as error:
        if "memory is full" not in str(error):
            raise
        more = "".join(f"; {change}" for change in repacked(parts, tables))
        raise DeviceError(
            f"{file.path}: its {file.nbytes / 1e9:.1f} GB of weights{more} do not fit {_too_small()}"
        ) from error


def _too_small() -> str:
    """Describe what the weights do not fit and what to do: a memory budget, or the device."""
    cupy = import_cupy()
    if limit := cupy.get_default_memory_pool().get_limit():
        return f"the budget of {limit / 2**30:.2f} GiB; use a smaller model or a larger --vram"
    free, total = cupy.cuda.runtime.memGetInfo()
    return (
        f"the device, which has {free / 1e9:.1f} of {total / 1e9:.1f} GB free; use a smaller model, free device "
        "memory, or pass --vram to leave experts of a mixture in host memory"
    )


def _copied(
    parts: Parts,
    tables: tuple[Weight, ...],
    file: WeightFile,
    progress: Callable[[int], None] | None,
    pinned: Container[int],
) -> tuple[Parts, tuple[Weight, ...], int]:
    cupy = import_cupy()
    placed: dict[int, Any] = {}
    device_tables = {id(w): empty_table(w.name, w.format, w.shape) for w in tables}
    sources = {id(w): w for w in tables}

    def place(leaf: Any) -> Any:
        """Return the device counterpart of a leaf, once per leaf; matrices are filled later."""
        # Tied weights are one leaf in two places, and are copied once.
        if id(leaf) not in placed:
            if isinstance(leaf, Weight):
                assert len(leaf.shape) == 2, f"{leaf.name} {leaf.shape}"
                placed[id(leaf)] = empty_matrix(leaf.name, leaf.format, leaf.shape, pinned=id(leaf) in pinned)
                if isinstance(placed[id(leaf)], PackedWeight):
                    placed[id(leaf)] = replace(placed[id(leaf)], math=leaf.math)
                sources[id(leaf)] = leaf
            else:
                placed[id(leaf)] = cupy.asarray(leaf, np.float32)
        return placed[id(leaf)]

    moved = map_leaves(parts, place)
    copied = {key: w for key, w in sources.items() if isinstance(w, CopiedWeight)}
    located = [w for key, w in sources.items() if key not in copied]
    pieces = [(*file.locate(w.data[rows]), w, rows) for w in located for rows in row_slices(*w.data.shape)]
    # in file order, so that the disk reads sequentially
    pieces.sort(key=lambda piece: piece[:2])
    ranges = [FileRange(path, offset, w.data[rows].nbytes) for path, offset, w, rows in pieces]
    # A tied embedding is both a table and a matrix, and is filled from the same rows.
    for index, raw in stream_parts(ranges, progress):
        _, _, w, rows = pieces[index]
        raw = raw.reshape(w.data[rows].shape)
        if (table := device_tables.get(id(w))) is not None:
            table.data[rows] = as_format(raw, w.format, table.format)
        if (matrix := placed.get(id(w))) is not None:
            fill_rows(matrix, w.format, rows.start, raw)
        del raw  # a reference to the last piece would keep the staging memory
    # Weights that are no run of bytes of the file come from host memory, without the reading threads.
    for key, w in copied.items():
        for rows in row_slices(*w.data.shape):
            fill_rows(placed[key], w.format, rows.start, cupy.asarray(np.ascontiguousarray(w.data[rows])))
        if progress is not None:
            progress(w.nbytes)
    cupy.cuda.get_current_stream().synchronize()
    # Staging memory goes back to the device, for the other model and the caches.
    cupy.get_default_memory_pool().free_all_blocks()
    nbytes = sum(int(array.nbytes) for array in arrays_of((*device_tables.values(), *placed.values())))
    return moved, tuple(device_tables.values()), nbytes


def empty_matrix(
    name: str, fmt: BlockFormat, shape: tuple[int, ...], *, pinned: bool = False
) -> PackedWeight | SplitWeight:
    """Allocate a matrix on the device, in the format that `sp.quant.repack` chooses. Pinned host memory is for stacks
    of experts, which are never so narrow that they are split."""
    if pinned:
        return allocate_pinned(name, device_format(fmt, shape[1]), shape)
    if is_split(fmt, shape):
        return SplitWeight.empty(name, shape)
    return allocate(name, device_format(fmt, shape[1]), shape)


def fill_rows(matrix: PackedWeight | SplitWeight, fmt: BlockFormat, start: int, raw: Any) -> None:
    """Fill rows of a matrix from `empty_matrix`, from row `start` on (a multiple of 64), with rows of the file on the
    device."""
    if isinstance(matrix, SplitWeight):
        matrix.fill(start, raw)
    elif isinstance(matrix, PinnedWeight):
        pack_rows_pinned(matrix, start, as_format(raw, fmt, matrix.format))
    else:
        pack_rows(matrix, start, as_format(raw, fmt, matrix.format))


def repacked(parts: Any, tables: tuple[Weight, ...]) -> tuple[Repacked, ...]:
    """Summarise the weights that the device stores in another format than their file."""
    entries = [(w.format, w.shape, True) for w in tables]

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Weight):
            entries.append((leaf.format, leaf.shape, False))
        return leaf

    map_leaves(parts, note)
    return count_repacked(entries)


def empty_table(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> Weight:
    """Allocate a matrix on the device that is read row by row."""
    stored = device_format(fmt, shape[-1], table=True)
    return Weight(name, stored, shape, import_cupy().empty((*shape[:-1], stored.row_bytes(shape[-1])), np.uint8))


def as_format(raw: Any, fmt: BlockFormat, stored: BlockFormat) -> Any:
    """Convert rows on the device, uint8 (rows, row_bytes) as in a file, to the format that the device stores."""
    if stored is fmt:
        return raw
    if fmt is F32 and stored is BF16:
        return to_bf16(raw)
    return import_cupy().asarray(repack(raw.get(), fmt, stored))


def to_bf16(raw: Any) -> Any:
    """Convert rows of float32 bytes to rows of BF16 bytes, rounded to nearest even; cupy uint8 (rows, 4 n) -> (rows, 2
    n)."""
    # add half of the discarded 16 bits, minus one unless the kept part is odd
    bits = raw.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)


def row_slices(rows: int, row_bytes: int) -> list[slice]:
    """Return row ranges of a matrix, in whole tiles, of at most SLICE bytes."""
    step = max(1, SLICE // (row_bytes * TILE)) * TILE
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
