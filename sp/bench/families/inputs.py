"""Random inputs on the device. Normal ones: products of zeros or of one sign draw less power and run faster."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy


def normal(*shape: int) -> Any:
    """Normal float32 values."""
    return import_cupy().random.standard_normal(shape, np.float32)


def bf16(*shape: int) -> Any:
    """Normal values cut to bf16."""
    return (normal(*shape).view(np.uint32) >> 16).astype(np.uint16)
