"""Fragment order: packed weights laid out as the tensor cores' A operand, and the NumPy code that defines it.

A weight is cut into tiles of 64 rows x 64 inputs, ordered ``[row tile][input tile]``. Thread ``32 * warp + 4 * g + c``
of a tile holds, for each of four steps of 16 inputs, four pairs of values: pair ``j = r + 2 * h`` lies in row
``16 * warp + 8 * r + g`` at inputs ``16 * step + 8 * h + 2 * c`` and the next one, ``e = 0, 1``. That is the A fragment
of ``mma.m16n8k16`` (PTX ISA 9.7.15) and of ``wgmma`` from registers, so kernels load it straight into registers.

=======  ==============================  ===============================================================================
plane    bytes a tile                    content
=======  ==============================  ===============================================================================
low      2048 (4 bits), 4096, 8192       four bits: ``[thread][step]`` words with a code at bits ``4 j + 16 e``; bytes:
                                         ``[step / 2][thread][step % 2][h][r][e]``; halves: ``[step][thread][j][e]``
high     Q6_K 1024, Q5_K 512             words with the upper bits at ``2 (4 (step % 2) + j) + 16 e`` (Q6_K, a word for
                                         two steps) or ``4 step + j + 16 e`` (Q5_K)
scales   as in the file                  K-quants ``[row tile][superblock][64 rows][16 bytes]``; Q8_0, Q4_0
                                         ``[tile][2 groups of 32][64 rows]`` float16
deltas   Q6_K: as in the file            ``[row tile][superblock][64 rows]`` float16
=======  ==============================  ===============================================================================

Codes are unsigned: Q8_0 is stored with 128 added. Rows are padded to whole tiles with zero bytes of the file's layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sp.arrays import Bytes
from sp.errors import ModelError
from sp.quant import BF16, F16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat

TILE = 64
ALIGNMENT = 256


@dataclass(frozen=True)
class TileSize:
    """Bytes a format needs: of a tile in each code plane, and of scales for 64 rows of `span` inputs."""

    low: int
    high: int
    span: int
    scales: int
    deltas: int


SIZES: dict[str, TileSize] = {
    Q4_K.name: TileSize(2048, 0, 256, 1024, 0),
    Q5_K.name: TileSize(2048, 512, 256, 1024, 0),
    Q6_K.name: TileSize(2048, 1024, 256, 1024, 128),
    Q4_0.name: TileSize(2048, 0, 64, 256, 0),
    Q8_0.name: TileSize(4096, 0, 64, 256, 0),
    BF16.name: TileSize(8192, 0, 64, 0, 0),
    F16.name: TileSize(8192, 0, 64, 0, 0),
}


class Offsets(NamedTuple):
    """Where each plane begins in the bytes of a packed weight; an absent plane begins where the next one does."""

    low: int
    high: int
    scales: int
    deltas: int
    end: int


def plane_offsets(name: str, fmt: BlockFormat, shape: tuple[int, ...]) -> Offsets:
    """Offsets of the planes of a weight (out, in); ModelError where it has no fragment order."""
    if fmt.name not in SIZES:
        raise ModelError(f"{name}: no kernel reads {fmt.name}; known: {', '.join(SIZES)}")
    size = SIZES[fmt.name]
    if len(shape) != 2 or shape[1] % size.span or min(shape) < 1:
        raise ModelError(f"{name}: kernels need a {fmt.name} matrix with rows of whole {size.span} values, got {shape}")
    row_tiles, tiles = -(-shape[0] // TILE), -(-shape[0] // TILE) * (shape[1] // TILE)
    spans = row_tiles * (shape[1] // size.span)
    offsets = [0]
    for nbytes in (tiles * size.low, tiles * size.high, spans * size.scales, spans * size.deltas):
        offsets.append(-(-(offsets[-1] + nbytes) // ALIGNMENT) * ALIGNMENT)
    return Offsets(*offsets)


def pack_numpy(fmt: BlockFormat, rows: Bytes) -> dict[str, Bytes]:
    """Planes, flat, of raw file rows uint8 (out, row_bytes)."""
    width = rows.shape[1] // fmt.block_bytes * fmt.block_size
    raw = np.zeros((-(-len(rows) // TILE) * TILE, rows.shape[1]), np.uint8)
    raw[: len(rows)] = rows
    blocks = raw.reshape(len(raw), -1, fmt.block_bytes)  # (rows, blocks, block_bytes)
    planes = {}
    codes = _codes(fmt, blocks).reshape(len(raw), width)
    grid = codes.reshape(len(raw) // TILE, 4, 2, 8, width // TILE, 4, 2, 4, 2)
    if fmt in (BF16, F16):
        planes["low"] = _ordered(grid, "R K s w g c h r e").view(np.uint8)
    elif fmt is Q8_0:
        steps = grid.reshape(*grid.shape[:5], 2, 2, *grid.shape[6:])
        planes["low"] = np.ascontiguousarray(steps.transpose(0, 4, 5, 1, 3, 8, 6, 7, 2, 9))
    else:
        words = _ordered(grid, "R K w g c s h r e").astype(np.uint32)  # (..., steps, h, r, e)
        planes["low"] = _gathered(words & 15, 4, 1).view(np.uint8)
        if fmt is Q6_K:
            planes["high"] = _gathered(words >> 4, 2, 2).view(np.uint8)
        if fmt is Q5_K:
            planes["high"] = _gathered(words >> 4, 1, 4).view(np.uint8)
    tiled = blocks.reshape(len(raw) // TILE, TILE, -1, fmt.block_bytes)
    if fmt in (Q4_K, Q5_K):
        planes["scales"] = tiled[..., :16].swapaxes(1, 2)
    elif fmt is Q6_K:
        planes["scales"] = tiled[..., 192:208].swapaxes(1, 2)
        planes["deltas"] = tiled[..., 208:].swapaxes(1, 2)
    elif fmt in (Q4_0, Q8_0):
        planes["scales"] = tiled[..., :2].swapaxes(1, 2)
    return {plane: np.ascontiguousarray(values).reshape(-1) for plane, values in planes.items()}


def unpack_numpy(fmt: BlockFormat, planes: dict[str, Bytes], shape: tuple[int, int]) -> Bytes:
    """Inverse of `pack_numpy`: raw file rows uint8 (out, row_bytes)."""
    padded, width = -(-shape[0] // TILE) * TILE, shape[1]
    row_tiles, k_tiles = padded // TILE, width // TILE
    if fmt in (BF16, F16):
        grid = planes["low"].view(np.uint16).reshape(row_tiles, k_tiles, 4, 4, 8, 4, 2, 2, 2)
        codes: np.ndarray = grid.transpose(0, 3, 7, 4, 1, 2, 6, 5, 8).reshape(padded, width)
    elif fmt is Q8_0:
        steps = planes["low"].reshape(row_tiles, k_tiles, 2, 4, 8, 4, 2, 2, 2, 2)
        codes = steps.transpose(0, 3, 8, 4, 1, 2, 6, 7, 5, 9).reshape(padded, width)
    else:
        words = _scattered(planes["low"].view(np.uint32).reshape(row_tiles, k_tiles, 4, 8, 4, 4), 4, 1)
        if "high" in planes:
            bits, steps_a_word = (2, 2) if fmt is Q6_K else (1, 4)
            high = planes["high"].view(np.uint32).reshape(row_tiles, k_tiles, 4, 8, 4, -1)
            words = words | _scattered(high, bits, steps_a_word) << 4
        codes = words.transpose(0, 2, 7, 3, 1, 5, 6, 4, 8).reshape(padded, width).astype(np.uint8)
    blocks = np.empty((padded, width // fmt.block_size, fmt.block_bytes), np.uint8)
    tiled = blocks.reshape(row_tiles, TILE, -1, fmt.block_bytes)
    if fmt in (Q4_K, Q5_K):
        tiled[..., :16] = planes["scales"].reshape(row_tiles, -1, TILE, 16).swapaxes(1, 2)
    elif fmt is Q6_K:
        tiled[..., 192:208] = planes["scales"].reshape(row_tiles, -1, TILE, 16).swapaxes(1, 2)
        tiled[..., 208:] = planes["deltas"].reshape(row_tiles, -1, TILE, 2).swapaxes(1, 2)
    elif fmt in (Q4_0, Q8_0):
        tiled[..., :2] = planes["scales"].reshape(row_tiles, -1, TILE, 2).swapaxes(1, 2)
    _store_codes(fmt, codes.reshape(padded, -1, fmt.block_size), blocks)
    return blocks.reshape(padded, -1)[: shape[0]]


def _ordered(grid: np.ndarray, order: str) -> np.ndarray:
    """Axes row tile R, warp w, r, g, input tile K, step s, h, c, e of `grid`, put into another order."""
    names = ["R", "w", "r", "g", "K", "s", "h", "c", "e"]
    return np.ascontiguousarray(grid.transpose([names.index(name) for name in order.split()]))


def _gathered(words: np.ndarray, bits: int, steps: int) -> np.ndarray:
    """Codes (..., 4 steps, h, r, e) of `bits` bits put together, `steps` steps to a word: (..., 4 / steps) uint32."""
    parts = words.reshape(*words.shape[:5], 4 // steps, steps * 4, 2)
    shift = bits * np.arange(steps * 4, dtype=np.uint32)[:, None] + np.array([0, 16], np.uint32)
    gathered: np.ndarray = np.bitwise_or.reduce(parts << shift, axis=(-2, -1))
    return gathered


def _scattered(words: np.ndarray, bits: int, steps: int) -> np.ndarray:
    """Inverse of `_gathered`."""
    shift = bits * np.arange(steps * 4, dtype=np.uint32)[:, None] + np.array([0, 16], np.uint32)
    return ((words[..., None, None] >> shift) & np.uint32((1 << bits) - 1)).reshape(*words.shape[:5], 4, 2, 2, 2)


def _codes(fmt: BlockFormat, blocks: Bytes) -> np.ndarray:
    """Unsigned codes (rows, blocks, block_size) of raw blocks (rows, blocks, block_bytes)."""
    head = blocks.shape[:2]
    if fmt in (BF16, F16):
        return blocks.view(np.uint16)
    if fmt is Q8_0:
        return blocks[..., 2:] ^ np.uint8(128)
    if fmt is Q4_0:
        return np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    if fmt is Q6_K:
        low = blocks[..., :128].reshape(*head, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
        high = blocks[..., 128:192].reshape(*head, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
        return low.reshape(*head, 256) | high.reshape(*head, 256) << 4
    at = 16 if fmt is Q4_K else 48
    nibbles = blocks[..., at:].reshape(*head, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None] & 15
    codes = nibbles.reshape(*head, 8, 32)
    if fmt is Q5_K:
        codes = codes | (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    return codes.reshape(*head, 256)


def _store_codes(fmt: BlockFormat, codes: np.ndarray, blocks: Bytes) -> None:
    """Inverse of `_codes`, into the code bytes of `blocks`."""
    head = blocks.shape[:2]
    if fmt in (BF16, F16):
        blocks.view(np.uint16)[...] = codes
    elif fmt is Q8_0:
        blocks[..., 2:] = codes ^ np.uint8(128)
    elif fmt is Q4_0:
        blocks[..., 2:] = codes[..., :16] | codes[..., 16:] << 4
    elif fmt is Q6_K:
        low = (codes & 15).reshape(*head, 2, 2, 64)
        blocks[..., :128] = (low[..., 0, :] | low[..., 1, :] << 4).reshape(*head, 128)
        high = (codes >> 4).reshape(*head, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
        blocks[..., 128:192] = np.bitwise_or.reduce(high, axis=-2).reshape(*head, 64)
    else:
        nibbles = (codes & 15).reshape(*head, 4, 2, 32)
        at = 16 if fmt is Q4_K else 48
        blocks[..., at:] = (nibbles[..., 0, :] | nibbles[..., 1, :] << 4).reshape(*head, 128)
        if fmt is Q5_K:
            bits = (codes >> 4).reshape(*head, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
            blocks[..., 16:48] = np.bitwise_or.reduce(bits, axis=-2)
