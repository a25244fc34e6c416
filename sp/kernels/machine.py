"""The machine of a measurement: GPU or CPU, and everything besides the code that its timings depend on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sp.kernels import nvml, nvrtc
from sp.kernels.device import current_device, device_errors, device_name, import_cupy


def gpu_facts() -> dict[str, Any]:
    """Return the GPU, driver, current clocks, compiler and CuPy; DeviceError without a device."""
    cupy = import_cupy()
    with device_errors():
        device = current_device()
        bus = cupy.cuda.runtime.deviceGetPCIBusId(device)
    return {
        "gpu": device_name(device),
        "driver": nvml.driver_version(),
        "clocks_mhz": nvml.clocks_mhz(bus),
        "nvrtc": ".".join(map(str, nvrtc.version())),
        "cupy": cupy.__version__,
    }


def cpu_facts() -> dict[str, Any]:
    """Return the CPU, cores, Python and NumPy, in place of a GPU's facts."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "gpu": None,
        "driver": None,
        "nvrtc": None,
        "cupy": None,
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(names) or os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def machine_facts(device: str) -> dict[str, Any]:
    """Return `gpu_facts` for ``"cuda"``, `cpu_facts` for ``"cpu"``."""
    return gpu_facts() if device == "cuda" else cpu_facts()


def machine_slug(facts: Mapping[str, Any]) -> str:
    """Return the folder name of a machine: its GPU, or else its CPU and cores.

    >>> machine_slug({"gpu": "NVIDIA GeForce RTX 4090"})
    'nvidia-geforce-rtx-4090'
    >>> machine_slug({"gpu": None, "cpu": "AMD EPYC", "cores": 2})
    'amd-epyc-2core'
    """
    name = facts.get("gpu") or f"{facts['cpu']} {facts['cores']}core"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
