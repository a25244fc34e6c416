"""Fragment order in NumPy: every value lies where the tensor cores want it, and comes back bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from sp.errors import ModelError
from sp.models.synthetic.synthetic import random_blocks
from sp.ops.matmul.fragment_order import pack_numpy, plane_offsets, unpack_numpy
from sp.ops.matmul.packed import pack, pack_rows, tile_planes, unpack
from sp.quant import F32, Q4_K, Q8_0, BlockFormat, format_by_name, kernel_formats
from sp.quant.packing import TILE

NAMES = sorted(fmt.name for fmt in kernel_formats())
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
NUMBERS = {
    "IQ4_NL": IQ4,
    "IQ4_XS": IQ4,
    "MXFP4": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
    "IQ3_S": range(-15, 16, 2),
}
"""What codes stand for, where they are no numbers."""


def raw_rows(fmt: BlockFormat, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Random bytes: every code, every scale, NaN and Inf among them."""
    return np.random.default_rng(seed).integers(0, 256, (shape[0], fmt.row_bytes(shape[1])), np.uint8)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(64, 256), (128, 768), (40, 512), (129, 256)])
def test_round_trip(name: str, shape: tuple[int, int]) -> None:
    fmt = format_by_name(name)
    rows = raw_rows(fmt, shape)
    values = unpack_numpy(fmt, pack_numpy(fmt, rows), shape)
    np.testing.assert_array_equal(values.view(np.uint32), fmt.decode(rows).view(np.uint32))
    packed = pack("w", fmt, shape, rows)
    assert packed.nbytes == packed.offsets.end
    np.testing.assert_array_equal(unpack(packed).view(np.uint32), fmt.decode(rows).view(np.uint32))


def fragment_code(fmt: BlockFormat, planes: dict[str, np.ndarray], k_tiles: int, row: int, k: int) -> int:
    """The code at (row, k), found by the words of the layout's description, one value at a time."""
    tile = row // 64 * k_tiles + k // 64
    warp, r, g = row % 64 // 16, row % 16 // 8, row % 8
    step, h, c, e = k % 64 // 16, k % 16 // 8, k % 8 // 2, k % 2
    thread, j = 32 * warp + 4 * g + c, r + 2 * h
    p = fmt.packing
    low = planes["low"][tile * p.low_bytes : (tile + 1) * p.low_bytes]
    if fmt.name in ("BF16", "F16"):
        return int(low.view(np.uint16).reshape(4, 128, 4, 2)[step, thread, j, e])
    if fmt.name == "Q8_0":
        return int(low.reshape(2, 128, 4, 4)[step // 2, thread, 2 * (step % 2) + j // 2, 2 * (j % 2) + e])
    words = [int(word) for word in low.view(np.uint32).reshape(128, -1)[thread]]
    if p.lookup:
        return words[step] >> (16 * r + 4 * (h + 2 * e)) & 15
    if p.high_bytes:
        high = planes["high"][tile * p.high_bytes : (tile + 1) * p.high_bytes].view(np.uint32).reshape(128, -1)
        words += [int(word) for word in high[thread]]
    held = [word >> 8 * (h + 2 * e) & 255 for word in words]  # the byte of each word that these inputs have
    if len(held) == 3:
        return held[step] >> 3 * r & 7 if step < 3 else held[r] >> 6 | (held[2] >> (6 + r) & 1) << 2
    if len(held) == 4:
        return held[step] >> 4 * r & 15
    if len(held) == 5:
        return held[step] >> 5 << 2 | held[4] >> 2 * step & 3 if r else held[step] & 31
    assert len(held) == 6
    if r == 0:
        return held[step] & 63
    if step % 2 == 0:
        return held[4 + step // 2] >> 2
    return held[step - 1] >> 6 << 4 | held[step] >> 6 << 2 | held[4 + step // 2] & 3


def scales(fmt: BlockFormat, planes: dict[str, np.ndarray], width: int, row: int, k: int) -> tuple[float, float]:
    """Scale and offset of the group of (row, k): value = scale * code - offset."""
    tile, inside = row // 64, row % 64
    if fmt.name in ("BF16", "F16"):
        return 1.0, 0.0
    if fmt.block_size == 32:
        block = planes["scales"].reshape(-1, width // 64, 2, 64, fmt.packing.scales.nbytes)[tile, k // 64, k % 64 // 32]
        if fmt.name == "MXFP4":
            return 2.0 ** (int(block[inside, 0]) - 128), 0.0
        d, *minimum = (float(v) for v in block[inside].view(np.float16))
        middle = {"Q8_0": 128, "Q4_0": 8, "Q5_0": 16}.get(fmt.name, 0)
        return d, -minimum[0] if minimum else d * middle
    head = planes["scales"].reshape(-1, width // 256, 64, 8 if fmt.name.startswith("I") else 16)[tile, k // 256, inside]
    if "deltas" in planes:
        d = planes["deltas"].view(np.float16).reshape(-1, width // 256, 64)[tile, k // 256, inside]
        scale = float(d) * int(head.view(np.int8)[k % 256 * len(head) // 256])
        return scale, {"Q6_K": 32, "Q3_K": 4}.get(fmt.name, 0) * scale
    d, dmin = (float(v) for v in head[:4].view(np.float16))
    group, s = k % 256 // 32, head[4:].astype(int)
    if group < 4:
        return d * (s[group] & 63), dmin * (s[group + 4] & 63)
    sc, m = s[group + 4] & 15 | s[group - 4] >> 6 << 4, s[group + 4] >> 4 | s[group] >> 6 << 4
    return d * sc, dmin * m


@pytest.mark.parametrize("name", NAMES)
def test_every_value_lies_in_its_place(name: str) -> None:
    fmt, shape = format_by_name(name), (128, 512)
    rows = random_blocks(np.random.default_rng(1), fmt, 128 * 512 // fmt.block_size, 1.0).reshape(128, -1)
    planes, wanted = pack_numpy(fmt, rows), fmt.decode(rows)
    for row, k in np.random.default_rng(2).integers(0, shape, (300, 2)):
        code = fragment_code(fmt, planes, shape[1] // 64, row, k)
        if name in ("BF16", "F16"):
            assert code == int(rows.view(np.uint16)[row, k])
            continue
        scale, offset = scales(fmt, planes, shape[1], row, k)
        if name in NUMBERS:
            if fmt.packing.lookup:  # bits 2 and 3 change places
                code = code & 3 | (code & 4) << 1 | (code & 8) >> 1
            code = NUMBERS[name][code]
        assert scale * code - offset == pytest.approx(wanted[row, k], rel=1e-5, abs=1e-6)


def test_rows_come_in_slices() -> None:
    rows = raw_rows(Q4_K, (200, 512))
    whole, sliced = pack("w", Q4_K, (200, 512), rows), pack("w", Q4_K, (200, 512), np.zeros_like(rows))
    for start in (0, 128):
        pack_rows(sliced, start, rows[start : start + 128])
    np.testing.assert_array_equal(sliced.data, whole.data)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_row_tiles_are_unpacked_by_themselves(name: str) -> None:
    """As slabs of a weight are on a device; the last tile is padded."""
    fmt, rows, width = format_by_name(name), 200, 512
    w = pack("w", fmt, (rows, width), raw_rows(fmt, (rows, width)))
    whole = unpack(w)
    for tiles in (slice(0, 1), slice(1, 3), slice(2, 4), slice(3, 4)):
        some = slice(TILE * tiles.start, min(TILE * tiles.stop, rows))
        names = ("low", "high", "scales", "deltas")
        parts = zip(names, tile_planes(w, tiles), strict=True)
        planes = {name: plane.ravel() for name, plane in parts if plane is not None}
        np.testing.assert_array_equal(unpack_numpy(fmt, planes, (some.stop - some.start, width)), whole[some])


def test_formats_without_fragment_order_are_refused() -> None:
    with pytest.raises(ModelError, match="no kernel reads F32"):
        plane_offsets("w", F32, (64, 64))
    with pytest.raises(ModelError, match="whole 64 values"):
        plane_offsets("w", Q8_0, (64, 96))
    with pytest.raises(ModelError, match="whole tiles of 64"):
        pack_rows(pack("w", Q8_0, (128, 64), raw_rows(Q8_0, (128, 64))), 0, raw_rows(Q8_0, (40, 64)))
