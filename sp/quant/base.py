"""A block format: a number of values of a row packed into a number of bytes, with an encoder and a decoder.

Rows are packed along the last axis and blocks never cross a row. Work proceeds in slabs that fit a core's cache, so the
temporary memory of any call is small whatever the size of the tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sp.arrays import Bytes, Floats
from sp.errors import ConfigError
from sp.quant.packing import Packing

SLAB = 1 << 16  # values per step; 256 KiB of float32, a quarter of a typical L2 cache
FP16_MAX = 65504.0

BlockDecoder = Callable[[Bytes, Floats], None]  # fills (blocks, block_size) float32 from (blocks, block_bytes) uint8
BlockEncoder = Callable[[Floats, Bytes], None]  # fills (blocks, block_bytes) uint8 from (blocks, block_size) float32
ScaleFitter = Callable[[Bytes, float], None]
"""Overwrites the scales in (blocks, block_bytes) random bytes, so that they decode to mean 0 and the given standard
deviation."""


@dataclass(frozen=True)
class BlockFormat:
    """One way to store the values of a weight.

    Attributes
    ----------
    name : str
        The name that GGUF tools print, e.g. ``"Q4_K"``.
    ggml_type : int
        The type id in a GGUF tensor header.
    block_size : int
        Values in a block.
    block_bytes : int
        Bytes in a block.
    encode : callable
        float32 ``(..., n)`` -> uint8 ``(..., n // block_size * block_bytes)``. Raises ConfigError on NaN or
        Inf (except F32, which copies bits), on magnitudes the format cannot represent and on a row that is not
        whole blocks; always for read-only formats (`no_encoder`).
    decode : callable
        The inverse: uint8 ``(..., row_bytes)`` -> float32 ``(..., n)``, with the same leading axes.
    packing : Packing, optional
        Layout of its blocks, for kernels; without one the device stores it in another format, see `sp.quant.repack`.
    fit_scales : callable, optional
        See `ScaleFitter`; without one, random blocks are made by encoding random values.

    Examples
    --------
    >>> from sp.quant import Q8_0
    >>> packed = Q8_0.encode(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32))
    >>> packed.shape, Q8_0.decode(packed).shape
    ((2, 34), (2, 32))
    """

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int
    encode: Callable[[Floats], Bytes] = field(repr=False, compare=False)
    decode: Callable[[Bytes], Floats] = field(repr=False, compare=False)
    packing: Packing | None = field(default=None, repr=False, compare=False)
    fit_scales: ScaleFitter | None = field(default=None, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def bits_per_value(self) -> float:
        """Storage cost in bits per value, e.g. 4.5 for Q4_K."""
        return 8 * self.block_bytes / self.block_size

    def times(self, factor: float) -> BlockFormat:
        """Return the same format with `factor` in every value, for files with one scale per tensor. Kernels do not
        support the factor, so the device stores another format.

        >>> from sp.quant import format_by_name
        >>> nvfp4 = format_by_name("nvfp4")
        >>> block = np.full(36, 0x22, np.uint8)
        >>> float(nvfp4.decode(block)[0]), float(nvfp4.times(0.5).decode(block)[0])
        (0.15625, 0.078125)
        """

        def decode(data: Bytes) -> Floats:
            return self.decode(data) * np.float32(factor)

        return replace(self, decode=decode, packing=None)

    def row_bytes(self, n: int) -> int:
        """Return the bytes of a row of `n` values; ConfigError unless `n` is whole blocks.

        >>> from sp.quant import Q8_0
        >>> Q8_0.row_bytes(5120)
        5440
        """
        n = int(n)  # a NumPy int32 would wrap
        if n < 0 or n % self.block_size:
            raise ConfigError(f"{self.name}: a row of {n} values is not a multiple of the block of {self.block_size}")
        return n // self.block_size * self.block_bytes

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor of `shape`, fastest axis last, computed in Python integers, which cannot wrap.

        >>> from sp.quant import F32
        >>> F32.nbytes((1 << 20, 1 << 20)) == 1 << 42
        True
        """
        total = self.row_bytes(shape[-1]) if shape else self.row_bytes(1)
        for size in shape[:-1]:
            total *= int(size)
        return total


def checked_bytes(name: str, block_bytes: int, data: Bytes) -> Bytes:
    """Return `data` as a C-contiguous uint8 array of whole blocks; a view if it already is one."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim == 0:
        raise ConfigError(f"{name}: packed data must be a uint8 array with at least one axis")
    if data.shape[-1] % block_bytes:
        raise ConfigError(f"{name}: a row of {data.shape[-1]} bytes is not a multiple of the block of {block_bytes}")
    return np.ascontiguousarray(data)


def checked_values(name: str, block_size: int, values: npt.ArrayLike) -> Floats:
    """Return `values` as a C-contiguous float32 array of whole blocks; a view if it already is one."""
    array = np.ascontiguousarray(values, dtype=np.float32)
    if np.ndim(values) == 0 or array.shape[-1] % block_size:
        shape = np.shape(values)
        raise ConfigError(f"{name}: shape {shape} has no last axis that is a multiple of the block of {block_size}")
    return array


def fp16_scales(name: str, scales: Floats) -> npt.NDArray[np.float16]:
    """Round block scales to the fp16 in which they are stored; ConfigError if one would become Inf."""
    # 65520, midway to the next binade, rounds to Inf; written so that NaN fails too
    if scales.size and not float(np.abs(scales).max()) < FP16_MAX + 16:
        raise ConfigError(f"{name}: values are too large: a block scale exceeds {FP16_MAX:.0f}, the largest fp16")
    return scales.astype("<f2")


def inverse_or_zero(scales: Floats) -> Floats:
    """Return ``1 / scales``, and 0 where that would overflow; a scale this small is stored as fp16 zero anyway."""
    inverse = np.zeros_like(scales)
    np.divide(np.float32(1), scales, out=inverse, where=np.abs(scales) >= np.finfo(np.float32).tiny)
    return inverse


def no_encoder(name: str) -> Callable[[Floats], Bytes]:
    """Return the `BlockFormat.encode` of a read-only format: it raises ConfigError."""

    def encode(values: Floats) -> Bytes:
        raise ConfigError(f"{name}: this format is read-only, values cannot be packed into it; use Q8_0 or Q4_K")

    return encode


def slab_decoder(name: str, block_size: int, block_bytes: int, kernel: BlockDecoder) -> Callable[[Bytes], Floats]:
    """Wrap `kernel` into a `BlockFormat.decode` over the last axis."""
    step = SLAB // block_size

    def decode(data: Bytes) -> Floats:
        packed = checked_bytes(name, block_bytes, data)
        n = packed.shape[-1] // block_bytes * block_size
        out = np.empty((*packed.shape[:-1], n), np.float32)
        blocks = packed.reshape(-1, block_bytes) if packed.size else np.empty((0, block_bytes), np.uint8)
        values = out.reshape(-1, block_size) if out.size else np.empty((0, block_size), np.float32)
        for start in range(0, len(blocks), step):
            kernel(blocks[start : start + step], values[start : start + step])
        return out

    return decode


def slab_encoder(name: str, block_size: int, block_bytes: int, kernel: BlockEncoder) -> Callable[[Floats], Bytes]:
    """Wrap `kernel` into a `BlockFormat.encode` over the last axis."""
    step = SLAB // block_size

    def encode(values: Floats) -> Bytes:
        array = checked_values(name, block_size, values)
        out = np.empty((*array.shape[:-1], array.shape[-1] // block_size * block_bytes), np.uint8)
        rows = array.reshape(-1, block_size) if array.size else np.empty((0, block_size), np.float32)
        blocks = out.reshape(-1, block_bytes) if out.size else np.empty((0, block_bytes), np.uint8)
        for start in range(0, len(rows), step):
            slab = rows[start : start + step]
            if not np.isfinite(slab).all():  # no code represents them, and one would ruin the scale of its block
                raise ConfigError(
                    f"{name}: values contain NaN or Inf, which this format cannot store; repair the weights first"
                )
            kernel(slab, blocks[start : start + step])
        return out

    return encode
