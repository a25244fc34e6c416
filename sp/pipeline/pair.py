"""A target and its drafter, loaded one after the other under one budget of device memory."""

from __future__ import annotations

from collections.abc import Callable

from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.models.model import Device
from sp.pipeline.load import Loaded, Where
from sp.pipeline.residency import Residency


def load_pair(
    target: Callable[[Device], Loaded],
    drafter: Callable[[Device], Loaded],
    *,
    device: Where = "auto",
    vram: int | None = None,
) -> tuple[Loaded, Loaded, Residency]:
    """Load two models one after the other.

    Parameters
    ----------
    target, drafter : callable
        Load a model on the device they are given.
    device : {"auto", "cpu", "cuda"}
    vram : int, optional
        Bytes for models, caches and work together, see `Residency`; what the device has, if left out.

    Returns
    -------
    target, drafter : Loaded
    residency : Residency
        That both have been taken on by.

    Raises
    ------
    ConfigError
        A budget for models on the CPU.
    DeviceError
        The budget is too small to load them.
    """
    where = pick_device(device)
    if where == "cpu":
        if vram is not None:
            raise ConfigError("vram is a budget of GPU memory, but the models run on the CPU; leave it out")
        return target(where), drafter(where), Residency()
    residency = Residency(vram)
    heavy = residency.load("target", lambda: target(where))
    return heavy, residency.load("drafter", lambda: drafter(where)), residency
