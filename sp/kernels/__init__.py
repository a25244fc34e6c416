"""CUDA kernels: sources, typed declarations, compilation and launch. CuPy is imported only when a device is used."""

from __future__ import annotations

from sp.kernels.device import debugging, device_errors, import_cupy, is_device
from sp.kernels.path import current_path, forced_path

__all__ = ["current_path", "debugging", "device_errors", "forced_path", "import_cupy", "is_device"]
