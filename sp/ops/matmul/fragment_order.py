"""Fragment order: packed weights laid out as the tensor cores' A operand, and the NumPy code that defines it.

A weight is split into tiles of 64 rows x 64 inputs, ordered ``[row tile][input tile]``. Thread ``32 * warp + 4 * g +
c`` of a tile has, for each of four steps of 16 inputs, four pairs of values: pair ``j = r + 2 * h`` is in row ``16 *
warp + 8 * r + g`` at inputs ``16 * step + 8 * h + 2 * c`` and the next one, ``e = 0, 1``. That is the A fragment of
``mma.m16n8k16`` (PTX ISA 9.7.15) and of ``wgmma`` from registers, so kernels load it directly into registers.

=======  ==============================  ===============================================================================
plane    bytes per tile                  content
=======  ==============================  ===============================================================================
low      2048 (4 bits), 4096, 8192;      bytes: ``[step / 2][thread][step % 2][h][r][e]``; halves:
         1024 (2 bits)                   ``[step][thread][j][e]``; fewer bits: ``[thread]`` the first words, see below
high     1024 (2 bits), 512 (1 bit)      ``[thread]`` the other words
scales   as in the file, or converted    super-blocks ``[row tile][superblock][64 rows][8 or 16 bytes]``; blocks of 32
                                         ``[tile][2 groups of 32][64 rows][1, 2 or 4 bytes]``
deltas   as in the file                  ``[row tile][superblock][64 rows]`` float16
=======  ==============================  ===============================================================================

Codes of three to six bits take as many words, see `sp.quant.pieces`; byte ``h + 2 e`` of a word has those of inputs
``h`` and ``e``. Looked-up codes are at bit ``16 r + 4 (h + 2 e)`` of the word of their step: the four codes of a row
select bytes of a table, in the order of 8-bit products.

Codes are unsigned: Q8_0 is stored with 128 added. Scales that are scattered in the file (Q3_K, IQ4_XS, IQ3_S) become
one signed byte per group, and codes that index vectors there (IQ3_S) become a code per number. Rows are padded to whole
tiles with zero bytes of the file's layout. The layout of each format is described by its `sp.quant.Packing`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sp.arrays import Bytes, Floats
from sp.errors import ModelError
from sp.quant import BlockFormat, Packing, Plane, Scales, kernel_formats
from sp.quant.packing import TILE
from sp.quant.pieces import ROWS, STEPS, pieces

ALIGNMENT = 256


class Offsets(NamedTuple):
    """Offsets of the planes in the bytes of a packed weight; an absent plane has the offset of the next one."""

    low: int
    high: int
    scales: int
    deltas: int
    end: int


def tiled_packing(name: str, fmt: BlockFormat) -> Packing:
    """Return the packing of a weight's format; ModelError if it has no fragment order."""
    packing = fmt.packing
    if packing is None or not packing.tiled:
        known = ", ".join(each.name for each in kernel_formats())
        raise ModelError(f"{name}: no kernel reads {fmt.name}; known: {known}")
    return packing


def plane_sizes(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return the bytes of the planes low, high, scales and deltas of a weight (out, in); ModelError if it has none."""
    p = tiled_packing(name, fmt)
    if len(shape) != 2 or shape[1] % p.span or min(shape) < 1:
        raise ModelError(f"{name}: kernels need a {fmt.name} matrix with rows of whole {p.span} values, got {shape}")
    row_tiles = -(-shape[0] // TILE)
    tiles, spans = row_tiles * (shape[1] // TILE), row_tiles * (shape[1] // p.span)
    return tiles * p.low_bytes, tiles * p.high_bytes, spans * p.scales_bytes, spans * p.deltas_bytes


def plane_offsets(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> Offsets:
    """Return the offsets of the planes of a weight (out, in); ModelError if it has no fragment order."""
    offsets = [0]
    for nbytes in plane_sizes(name, fmt, shape):
        offsets.append(-(-(offsets[-1] + nbytes) // ALIGNMENT) * ALIGNMENT)
    return Offsets(*offsets)


def pack_numpy(fmt: BlockFormat, rows: Bytes) -> dict[str, Bytes]:
    """Pack raw file rows, uint8 (out, row_bytes), to flat planes."""
    p = tiled_packing("a weight", fmt)
    width = rows.shape[1] // fmt.block_bytes * fmt.block_size
    raw = np.zeros((-(-len(rows) // TILE) * TILE, rows.shape[1]), np.uint8)
    raw[: len(rows)] = rows
    blocks = raw.reshape(len(raw), -1, fmt.block_bytes)  # (rows, blocks, block_bytes)
    planes = {}
    codes = _codes(p, blocks).reshape(len(raw), width)
    grid = codes.reshape(len(raw) // TILE, 4, 2, 8, width // TILE, 4, 2, 4, 2)
    if p.low.bits == 16:
        planes["low"] = _ordered(grid, "R K s w g c h r e")
    elif p.low.bits == 8:
        steps = grid.reshape(*grid.shape[:5], 2, 2, *grid.shape[6:])
        planes["low"] = np.ascontiguousarray(steps.transpose(0, 4, 5, 1, 3, 8, 6, 7, 2, 9))
    else:
        places = _ordered(grid, "R K w g c s r h e").astype(np.uint32)  # (..., steps, r, h, e)
        words = _looked_up_words(places) if p.lookup else _pieced_words(p.bits, places)
        lows = p.low.bits  # the 32 codes of a thread take as many words as a code has bits
        planes["low"] = words[..., :lows]
        if p.high:
            planes["high"] = words[..., lows:]
    tiled = blocks.reshape(len(raw) // TILE, TILE, -1, fmt.block_bytes)
    for name, part in _kept(p):
        kept = tiled[..., part.at : part.at + part.nbytes]
        if part.steps:
            kept = part.steps(tiled.reshape(-1, fmt.block_bytes)).view(np.uint8).reshape(*tiled.shape[:3], -1)
        planes[name] = kept.swapaxes(1, 2)
    return {plane: np.ascontiguousarray(values).reshape(-1).view(np.uint8) for plane, values in planes.items()}


def unpack_numpy(fmt: BlockFormat, planes: dict[str, Bytes], shape: tuple[int, int]) -> Floats:
    """Return all values of a packed weight, float32 (out, in): equal to the bit to those decoded from the file."""
    p = tiled_packing("a weight", fmt)
    codes = _codes_of(p, planes, shape)
    row_tiles = -(-shape[0] // TILE)
    parts = {name: planes[name].reshape(row_tiles, -1, TILE, part.held).swapaxes(1, 2) for name, part in _kept(p)}
    if p.scales and p.scales.steps:
        held = {name: np.ascontiguousarray(part).reshape(len(codes), -1) for name, part in parts.items()}
        step = np.repeat(held["deltas"].view("<f2").astype(np.float32), p.scales.held, axis=1)
        step *= held["scales"].view(np.int8)
        numbers = np.array(p.held_values)[codes] if p.values else codes.astype(np.int64) - p.zero
        values: Floats = numbers.astype(np.float32) * np.repeat(step, p.group, axis=1)
        return values[: shape[0]]
    blocks = np.empty((len(codes), shape[1] // fmt.block_size, fmt.block_bytes), np.uint8)
    tiled = blocks.reshape(row_tiles, TILE, -1, fmt.block_bytes)
    for name, part in _kept(p):
        tiled[..., part.at : part.at + part.nbytes] = parts[name]
    _store_codes(p, codes.reshape(len(codes), -1, fmt.block_size), blocks)
    return fmt.decode(blocks.reshape(len(codes), -1)[: shape[0]])


def _kept(p: Packing) -> list[tuple[str, Scales]]:
    """Return the planes besides those of codes."""
    return [(name, part) for name, part in (("scales", p.scales), ("deltas", p.delta)) if part]


def _codes_of(p: Packing, planes: dict[str, Bytes], shape: tuple[int, int]) -> np.ndarray:
    """Return the unsigned codes (padded out, in) in the planes of a weight."""
    padded, width = -(-shape[0] // TILE) * TILE, shape[1]
    row_tiles, k_tiles = padded // TILE, width // TILE
    if p.low.bits == 16:
        grid = planes["low"].view(np.uint16).reshape(row_tiles, k_tiles, 4, 4, 8, 4, 2, 2, 2)
        return grid.transpose(0, 3, 7, 4, 1, 2, 6, 5, 8).reshape(padded, width)
    if p.low.bits == 8:
        steps = planes["low"].reshape(row_tiles, k_tiles, 2, 4, 8, 4, 2, 2, 2, 2)
        return steps.transpose(0, 3, 8, 4, 1, 2, 6, 7, 5, 9).reshape(padded, width)
    names = ("low", "high")[: len(p.planes)]
    held = [planes[name].view(np.uint32).reshape(row_tiles, k_tiles, 4, 8, 4, -1) for name in names]
    words = np.concatenate(held, axis=-1)
    codes = _codes_looked_up(words) if p.lookup else _codes_in_pieces(p.bits, words)
    return codes.transpose(0, 2, 6, 3, 1, 5, 7, 4, 8).reshape(padded, width).astype(np.uint8)


def _ordered(grid: np.ndarray, order: str) -> np.ndarray:
    """Permute the axes row tile R, warp w, r, g, input tile K, step s, h, c, e of `grid` to another order."""
    names = ["R", "w", "r", "g", "K", "s", "h", "c", "e"]
    return np.ascontiguousarray(grid.transpose([names.index(name) for name in order.split()]))


def _mask(bits: int) -> int:
    return (1 << bits) - 1


def _byte_places(each: int) -> np.ndarray:
    """Return the bit positions of the codes of inputs h and e, `each` bits apart: uint32 (h, e)."""
    h, e = np.indices((2, 2), np.uint32)
    places: np.ndarray = each * (h + 2 * e)
    return places


def _pieced_words(bits: int, codes: np.ndarray) -> np.ndarray:
    """Pack codes (..., 4 steps, r, h, e) in pieces: (..., words) uint32."""
    words = np.zeros((*codes.shape[:5], bits), np.uint32)
    for step, row in np.ndindex(STEPS, ROWS):
        for piece in pieces(bits, step, row):
            part = codes[..., step, row, :, :] >> piece.to & _mask(piece.bits)
            words[..., piece.word] |= np.bitwise_or.reduce(part << _byte_places(8) + piece.at, axis=(-2, -1))
    return words


def _codes_in_pieces(bits: int, words: np.ndarray) -> np.ndarray:
    """Undo `_pieced_words`."""
    codes = np.zeros((*words.shape[:5], STEPS, ROWS, 2, 2), np.uint32)
    for step, row in np.ndindex(STEPS, ROWS):
        for piece in pieces(bits, step, row):
            part = words[..., piece.word, None, None] >> _byte_places(8) + piece.at & _mask(piece.bits)
            codes[..., step, row, :, :] |= part << piece.to
    return codes


def _looked_up_words(codes: np.ndarray) -> np.ndarray:
    """Pack looked-up codes (..., 4 steps, r, h, e), one step per word, one row per half: (..., 4) uint32."""
    rows = np.bitwise_or.reduce(codes << _byte_places(4), axis=(-2, -1))
    words: np.ndarray = rows[..., 0] | rows[..., 1] << 16
    return words


def _codes_looked_up(words: np.ndarray) -> np.ndarray:
    """Undo `_looked_up_words`."""
    rows = np.stack([words & 0xFFFF, words >> 16], axis=-1)
    codes: np.ndarray = rows[..., None, None] >> _byte_places(4) & 15
    return codes


def _codes(p: Packing, blocks: Bytes) -> np.ndarray:
    """Return the unsigned codes (rows, blocks, block_size) of raw blocks (rows, blocks, block_bytes)."""
    if p.vectors:
        return p.vectors.codes(blocks.reshape(-1, blocks.shape[-1])).reshape(*blocks.shape[:2], p.block)
    codes = _plane_bits(p, p.low, blocks)
    if p.high:
        codes = codes | _plane_bits(p, p.high, blocks) << p.low.bits
    flipped: np.ndarray = codes ^ codes.dtype.type(p.flip)
    return p.held_codes(flipped)


def _plane_bits(p: Packing, plane: Plane, blocks: Bytes) -> np.ndarray:
    """Return the part of the codes in one plane: (rows, blocks, block_size)."""
    head, stored = blocks.shape[:2], blocks[..., plane.at : plane.at + p.block * plane.bits // 8]
    if plane.bits >= 8:
        return np.ascontiguousarray(stored).view(f"<u{plane.bits // 8}")
    each = 8 // plane.bits
    shift = plane.bits * np.arange(each, dtype=np.uint8)[:, None]
    runs = stored.reshape(*head, -1, 1, plane.run) >> shift & np.uint8(_mask(plane.bits))
    return runs.reshape(*head, p.block)


def _store_codes(p: Packing, codes: np.ndarray, blocks: Bytes) -> None:
    """Undo `_codes`, into the code bytes of `blocks`."""
    head, shift = blocks.shape[:2], 0
    codes = p.held_codes(codes) ^ codes.dtype.type(p.flip)
    for plane in p.planes:
        into = slice(plane.at, plane.at + p.block * plane.bits // 8)
        if plane.bits >= 8:
            blocks[..., into] = np.ascontiguousarray(codes).view(np.uint8)
            return
        each = 8 // plane.bits
        part = (codes >> shift & _mask(plane.bits)).reshape(*head, -1, each, plane.run)
        part = part << plane.bits * np.arange(each, dtype=np.uint8)[:, None]
        blocks[..., into] = np.bitwise_or.reduce(part, axis=-2).reshape(*head, -1)
        shift += plane.bits
