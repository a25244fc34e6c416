"""Formats in which the device stores weights that no kernel reads: the same numbers re-packed, and the cost in memory.

They become Q8_0 (8-bit codes with a scale per 32 values) if the format has no more bits per value than that, and BF16
if it has more or a row is not whole blocks. A narrow F32 matrix becomes three BF16 matrices that add up to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from sp.arrays import Bytes
from sp.quant.base import BlockFormat
from sp.quant.formats.legacy import Q8_0
from sp.quant.formats.plain import BF16, F32
from sp.quant.packing import TILE
from sp.quant.registry import FORMATS

PIECE = 1 << 20  # values that a thread converts at a time
EXACT_ROWS = 512
"""F32 matrices of at most this many rows keep every bit; those in real files are gates, with a row per head."""
EXACT_TERMS = 3  # BF16 matrices that add up to an F32 one: 3 x 8 significant bits cover its 24


def device_format(fmt: BlockFormat, width: int, *, table: bool = False) -> BlockFormat:
    """Return the format in which the device stores a matrix. `fmt`: its format in the file; `width`: values per row;
    `table`: True if rows are only gathered, as from an embedding, which needs no matrix kernel.

    >>> from sp.quant import F32, Q4_K
    >>> device_format(Q4_K, 512).name, device_format(F32, 512).name, device_format(F32, 512, table=True).name
    ('Q4_K', 'BF16', 'F32')
    """
    if fmt.packing is not None and (fmt.packing.tiled or table):
        return fmt
    return Q8_0 if fmt.bits_per_value <= Q8_0.bits_per_value and width % Q8_0.block_size == 0 else BF16


def is_split(fmt: BlockFormat, shape: tuple[int, ...]) -> bool:
    """Return True if the device stores a matrix (out, in) as several BF16 matrices that add up to it.

    >>> is_split(F32, (48, 5120)), is_split(F32, (17408, 5120))
    (True, False)
    """
    return fmt is F32 and shape[0] <= EXACT_ROWS


def repack(rows: Bytes, fmt: BlockFormat, target: BlockFormat) -> Bytes:
    """Convert rows from one format to another: uint8 (n, row_bytes) -> (n, row_bytes of `target`), on all cores.
    ConfigError if values are NaN, Inf or too large for `target`.

    >>> from sp.quant import Q4_0, Q8_0
    >>> repack(Q4_0.encode(np.ones((3, 64), np.float32)), Q4_0, Q8_0).shape
    (3, 68)
    """
    width = rows.shape[1] // fmt.block_bytes * fmt.block_size
    out = np.empty((len(rows), target.row_bytes(width)), np.uint8)
    step = max(1, PIECE // max(width, 1))

    def work(start: int) -> None:
        piece = slice(start, start + step)
        out[piece] = target.encode(fmt.decode(rows[piece]))

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(work, range(0, len(rows), step)):
            pass
    return out


@dataclass(frozen=True)
class Repacked:
    """Matrices of one format that the device stores in another.

    Attributes
    ----------
    source, target : str
        Names of the formats.
    tensors : int
        Number of matrices.
    source_bytes, target_bytes : int
        Their total bytes, in the file and on the device.

    Examples
    --------
    >>> print(Repacked("IQ4_XS", "Q8_0", 12, 1_200_000_000, 2_100_000_000))
    12 tensors of IQ4_XS are re-packed as Q8_0 for the GPU: 1.2 GB -> 2.1 GB
    """

    source: str
    target: str
    tensors: int
    source_bytes: int
    target_bytes: int

    def __str__(self) -> str:
        tensors, verb = ("1 tensor", "is") if self.tensors == 1 else (f"{self.tensors} tensors", "are")
        sizes = f"{_size(self.source_bytes)} -> {_size(self.target_bytes)}"
        return f"{tensors} of {self.source} {verb} re-packed as {self.target} for the GPU: {sizes}"


def count_repacked(matrices: Iterable[tuple[BlockFormat, tuple[int, ...], bool]]) -> tuple[Repacked, ...]:
    """Return the groups of `matrices` that the device stores in another format, the most bytes first. `matrices`:
    iterable of (format, shape, table), see `device_format`.

    >>> from sp.quant import F32, Q4_K
    >>> [str(group) for group in count_repacked([(F32, (1000, 512), False), (Q4_K, (1000, 512), False)])]
    ['1 tensor of F32 is re-packed as BF16 for the GPU: 2.0 MB -> 1.0 MB']
    """
    groups: dict[tuple[str, str], Repacked] = {}
    for fmt, shape, table in matrices:
        target = device_format(fmt, shape[-1], table=table)
        if target is fmt:
            continue
        terms = EXACT_TERMS if is_split(fmt, shape) and not table else 1
        key = fmt.name, target.name if terms == 1 else f"{terms} x {target.name}"
        group = groups.get(key, Repacked(*key, 0, 0, 0))
        sizes = group.source_bytes + fmt.nbytes(shape), group.target_bytes + terms * target.nbytes(shape)
        groups[key] = Repacked(*key, group.tensors + 1, *sizes)
    return tuple(sorted(groups.values(), key=lambda group: -group.target_bytes))


class TensorEntry(Protocol):
    """A tensor's entry in the header of a file."""

    @property
    def ggml_type(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def repacked_tensors(tensors: Mapping[str, TensorEntry]) -> tuple[Repacked, ...]:
    """Return the matrices of a GGUF file that the device would store in another format, except convolution taps.

    A head tied to the embedding is not counted twice. Expert matrices are stacked along the rows.
    """
    matrices = (
        (FORMATS[info.ggml_type], (prod(info.shape[:-1]), info.shape[-1]), name == "token_embd.weight")
        for name, info in tensors.items()
        if info.ggml_type in FORMATS and len(info.shape) in (2, 3) and info.shape[-1] % TILE == 0
    )
    return count_repacked(matrices)


def _size(count: int) -> str:
    unit, name = (1e9, "GB") if count >= 1e8 else (1e6, "MB")
    return f"{count / unit:.1f} {name}"
