"""array_module: NumPy or CuPy, for ops that are written once for both."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy, is_device


def array_module(array: object) -> Any:
    """The module whose functions take `array`: ``numpy``, or ``cupy`` for what lies on the device.

    >>> array_module(np.zeros(2)).__name__
    'numpy'
    """
    return import_cupy() if is_device(array) else np


def on_host(array: Any) -> Any:
    """The same values as a NumPy array; waits for the device."""
    return array.get() if is_device(array) else array
