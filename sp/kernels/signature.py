"""C signatures of kernels: one checker per argument, from a Python value to the value that the driver gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from sp.errors import DeviceError

SCALARS: dict[str, type[np.generic]] = {
    "i32": np.int32,
    "i64": np.int64,
    "u32": np.uint32,
    "u64": np.uint64,
    "f32": np.float32,
}
ELEMENTS: dict[str, type[np.generic]] = SCALARS | {"f16": np.float16, "u16": np.uint16, "u8": np.uint8, "i8": np.int8}
POSITIONS = ("i32", "i64")  # token positions and lengths: views may start at any element
NULL = np.uint64(0)
FORM = re.compile(r"(?P<words>(?:(?:const|strided) )*)(?P<type>\w+)(?P<pointer>\*?)(?P<null>\??) (?P<name>\w+)")

Checker = Callable[[Any, int], Any]
"""Converts an argument's value, on a device, to what CuPy passes on; raises DeviceError."""


def checker(kernel: str, declaration: str) -> Checker:
    """Build the checker of one declared argument. `kernel`: name for messages; `declaration`: ``"i64 rows"``, ``"const
    f32* x"``, ``"strided u16* y"``, ``"const f32*? bias"`` or ``"map weights"``. ``const``: the kernel only reads it;
    ``strided``: the rows of an array may be apart, if each is contiguous; ``?``: None becomes a null pointer; ``map``:
    a descriptor of `sp.kernels.tensor_map`."""
    form = FORM.fullmatch(declaration)
    if form is None or form["type"] not in (ELEMENTS if form["pointer"] else [*SCALARS, "map"]):
        raise ValueError(f"kernel {kernel}: cannot read the declaration {declaration!r}")
    where = f"kernel {kernel}, argument {form['name']}"
    if form["type"] == "map":
        return _map_checker(where)
    if not form["pointer"]:
        return _scalar_checker(where, SCALARS[form["type"]])
    alignment = np.dtype(ELEMENTS[form["type"]]).itemsize if form["type"] in POSITIONS else 16
    return _array_checker(where, ELEMENTS[form["type"]], alignment, "strided" in form["words"], bool(form["null"]))


def _map_checker(where: str) -> Checker:
    def check(value: Any, device: int) -> Any:
        if isinstance(value, np.ndarray) and value.nbytes == 128:
            return value
        raise DeviceError(f"{where}: expected a tensor map (128 bytes), got {describe(value)}")

    return check


def _scalar_checker(where: str, kind: type[np.generic]) -> Checker:
    whole = kind is not np.float32
    low, high = (int(np.iinfo(np.dtype(kind)).min), int(np.iinfo(np.dtype(kind)).max)) if whole else (0, 0)

    def convert(value: Any) -> Any:
        if whole:
            if not isinstance(value, (int, np.integer)):
                raise DeviceError(f"{where}: expected an integer, got {describe(value)}")
            if not low <= value <= high:
                raise DeviceError(f"{where}: {value} does not fit in {kind.__name__}")
        elif not isinstance(value, (int, float, np.integer, np.floating)):
            raise DeviceError(f"{where}: expected a number, got {describe(value)}")
        return kind(value)

    cached = lru_cache(256)(convert)  # the same sizes and grids recur, and NumPy is slow at creating a scalar

    def check(value: Any, device: int) -> Any:
        return cached(value) if type(value) is int else convert(value)

    return check


def _array_checker(where: str, kind: type[np.generic], alignment: int, strided: bool, null: bool) -> Checker:
    dtype = np.dtype(kind)

    def check(value: Any, device: int) -> Any:
        if value is None and null:
            return NULL
        try:
            address, home = value.data.ptr, value.data.device_id
        except AttributeError:
            raise DeviceError(f"{where}: expected a {dtype} array on the device, got {describe(value)}") from None
        if value.dtype != dtype:
            raise DeviceError(f"{where}: expected dtype {dtype}, got {describe(value)}")
        if home != device:
            raise DeviceError(f"{where}: the array is on device {home}, the launch on device {device}")
        if value.size == 0:
            return value
        if not value.flags.c_contiguous and not (strided and rows_contiguous(value)):
            layout = "contiguous rows" if strided else "a C-contiguous array"
            raise DeviceError(f"{where}: expected {layout}, got {describe(value)} with strides {value.strides}")
        if address % alignment:
            raise DeviceError(f"{where}: expected an address aligned to {alignment} bytes, got {address:#x}")
        return value

    return check


def rows_contiguous(array: Any) -> bool:
    """Return True if the last axis is dense."""
    return bool(array.ndim > 0 and (array.shape[-1] == 1 or array.strides[-1] == array.itemsize))


def describe(value: Any) -> str:
    """Describe a value in an error message: arrays by kind, dtype and shape, not by content."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        home = "NumPy" if isinstance(value, (np.ndarray, np.generic)) else "device"
        return f"{home} {value.dtype} {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:60]
