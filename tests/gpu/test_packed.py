"""Packing and unpacking on the device: to the bit what the NumPy formats and the NumPy layout say."""

from __future__ import annotations

import cupy
import numpy as np
import pytest
from file_rows import file_rows

from sp.ops.embedding import embedding
from sp.ops.matmul.fragment_order import pack_numpy
from sp.ops.matmul.packed import PackedWeight, allocate, expand_scales, pack, pack_rows, unpack, unpack_bf16
from sp.quant import F32, Weight, format_by_name, kernel_formats

NAMES = sorted(fmt.name for fmt in kernel_formats())
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")


def random_rows(name: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    fmt = format_by_name(name)
    return np.random.default_rng(seed).integers(0, 256, (shape[0], fmt.row_bytes(shape[1])), np.uint8)


def finite_rows(name: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return file_rows(format_by_name(name), values)


def same_bits(got: object, wanted: np.ndarray) -> None:
    """Equal to the bit, except that any NaN equals any other."""
    host = cupy.asnumpy(got)
    same = (host.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(host) & np.isnan(wanted))
    assert same.all(), f"{(~same).sum()} of {same.size} differ, first at {np.argwhere(~same)[0]}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(64, 256), (48, 512), (200, 1024), (128, 5120)])
def test_pack_and_unpack(name: str, shape: tuple[int, int], guarded) -> None:  # type: ignore[no-untyped-def]
    fmt, rows = format_by_name(name), random_rows(name, shape)
    nbytes = allocate("w", fmt, shape).nbytes
    w = PackedWeight("w", fmt, shape, guarded(nbytes, np.uint8))
    pack_rows(w, 0, guarded(rows.shape, np.uint8, rows))
    for plane, wanted in pack_numpy(fmt, rows).items():
        np.testing.assert_array_equal(cupy.asnumpy(w.plane(plane)), wanted, err_msg=plane)
    same_bits(unpack(w), fmt.decode(rows))


@pytest.mark.parametrize("name", [name for name in NAMES if not format_by_name(name).packing.super])
def test_rows_of_one_tile(name: str) -> None:
    """Widths that are no whole super-block."""
    fmt, rows = format_by_name(name), random_rows(name, (72, 192))
    w = pack("w", fmt, (72, 192), cupy.asarray(rows))
    for plane, wanted in pack_numpy(fmt, rows).items():
        np.testing.assert_array_equal(cupy.asnumpy(w.plane(plane)), wanted, err_msg=plane)
    same_bits(unpack(w), fmt.decode(rows))


@pytest.mark.parametrize("name", NAMES)
def test_slices_of_rows(name: str) -> None:
    fmt, rows = format_by_name(name), cupy.asarray(random_rows(name, (200, 512)))
    whole, sliced = pack("w", fmt, (200, 512), rows), allocate("w", fmt, (200, 512))
    sliced.data[:] = whole.data[:]  # the bytes between planes
    for plane in ("low", "high", "scales", "deltas"):
        if sliced.plane(plane) is not None:
            sliced.plane(plane)[:] = 0xAA
    for start in (0, 128):
        pack_rows(sliced, start, rows[start : start + 128])
    assert bool((sliced.data == whole.data).all())


def bf16(values: np.ndarray) -> np.ndarray:
    """float64 rounded to the nearest bf16, ties to even, as float64; through float32 where that is exact enough."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", NAMES)
def test_operand_of_the_matrix_kernels(name: str) -> None:
    """What the tensor cores multiply: within the two roundings to bf16 (of the scales, of the value)."""
    fmt, rows = format_by_name(name), finite_rows(name, (128, 1024))
    w = pack("w", fmt, (128, 1024), cupy.asarray(rows))
    got = (cupy.asnumpy(unpack_bf16(w)).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    wanted = fmt.decode(rows).astype(np.float64)
    if name in ("BF16", "F16"):
        np.testing.assert_array_equal(got, bf16(wanted))
        return
    words = cupy.asnumpy(expand_scales(w)).reshape(2, 16, 2, 64)  # row tile, input tile, group, row
    low = (words << 16).view(np.float32).transpose(0, 3, 1, 2).reshape(128, 32).astype(np.float64)
    high = (words & 0xFFFF0000).view(np.float32).transpose(0, 3, 1, 2).reshape(128, 32).astype(np.float64)
    p = fmt.packing
    offset = np.repeat(np.abs(high), 32, axis=1) if p.minima else 0
    assert np.all(np.abs(got - wanted) <= 2**-7 * (np.abs(wanted) + offset) * 1.01)
    if not p.minima:  # the rounding itself: scales as rounded, value rounded once
        scale = np.stack([low, high], axis=-1).reshape(128, 64) if p.group == 16 else low / p.stride
        scale = np.repeat(scale, p.group, axis=1)
        numbers = np.rint(wanted / np.where(scale == 0, 1, scale))
        np.testing.assert_array_equal(got, bf16(numbers * scale))


@pytest.mark.parametrize("name", ["F32", *NAMES])
def test_embedding(name: str, guarded) -> None:  # type: ignore[no-untyped-def]
    fmt, rows = format_by_name(name), random_rows(name, (50, 512))
    if fmt is F32:
        rows = np.random.default_rng(0).standard_normal((50, 512)).astype(np.float32).view(np.uint8)
    table = Weight("w", fmt, (50, 512), guarded(rows.shape, np.uint8, rows))
    ids = np.array([3, 49, 0, 3], np.int32)
    same_bits(embedding(cupy.asarray(ids), table), fmt.decode(rows)[ids])
    outside = cupy.asnumpy(embedding(cupy.asarray(np.array([50, -1], np.int32)), table))
    assert np.isnan(outside).all()


@pytest.mark.parametrize("name", [name for name in NAMES if format_by_name(name).block_size == 32])
def test_embedding_of_rows_at_odd_addresses(name: str) -> None:
    fmt, rows = format_by_name(name), random_rows(name, (7, 96))
    table, ids = Weight("w", fmt, (7, 96), cupy.asarray(rows)), np.arange(7, dtype=np.int32)
    same_bits(embedding(cupy.asarray(ids), table), fmt.decode(rows))


@pytest.mark.parametrize("name", NAMES)
def test_every_code_under_every_scale(name: str) -> None:
    """A tile whose blocks hold each byte in each place: codes beside all others, scales of both ends."""
    fmt = format_by_name(name)
    rows = random_rows(name, (256, 512))
    for byte in range(256):
        rows[byte, byte % 3 :: 3] = byte
    values = unpack(pack("w", fmt, (256, 512), cupy.asarray(rows)))
    same_bits(values, fmt.decode(rows))


@pytest.mark.no_sanitizer
@pytest.mark.parametrize("name", NAMES)
def test_packing_is_bound_by_memory(name: str) -> None:
    """Loose: only an order of magnitude would fail; times are recorded by the benchmarks."""
    fmt = format_by_name(name)
    rows = cupy.random.randint(0, 256, (8192, fmt.row_bytes(4096)), np.uint8)
    w = pack("w", fmt, (8192, 4096), rows)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(10):
        pack_rows(w, 0, rows)
    end.record()
    end.synchronize()
    rate = 10 * 2 * rows.nbytes / cupy.cuda.get_elapsed_time(start, end) * 1e3 / 1e9
    print(f"{name}: {rate:.0f} GB/s read and written")
    assert rate > 50
