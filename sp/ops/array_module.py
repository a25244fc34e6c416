"""Select NumPy or CuPy, for ops that are written once for both."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy, is_device


def array_module(array: object) -> Any:
    """Return the module whose functions accept `array`: ``numpy``, or ``cupy`` for device arrays.

    >>> array_module(np.zeros(2)).__name__
    'numpy'
    """
    return import_cupy() if is_device(array) else np


def on_host(array: Any) -> Any:
    """Return the same values as a NumPy array; waits for the device."""
    return array.get() if is_device(array) else array
