"""to_device: weights from their file to the device, packed there as its kernels read them."""

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
from sp.models.device.upload import Part, stream_parts
from sp.models.file.weights import CopiedWeight
from sp.models.layer.block import Block
from sp.models.layer.cold_experts import ColdExperts, PinnedWeight, StackRing, allocate_pinned, pack_rows_pinned
from sp.models.layer.feed_forward import Experts
from sp.models.network.trunk import Trunk, mapped
from sp.ops.matmul.packed import PackedWeight, allocate, pack_rows
from sp.ops.matmul.split_weight import SplitWeight
from sp.quant import BF16, F32, BlockFormat, Weight
from sp.quant.packing import TILE
from sp.quant.repack import Repacked, count_repacked, device_format, is_split, repack


def stacks_of(trunk: Trunk, layers: Iterable[int]) -> dict[int, tuple[Any, ...]]:
    """The stacks of some layers, which are layers of experts, in the order they are used."""
    found = {}
    for index in layers:
        ffn = _experts(trunk.blocks[index], index)
        found[index] = (*ffn.into, ffn.down_stack)
    return found


def with_cold(trunk: Trunk, layers: Sequence[int]) -> tuple[Trunk, ColdExperts | None]:
    """The same trunk, whose layers know that their stacks are `PinnedWeight`; None where there are no such layers."""
    if not layers:
        return trunk, None
    last = len(trunk.blocks) - 1
    ring = StackRing(stacks_of(trunk, layers), [layer for layer in layers if layer != last])
    ring.open()
    cold = ColdExperts(ring, last + 1, _experts(trunk.blocks[layers[0]], layers[0]).sizes.count)
    blocks = list(trunk.blocks)
    for index in layers:
        blocks[index] = replace(blocks[index], ffn=replace(_experts(blocks[index], index), cold=cold.layer(index)))
    return replace(trunk, blocks=tuple(blocks)), cold


def _experts(block: Block, index: int) -> Experts:
    assert isinstance(block.ffn, Experts), f"layer {index} has no experts"
    return block.ffn


SLICE = 64 << 20  # most bytes of a matrix that are staged at a time; whole tiles of rows
Parts = TypeVar("Parts")


class WeightFile(Protocol):
    """An open file of weights: a `GGUFFile`, or a `SafetensorsFile`."""

    path: Path
    nbytes: int

    def locate(self, data: Bytes) -> tuple[Path, int]:
        """The file, and the offset in it, of a view of a weight's data."""
        ...


def trunk_to_device(
    trunk: Trunk, file: WeightFile, progress: Callable[[int], None] | None = None, cold: Sequence[int] = ()
) -> tuple[Trunk, int, tuple[Repacked, ...], ColdExperts | None]:
    """`to_device` of a whole model, what of it is re-packed, and what its `cold` layers share. A tied embedding is held
    twice: as a table and, packed, as the head. The bytes are those of the device, with the room that stacks of cold
    layers are brought to."""
    parts, tables = (trunk.blocks, trunk.output_norm, trunk.output), (trunk.embed,)
    pinned = [weight for stacks in stacks_of(trunk, cold).values() for weight in stacks]
    (blocks, norm, output), (table,), nbytes = to_device(parts, tables, file, progress, pinned)
    moved, shared = with_cold(Trunk(table, blocks, norm, output), cold)
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
        Its matrices are views of the file, or `CopiedWeight`. They are packed (see `sp.ops.matmul.packed`), those of
        formats that no kernel reads as another one (see `sp.quant.repack`); norms and other vectors become float32.
    tables : tuple of Weight
        Matrices of which only rows are read; they keep the rows of the file where kernels read their format.
    progress : callable, optional
        See `load_model`.
    pinned : sequence of Weight
        Of `parts`; they are packed on the device and go to pinned memory of the host.

    Returns
    -------
    parts, tables
        The same on the device.
    nbytes : int
        Of everything that stays on the device, as it is held.

    Raises
    ------
    DeviceError
        When the device is missing, too old or too small.
    ModelError
        When a matrix has no packed form, being too narrow.
    GGUFError
        When the file cannot be read.
    """
    require_device()
    try:
        with device_errors():
            return _copied(parts, tables, file, progress, {id(w) for w in pinned})
    except DeviceError as error:
        if "memory is full" not in str(error):
            raise
        more = "".join(f"; {each}" for each in repacked(parts, tables))
        raise DeviceError(
            f"{file.path}: its {file.nbytes / 1e9:.1f} GB of weights{more} do not fit {_too_small()}"
        ) from error


def _too_small() -> str:
    """What weights do not fit, and what to do: a budget of memory, or the device."""
    cupy = import_cupy()
    if limit := cupy.get_default_memory_pool().get_limit():
        return f"the budget of {limit / 2**30:.2f} GiB; take a smaller model or a larger --vram"
    free, total = cupy.cuda.runtime.memGetInfo()
    return (
        f"the device, which has {free / 1e9:.1f} of {total / 1e9:.1f} GB free; take a smaller model, free the device, "
        "or let experts of a mixture wait in host memory by a --vram"
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
    kept = {id(w): empty_table(w.name, w.format, w.shape) for w in tables}
    sources = {id(w): w for w in tables}

    def place(leaf: Any) -> Any:
        """What stands for a leaf on the device; matrices are filled later."""
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

    moved = mapped(parts, place)
    copied = {key: w for key, w in sources.items() if isinstance(w, CopiedWeight)}
    located = [w for key, w in sources.items() if key not in copied]
    pieces = [(*file.locate(w.data[rows]), w, rows) for w in located for rows in row_slices(*w.data.shape)]
    pieces.sort(key=lambda piece: piece[:2])
    wanted = [Part(path, offset, w.data[rows].nbytes) for path, offset, w, rows in pieces]
    for index, raw in stream_parts(wanted, progress):
        _, _, w, rows = pieces[index]
        raw = raw.reshape(w.data[rows].shape)
        if (table := kept.get(id(w))) is not None:
            table.data[rows] = as_format(raw, w.format, table.format)
        if (matrix := placed.get(id(w))) is not None:
            fill_rows(matrix, w.format, rows.start, raw)
        del raw  # the last one would hold the staging memory
    for key, w in copied.items():
        for rows in row_slices(*w.data.shape):
            fill_rows(placed[key], w.format, rows.start, cupy.asarray(np.ascontiguousarray(w.data[rows])))
        if progress is not None:
            progress(w.nbytes)
    cupy.cuda.get_current_stream().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    nbytes = sum(int(array.nbytes) for array in arrays_of((*kept.values(), *placed.values())))
    return moved, tuple(kept.values()), nbytes


def empty_matrix(
    name: str, fmt: BlockFormat, shape: tuple[int, ...], *, pinned: bool = False
) -> PackedWeight | SplitWeight:
    """Room on the device for a matrix of a format, in what `sp.quant.repack` makes of it. Room in pinned memory of the
    host is for stacks of experts, of which there are none so narrow that they are split."""
    if pinned:
        return allocate_pinned(name, device_format(fmt, shape[1]), shape)
    if is_split(fmt, shape):
        return SplitWeight.empty(name, shape)
    return allocate(name, device_format(fmt, shape[1]), shape)


def fill_rows(matrix: PackedWeight | SplitWeight, fmt: BlockFormat, start: int, raw: Any) -> None:
    """Fill rows `start` and on, a multiple of 64, of what `empty_matrix` made, from rows of the file on the device."""
    if isinstance(matrix, SplitWeight):
        matrix.fill(start, raw)
    elif isinstance(matrix, PinnedWeight):
        pack_rows_pinned(matrix, start, as_format(raw, fmt, matrix.format))
    else:
        pack_rows(matrix, start, as_format(raw, fmt, matrix.format))


def repacked(parts: Any, tables: tuple[Weight, ...]) -> tuple[Repacked, ...]:
    """What of weights, as `to_device` takes them, the device holds in another format than their file."""
    found = [(w.format, w.shape, True) for w in tables]

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Weight):
            found.append((leaf.format, leaf.shape, False))
        return leaf

    mapped(parts, note)
    return count_repacked(found)


def empty_table(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> Weight:
    """Room on the device for a matrix of which only rows are read."""
    held = device_format(fmt, shape[-1], table=True)
    return Weight(name, held, shape, import_cupy().empty((*shape[:-1], held.row_bytes(shape[-1])), np.uint8))


def as_format(raw: Any, fmt: BlockFormat, held: BlockFormat) -> Any:
    """Rows on the device, uint8 (rows, row_bytes) as in a file, in the format that the device holds."""
    if held is fmt:
        return raw
    if fmt is F32 and held is BF16:
        return to_bf16(raw)
    return import_cupy().asarray(repack(raw.get(), fmt, held))


def to_bf16(raw: Any) -> Any:
    """Rows of float32 bytes as rows of BF16 bytes, rounded to even; cupy uint8 (rows, 4 n) -> (rows, 2 n)."""
    bits = raw.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)


def row_slices(rows: int, row_bytes: int) -> list[slice]:
    """Row ranges of a matrix, whole tiles, of at most SLICE bytes."""
    step = max(1, SLICE // (row_bytes * TILE)) * TILE
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
