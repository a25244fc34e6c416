"""Ten seconds on the card: do launches, matrix instructions and Hopper's copies give the right numbers?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sp.errors import DeviceError
from sp.kernels.device import device_errors, import_cupy
from sp.kernels.path import native_path
from sp.kernels.specs.selftest import HOPPER, PRODUCT, SCALARS
from sp.kernels.tensor_map import tensor_map


def run_selftest() -> Iterator[str]:
    """Name each part that passed; DeviceError at the first that did not."""
    with device_errors():
        _scalars()
        yield "launch"
        _product()
        yield "mma.sync"
        if native_path() == "sm_90a":
            _hopper()
            yield "TMA and wgmma"


def _scalars() -> None:
    cupy = import_cupy()
    out = cupy.zeros(6, cupy.uint64)
    SCALARS.launch((1,), out, -7, -(2**40), 2**32 - 1, 2**64 - 1, 1.5, None)
    want = [2**64 - 7, 2**64 - 2**40, 2**32 - 1, 2**64 - 1, 0x3FC00000, 1]
    if out.get().tolist() != want:
        raise DeviceError(f"arguments of a kernel arrive as {out.get().tolist()}, not {want}")


def _product() -> None:
    cupy = import_cupy()
    a, b = _small_integers((16, 16), 1), _small_integers((8, 16), 2)
    y = cupy.empty((16, 8), cupy.float32)
    PRODUCT.launch((1,), _bf16(a), _bf16(b), y, 16, defines={"F16": 0, "TRANS": 0})
    _compare("mma.sync", y.get(), a @ b.T)


def _hopper() -> None:
    cupy = import_cupy()
    a, b = _small_integers((100, 320), 3), _small_integers((8, 320), 4)
    a_device, b_device, copy = _bf16(a), _bf16(b), cupy.zeros((64, 64), cupy.uint16)
    raw, raw_copy = cupy.arange(1024, dtype=cupy.uint8), cupy.zeros(1024, cupy.uint8)
    y = cupy.empty((64, 8), cupy.float32)
    maps = (
        tensor_map(a_device, (320, 100), (640,), (64, 64)),
        tensor_map(b_device, (320, 8), (640,), (64, 8)),
        tensor_map(copy, (64, 64), (128,), (64, 64)),
    )
    HOPPER.launch((1,), *maps, raw, raw_copy, y, 48, 5)
    tile = np.zeros((64, 320), np.float32)
    tile[:52] = a[48:]
    _compare("wgmma", y.get(), tile @ b.T)
    _compare("a tensor copy", copy.get(), _bf16(tile[:, -64:].copy()).get())
    _compare("a bulk copy", raw_copy.get(), raw.get())


def _small_integers(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Values whose products and sums are exact in every precision used."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def _bf16(array: np.ndarray) -> Any:
    """Small integers as bf16 on the device."""
    return import_cupy().asarray((array.view(np.uint32) >> 16).astype(np.uint16))


def _compare(what: str, got: np.ndarray, want: np.ndarray) -> None:
    wrong = int((got != want).sum())
    if wrong:
        raise DeviceError(f"{what} gives {wrong} wrong values of {want.size} on this card")
