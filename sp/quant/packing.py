"""Packing: where the codes and scales of a format lie in its blocks, and every size that follows from it.

It is the one table of what kernels read: shared memory and launches in Python, the generated header ``packings.cuh`` in
CUDA (`sp.kernels.packings`) and the NumPy twin of the packed layout (`sp.ops.matmul.fragment_order`) take their numbers
from here. A format without a packing is decoded on the CPU alone and re-packed for the device, see `sp.quant.repack`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sp.arrays import Bytes, Int8s

TILE = 64  # rows, and inputs, of a tile of packed weights
STAGE_ROWS, UNIT_ROWS = 16, TILE
"""Rows that the decode kernels and the Hopper kernel for few tokens fetch at once, each of a span of inputs."""


@dataclass(frozen=True)
class Plane:
    """Some bits of every code of a block, ``8 // bits`` values to a byte, or two bytes a value.

    Value ``k`` lies in byte ``at + k // (run * n) * run + k % run`` from bit ``bits * (k // run % n)`` on, where
    ``n = 8 // bits``: so many runs of `run` consecutive values share their bytes.

    Attributes
    ----------
    at : int
        First byte in the block.
    """

    bits: int
    at: int
    run: int = 1


@dataclass(frozen=True)
class Scales:
    """Scales of a block: bytes that are kept as they are, or a signed byte for each group that is made of them.

    Attributes
    ----------
    at, nbytes : int
        Where they lie in the block of a file.
    steps : callable, optional
        uint8 ``(blocks, block_bytes)`` -> int8 ``(blocks, groups)``, what multiplies the delta; the device holds these.
    groups : int
        How many, with `steps`.
    """

    at: int
    nbytes: int
    steps: Callable[[Bytes], Int8s] | None = None
    groups: int = 0

    @property
    def held(self) -> int:
        """Bytes of a block on the device."""
        return self.groups if self.steps else self.nbytes


@dataclass(frozen=True)
class Vectors:
    """Codes that name vectors of numbers in the file: the device holds a code for each number."""

    nbytes: int  # of a block in the file, without its scales
    codes: Callable[[Bytes], Bytes]  # uint8 ``(blocks, block_bytes)`` -> uint8 ``(blocks, block)``
    grid: Callable[[], npt.NDArray[Any]]  # the vectors, as words: uint32 of four signed bytes


@dataclass(frozen=True)
class Packing:
    """How a block lies in memory.

    Attributes
    ----------
    block : int
        Values of a block.
    low : Plane
        The lower bits of the codes, or all of them. With `vectors`, their bits on the device alone.
    high : Plane, optional
        The upper bits.
    scales : Scales, optional
        The scales of the block, minima with them; none for plain numbers.
    delta : Scales, optional
        A float16 that multiplies the scales, where it does not lie among them.
    group : int
        Values that a scale covers.
    minima : bool
        Whether codes count from 0 and a minimum is taken off (super-blocks) or added (blocks of 32); otherwise they
        count from the middle of their range.
    signed : bool
        Whether codes lie in the file as two's complement; kernels hold them unsigned, with the middle added.
    values : tuple of int
        What the codes stand for, in their order, where that is not the codes themselves.
    vectors : Vectors, optional
        Where codes of the file name vectors.

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
        """Bits of a code."""
        return sum(plane.bits for plane in self.planes)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in the file."""
        codes = self.vectors.nbytes if self.vectors else self.block * self.bits // 8
        return codes + sum(part.nbytes for part in (self.scales, self.delta) if part)

    @property
    def held_bytes(self) -> int:
        """Bytes of a block on the device."""
        return self.block * self.bits // 8 + sum(part.held for part in (self.scales, self.delta) if part)

    @property
    def plain(self) -> bool:
        """Whether the codes are numbers by themselves."""
        return self.scales is None

    @property
    def tiled(self) -> bool:
        """Whether matrix kernels read it; of other formats only rows are gathered."""
        return self.bits <= 16

    @property
    def super(self) -> bool:
        """Whether a block is a super-block, of several tiles' inputs and groups, as those of K-quants are."""
        return self.block > TILE

    @property
    def middle(self) -> int:
        """The middle of the range of the codes; 0 for plain numbers."""
        return 0 if self.plain else 1 << (self.bits - 1)

    @property
    def zero(self) -> int:
        """The unsigned code that stands for 0, where there are no minima."""
        return 0 if self.minima else self.middle

    @property
    def lookup(self) -> bool:
        """Whether codes stand for unevenly spaced numbers, of 7 bits and a sign, which must be looked up."""
        return len({after - before for before, after in zip(self.values, self.values[1:], strict=False)}) > 1

    def held_codes(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Codes as the device holds them, from those of the file, and back: looked-up ones exchange bits 2 and 3. Codes
        that differ in the top bit alone then stand for numbers of one sign, which spares kernels a choice."""
        return codes & 3 | (codes & 4) << 1 | (codes & 8) >> 1 if self.lookup else codes

    @property
    def held_values(self) -> tuple[int, ...]:
        """`values` in the order of the device's codes."""
        return tuple(self.values[code] for code in self.held_codes(np.arange(len(self.values))))

    @property
    def raised(self) -> int:
        """What is added to looked-up numbers as bytes: codes that differ in the top bit alone then have one sign."""
        values, half = self.held_values, len(self.values) // 2
        one_sign = all((a < 0) == (b < 0) for a, b in zip(values[:half], values[half:], strict=True))
        return 0 if one_sign or not self.lookup else -min(values)

    @property
    def counted(self) -> bool:
        """Whether bytes of codes or of looked-up numbers count from another number than 0, as sums of inputs allow."""
        return self.raised != 0 if self.lookup else self.bits < 8 and self.first != 0

    @property
    def stride(self) -> int:
        """What one code stands for more than the one before, where nothing is looked up."""
        return self.values[1] - self.values[0] if self.values and not self.lookup else 1

    @property
    def first(self) -> int:
        """What code 0 stands for."""
        return self.values[0] if self.values else -self.zero

    @property
    def centre(self) -> int:
        """What the middle code stands for, where nothing is looked up."""
        return self.stride * self.middle + self.first

    @property
    def flip(self) -> int:
        """What codes of the file are xor-ed with to be unsigned."""
        return self.middle if self.signed else 0

    @property
    def span(self) -> int:
        """Inputs that rows are whole multiples of: those whose scales lie together."""
        return max(self.block, TILE)

    @property
    def tiles(self) -> int:
        """Tiles of a span."""
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
