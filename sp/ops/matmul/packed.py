"""PackedWeight: a matrix in fragment order, the only copy on a device, which all matrix kernels read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.errors import ModelError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.matmul.packed import EXPAND_SCALES, PACK, UNPACK
from sp.ops.byte_rows.kept import KeptRows
from sp.ops.matmul.fragment_order import Offsets, pack_numpy, plane_offsets, plane_sizes, tiled_packing, unpack_numpy
from sp.quant import BlockFormat, Math, Packing
from sp.quant.packing import TILE

__all__ = [
    "PackedWeight",
    "allocate",
    "expand_scales",
    "pack",
    "pack_rows",
    "unpack",
    "unpack_bf16",
    "unpack_slabs",
    "weight_arguments",
]


@dataclass(frozen=True)
class PackedWeight:
    """A weight in the layout of `sp.ops.matmul.fragment_order`. `kept`: its prequantized values for `math`.

    >>> from sp.quant import Q8_0, Weight
    >>> w = Weight.from_floats("w", np.ones((4, 64), np.float32), Q8_0)
    >>> p = pack("w", Q8_0, w.shape, w.data)
    >>> p.offsets.scales, p.row_tiles, p.k_tiles, bool((unpack(p) == w.dense()).all())
    (4096, 1, 1, True)
    """

    name: str  # the tensor's name in the file
    format: BlockFormat  # its format in the file; the values are equal, to the bit
    shape: tuple[int, int]  # ``(out, in)``
    data: Any = field(repr=False, compare=False)  # uint8, flat, all planes; NumPy or CuPy
    math: Math = Math.BF16  # operand precision of its products in prefill
    kept: KeptRows | None = field(default=None, repr=False, compare=False)

    @cached_property
    def packing(self) -> Packing:
        """Layout of its format."""
        return tiled_packing(self.name, self.format)

    @cached_property
    def offsets(self) -> Offsets:
        """Offsets of the planes."""
        return plane_offsets(self.name, self.format, self.shape)

    @property
    def row_tiles(self) -> int:
        """Number of tiles of 64 rows; the last one is padded."""
        return -(-self.shape[0] // TILE)

    @property
    def k_tiles(self) -> int:
        """Number of tiles of 64 inputs."""
        return self.shape[1] // TILE

    @property
    def nbytes(self) -> int:
        """Bytes in memory, including padding."""
        return int(self.data.nbytes)

    def plane(self, name: str) -> Any:
        """Return the bytes of one plane ("low", "high", "scales" or "deltas"), None if the format does not have it."""
        return self._planes.get(name)

    @cached_property
    def _planes(self) -> dict[str, Any]:
        sizes = plane_sizes(self.name, self.format, self.shape)
        ranges = dict(zip(Offsets._fields, zip(self.offsets, sizes, strict=False), strict=False))
        return {name: self.data[at : at + nbytes] for name, (at, nbytes) in ranges.items() if nbytes}


def allocate(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> PackedWeight:
    """Allocate an unfilled weight on the current device; ModelError if `fmt` and `shape` have no fragment order."""
    nbytes = plane_offsets(name, fmt, shape).end
    return PackedWeight(name, fmt, (int(shape[0]), int(shape[1])), import_cupy().empty(nbytes, np.uint8))


def pack_rows(w: PackedWeight, start: int, rows: Any) -> None:
    """Fill the rows of a weight from `start` on. `start`: a multiple of 64; `rows`: uint8 (n, row_bytes), as in the
    file and on the device of `w`; n a multiple of 64 except at the end."""
    out, width = w.shape
    expected = (len(rows), w.format.row_bytes(width))
    whole = len(rows) % TILE == 0 or start + len(rows) == out
    if rows.shape != expected or start % TILE or start + len(rows) > out or not whole:
        raise ModelError(f"{w.name} {w.shape}: cannot pack rows {rows.shape} at {start}; expected whole tiles of 64")
    if not is_device(w.data):
        for name, plane in pack_numpy(w.format, rows).items():
            whole_plane = w.plane(name)
            # Each row tile has the same number of bytes in a plane.
            at = start // TILE * (len(whole_plane) // w.row_tiles)
            whole_plane[at : at + len(plane)] = plane
        return
    PACK.launch(
        (width // w.packing.span, -(-len(rows) // TILE)),
        rows,
        w.plane("low"),
        w.plane("high"),
        w.plane("scales"),
        w.plane("deltas"),
        start // TILE,
        len(rows),
        w.k_tiles,
        defines={"FORMAT": w.format.ggml_type},
    )


def pack(name: str, fmt: BlockFormat, shape: tuple[int, ...], rows: Any) -> PackedWeight:
    """Return a packed copy of file rows uint8 (out, row_bytes), NumPy or CuPy."""
    if is_device(rows):
        w = allocate(name, fmt, shape)
    else:
        nbytes = plane_offsets(name, fmt, shape).end
        w = PackedWeight(name, fmt, (int(shape[0]), int(shape[1])), np.zeros(nbytes, np.uint8))
    pack_rows(w, 0, rows)
    return w


def expand_scales(w: PackedWeight) -> Any:
    """Expand scales for the prefill matrix products: uint32 [row tile][input tile][2 groups of 32 inputs][64 rows]. The
    halves of a word are BF16: a scale, and the offset added to products with it; or the scales of the first and second
    16 inputs. The layout of each format is described at ``a_fragment`` in ``fragment.cuh``. None for plain numbers."""
    if w.packing.plain:
        return None
    words = import_cupy().empty(w.row_tiles * w.k_tiles * 2 * TILE, np.uint32)
    grid = -(-words.size // EXPAND_SCALES.block({}))
    EXPAND_SCALES.launch(
        (grid,),
        w.plane("scales"),
        w.plane("deltas"),
        words,
        words.size,
        w.k_tiles,
        defines={"FORMAT": w.format.ggml_type},
    )
    return words


def unpack(w: PackedWeight) -> Floats:
    """Return all values, float32 (out, in): equal to the bit to those that `sp.quant` decodes from the file."""
    if not is_device(w.data):
        planes = {name: w.plane(name) for name in ("low", "high", "scales", "deltas") if w.plane(name) is not None}
        return unpack_numpy(w.format, planes, w.shape)
    values = import_cupy().empty(w.shape, np.float32)
    _unpack(w, values, None, None, slice(0, w.row_tiles))
    return values  # type: ignore[no-any-return]


def unpack_bf16(w: PackedWeight, scales: Any = None) -> Any:
    """Return all values as operands of the prefill kernels, BF16 bits uint16 (out, in); `scales` from
    `expand_scales`."""
    values = import_cupy().empty(w.shape, np.uint16)
    _unpack(w, None, values, expand_scales(w) if scales is None else scales, slice(0, w.row_tiles))
    return values


def unpack_slabs(w: PackedWeight, most: int) -> Iterator[tuple[int, Any]]:
    """Yield the rows of `unpack_bf16` in slabs of whole tiles, of up to `most` bytes if a tile has no more: their first
    row, and uint16 (rows, in), which the next slab overwrites."""
    tiles, words = max(1, most // (2 * TILE * w.shape[1])), expand_scales(w)
    held = import_cupy().empty((min(tiles * TILE, w.shape[0]), w.shape[1]), np.uint16)
    for first in range(0, w.row_tiles, tiles):
        past = min(first + tiles, w.row_tiles)
        slab = held[: min(past * TILE, w.shape[0]) - first * TILE]
        _unpack(w, None, slab, words, slice(first, past))
        yield first * TILE, slab


def tile_planes(w: PackedWeight, tiles: slice) -> list[Any]:
    """Return the planes of some row tiles, in the order of kernels; None for those that the format does not have."""
    planes = (w.plane(name) for name in ("low", "high", "scales", "deltas"))
    return [plane if plane is None else plane.reshape(w.row_tiles, -1)[tiles] for plane in planes]


def _unpack(w: PackedWeight, f32: Any, bf16: Any, words: Any, tiles: slice) -> None:
    """Unpack row tiles, into rows of their own."""
    UNPACK.launch(
        (w.k_tiles, tiles.stop - tiles.start),
        *tile_planes(w, tiles),
        None if words is None else words.reshape(w.row_tiles, -1)[tiles],
        f32,
        bf16,
        len(f32 if bf16 is None else bf16),
        w.k_tiles,
        defines={"FORMAT": w.format.ggml_type, "ROUNDED": int(f32 is None)},
    )


def weight_arguments(weights: Sequence[PackedWeight], outs: Sequence[Any]) -> list[Any]:
    """Return the arguments for each of up to four weights of a kernel: data, ggml type, rows, bf16 output, float32
    output."""
    arguments: list[Any] = []
    for i in range(4):
        w = weights[i] if i < len(weights) else None
        out = outs[i] if i < len(outs) else None
        wide = out is not None and out.dtype.char == "f"
        arguments += [
            None if w is None else w.data,
            0 if w is None else w.format.ggml_type,
            0 if w is None else w.shape[0],
            None if wide else out,
            out if wide else None,
        ]
    return arguments
