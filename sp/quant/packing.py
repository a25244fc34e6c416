"""Packing: the positions of codes and scales in the blocks of a format, and every size that follows from them.

It is the only table of the layouts that kernels read: shared memory and launches in Python, the generated header
``packings.cuh`` in CUDA (`sp.kernels.packings`) and the NumPy reference of the packed layout
(`sp.ops.matmul.fragment_order`) take their numbers from here. A format without a packing is decoded on the CPU only and
re-packed for the device, see `sp.quant.repack`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sp.arrays import Bytes, Int8s

TILE = 64  # rows and inputs of a tile of packed weights
STAGE_ROWS, UNIT_ROWS = 16, TILE
"""Rows that the decode kernels and the Hopper kernel for few tokens fetch at once, each of a span of inputs."""


@dataclass(frozen=True)
class Plane:
    """A bit plane: some bits of every code of a block, ``8 // bits`` values per byte, or two bytes per value.

    Value ``k`` is in byte ``at + k // (run * n) * run + k % run`` from bit ``bits * (k // run % n)`` on, where ``n = 8
    // bits``: ``n`` runs of `run` consecutive values share their bytes.

    Attributes
    ----------
    bits : int
        Bits of each code in this plane.
    at : int
        Offset of its first byte in the block.
    run : int
        Consecutive values in consecutive bytes.
    """

    bits: int
    at: int
    run: int = 1


@dataclass(frozen=True)
class Scales:
    """Scales of a block: bytes stored unchanged, or converted to one signed byte per group.

    Attributes
    ----------
    at, nbytes : int
        Their offset and size in a block of the file.
    steps : callable, optional
        uint8 ``(blocks, block_bytes)`` -> int8 ``(blocks, groups)``: multipliers of the delta, which the device stores.
    groups : int
        Number of groups, if there are `steps`.
    """

    at: int
    nbytes: int
    steps: Callable[[Bytes], Int8s] | None = None
    groups: int = 0

    @property
    def held(self) -> int:
        """Bytes per block on the device."""
        return self.groups if self.steps else self.nbytes


@dataclass(frozen=True)
class Vectors:
    """Codes that index vectors of numbers in the file; the device stores a code for each number instead."""

    nbytes: int  # bytes of a block in the file, without its scales
    codes: Callable[[Bytes], Bytes]  # uint8 ``(blocks, block_bytes)`` -> uint8 ``(blocks, block)``
    grid: Callable[[], npt.NDArray[Any]]  # the vectors, as words: uint32 of four signed bytes


@dataclass(frozen=True)
class Packing:
    """Memory layout of a block.

    Attributes
    ----------
    block : int
        Values per block.
    low : Plane
        The lower bits of the codes, or all of them. With `vectors`, the bits on the device only.
    high : Plane, optional
        The upper bits.
    scales : Scales, optional
        The scales of the block, including minima; none for plain numbers.
    delta : Scales, optional
        A float16 that multiplies the scales, if it is separate from them.
    group : int
        Values per scale.
    minima : bool
        True if codes start at 0 and a minimum is subtracted (super-blocks) or added (blocks of 32); otherwise codes are
        centred on the middle of their range.
    signed : bool
        True if the file stores codes as two's complement; kernels store them unsigned, with the middle added.
    values : tuple of int
        The numbers that the codes represent, by code, if these are not the codes themselves.
    vectors : Vectors, optional
        The vectors that codes of the file index, if they do.

    Examples
    --------
    >>> from sp.quant import Q6_K
    >>> p = Q6_K.packing
    >>> p.block_bytes, p.low_bytes, p.high_bytes, p.zero, p.stage_bytes
    (210, 2048, 1024, 32, 3360)
    """

    block: int
    low: Plane
    high: Plane | None = None
    scales: Scales | None = None
    delta: Scales | None = None
    group: int = 1
    minima: bool = False
    signed: bool = False
    values: tuple[int, ...] = ()
    vectors: Vectors | None = None

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The low plane and, if there is one, the high one."""
        return (self.low,) if self.high is None else (self.low, self.high)

    @property
    def bits(self) -> int:
        """Bits per code."""
        return sum(plane.bits for plane in self.planes)

    @property
    def block_bytes(self) -> int:
        """Bytes per block in the file."""
        codes = self.vectors.nbytes if self.vectors else self.block * self.bits // 8
        return codes + sum(part.nbytes for part in (self.scales, self.delta) if part)

    @property
    def held_bytes(self) -> int:
        """Bytes per block on the device."""
        return self.block * self.bits // 8 + sum(part.held for part in (self.scales, self.delta) if part)

    @property
    def plain(self) -> bool:
        """True if the codes are numbers by themselves, without scales."""
        return self.scales is None

    @property
    def tiled(self) -> bool:
        """True if matrix kernels read it; of other formats only rows are gathered."""
        return self.bits <= 16

    @property
    def super(self) -> bool:
        """True if a block is a super-block, which spans several tiles and groups, as those of K-quants do."""
        return self.block > TILE

    @property
    def middle(self) -> int:
        """The middle of the range of the codes; 0 for plain numbers."""
        return 0 if self.plain else 1 << (self.bits - 1)

    @property
    def zero(self) -> int:
        """The unsigned code that represents 0, if there are no minima."""
        return 0 if self.minima else self.middle

    @property
    def lookup(self) -> bool:
        """True if codes represent unevenly spaced numbers, of 7 bits and a sign, which need a lookup."""
        return len({after - before for before, after in zip(self.values, self.values[1:], strict=False)}) > 1

    def held_codes(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert codes of the file to those of the device, or back: looked-up codes exchange bits 2 and 3. Codes that
        differ in the top bit only then represent numbers of one sign, which saves kernels a selection."""
        return codes & 3 | (codes & 4) << 1 | (codes & 8) >> 1 if self.lookup else codes

    @property
    def held_values(self) -> tuple[int, ...]:
        """`values` in the order of the device's codes."""
        return tuple(self.values[code] for code in self.held_codes(np.arange(len(self.values))))

    @property
    def raised(self) -> int:
        """The offset added to looked-up numbers stored as bytes, so that codes that differ in the top bit only have one
        sign."""
        values, half = self.held_values, len(self.values) // 2
        one_sign = all((a < 0) == (b < 0) for a, b in zip(values[:half], values[half:], strict=True))
        return 0 if one_sign or not self.lookup else -min(values)

    @property
    def counted(self) -> bool:
        """True if the bytes of codes or of looked-up numbers have an offset, which kernels correct by the sums of the
        inputs."""
        return self.raised != 0 if self.lookup else self.bits < 8 and self.first != 0

    @property
    def stride(self) -> int:
        """Difference between the numbers of neighbouring codes, if there is no lookup."""
        return self.values[1] - self.values[0] if self.values and not self.lookup else 1

    @property
    def first(self) -> int:
        """The number that code 0 represents."""
        return self.values[0] if self.values else -self.zero

    @property
    def centre(self) -> int:
        """The number that the middle code represents, if there is no lookup."""
        return self.stride * self.middle + self.first

    @property
    def flip(self) -> int:
        """The mask that makes codes of the file unsigned, by XOR."""
        return self.middle if self.signed else 0

    @property
    def span(self) -> int:
        """Inputs whose scales are stored together; rows are whole multiples of them."""
        return max(self.block, TILE)

    @property
    def tiles(self) -> int:
        """Tiles per span."""
        return self.span // TILE

    @property
    def low_bytes(self) -> int:
        """Bytes of a tile in the low plane."""
        return TILE * TILE * self.low.bits // 8

    @property
    def high_bytes(self) -> int:
        """Bytes of a tile in the high plane."""
        return TILE * TILE * self.high.bits // 8 if self.high else 0

    @property
    def scales_bytes(self) -> int:
        """Bytes of the scales of 64 rows of a span."""
        return TILE * self.span // self.block * self.scales.held if self.scales else 0

    @property
    def deltas_bytes(self) -> int:
        """Bytes of the deltas of 64 rows of a span."""
        return TILE * self.span // self.block * self.delta.nbytes if self.delta else 0

    @property
    def stage_bytes(self) -> int:
        """Bytes of 16 rows of a span, which a warp of the decode kernels fetches at once."""
        return self._slot_bytes(STAGE_ROWS)

    @property
    def unit_bytes(self) -> int:
        """Bytes of 64 rows of a span, which the Hopper kernel for few tokens fetches at once."""
        return self._slot_bytes(UNIT_ROWS)

    def _slot_bytes(self, rows: int) -> int:
        return rows * self.span // self.block * self.held_bytes
