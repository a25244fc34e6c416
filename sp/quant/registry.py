"""The registry of weight formats: each format is added by one call of `register_format`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from sp.errors import ConfigError, unknown_name
from sp.quant.base import BlockFormat
from sp.quant.packing import Packing

_formats: dict[int, BlockFormat] = {}

FORMATS: Mapping[int, BlockFormat] = MappingProxyType(_formats)  # every registered format by its ggml type id


def register_format(fmt: BlockFormat) -> BlockFormat:
    """Register a format by its ggml type and its name, for the file reader and everything after it.

    Formats of this package are registered in their file of `sp.quant.formats`, which is imported automatically; others
    must be registered before a file is opened.

    Returns
    -------
    BlockFormat
        `fmt` itself.

    Raises
    ------
    ConfigError
        If the name or the type is already registered, or the packing describes other blocks.

    Examples
    --------
    >>> from sp.quant import Q8_0
    >>> register_format(Q8_0)
    Traceback (most recent call last):
    sp.errors.ConfigError: weight format Q8_0 (ggml type 8) is already registered, as Q8_0
    """
    for known in _formats.values():
        if known.ggml_type == fmt.ggml_type or known.name == fmt.name:
            kind = f"{fmt.name} (ggml type {fmt.ggml_type})"
            raise ConfigError(f"weight format {kind} is already registered, as {known.name}")
    packing = fmt.packing
    if packing and (packing.block, packing.block_bytes) != (fmt.block_size, fmt.block_bytes):
        raise ConfigError(
            f"weight format {fmt.name}: blocks of {fmt.block_size} values in {fmt.block_bytes} bytes, but its packing "
            f"has {packing.block} values in {packing.block_bytes}"
        )
    _formats[fmt.ggml_type] = fmt
    return fmt


def format_by_name(name: str) -> BlockFormat:
    """Return the format of a name, in any case; ConfigError with the nearest names if there is none.

    >>> format_by_name("q8_0").block_bytes
    34
    """
    known = {fmt.name: fmt for fmt in _formats.values()}
    if name.upper() not in known:
        raise unknown_name("weight format", name.upper(), known)
    return known[name.upper()]


def packing_of(kind: int) -> Packing:
    """Return the packing of a format by its ggml type; it must be one of `kernel_formats`.

    >>> packing_of(8).unit_bytes
    4352
    """
    packing = _formats[kind].packing
    assert packing is not None, f"no kernel reads {_formats[kind].name}"
    return packing


def kernel_formats() -> tuple[BlockFormat, ...]:
    """Return the formats that matrix kernels read, those with the largest blocks and the widest codes first.

    >>> names = [fmt.name for fmt in kernel_formats()]
    >>> names[0], names[-2:]
    ('Q4_K', ['F16', 'BF16'])
    """
    tiled = [(fmt, fmt.packing) for fmt in _formats.values() if fmt.packing is not None and fmt.packing.tiled]
    tiled.sort(key=lambda pair: (-pair[1].block, -pair[1].low.bits, pair[0].ggml_type))
    return tuple(fmt for fmt, _ in tiled)


def format_bits(*kinds: int) -> int:
    """Encode a set of ggml types as the bits of a number, as kernels take it.

    >>> format_bits(12, 14, 12) == 1 << 12 | 1 << 14
    True
    """
    return sum({1 << kind for kind in kinds})


@cache
def packings_in(bits: int) -> tuple[Packing, ...]:
    """Return the packings of a set of ggml types, see `format_bits`."""
    return tuple(packing_of(fmt.ggml_type) for fmt in kernel_formats() if bits >> fmt.ggml_type & 1)
