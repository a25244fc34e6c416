"""CuPy's memory pool under a budget: its limit, and all that is free of it in one piece."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sp.errors import DeviceError
from sp.kernels import import_cupy


class Pool:
    """The default pool of the device.

    Parameters
    ----------
    budget : int or None
        Most bytes it may take from the driver; None for the whole card.
    """

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self._tidied = False

    @property
    def source(self) -> Any:
        """CuPy's pool."""
        return import_cupy().get_default_memory_pool()

    @property
    def obeys(self) -> bool:
        """Whether the pool's limit is this budget."""
        return bool(self.source.get_limit() == (self.budget or 0))

    @property
    def over(self) -> int:
        """Bytes taken beyond the budget."""
        return max(0, self.source.total_bytes() - self.budget) if self.budget else 0

    def limit(self) -> None:
        """Give back what nothing uses, and take no more than the budget from now on."""
        self.release()
        self.source.set_limit(self.budget or 0)

    def release(self) -> None:
        """Give pieces that nothing uses back to the driver."""
        self.source.free_all_blocks()
        self._tidied = False

    def tidy(self) -> None:
        """With a budget, make the memory that is free one piece, from which all work is cut and into which it merges.

        It stays so until the driver is asked again, which then happens no more.
        """
        if self.budget is None or self._tidied:
            return
        self.release()
        self.take_free()
        self._tidied = True

    def take_free(self) -> None:
        """Ask the driver for all that the budget has left, as one free piece of the pool."""
        if self.budget is not None and (rest := self.budget - self.source.total_bytes()) > 0:
            with suppress(import_cupy().cuda.memory.OutOfMemoryError):
                self.source.malloc(rest)

    def refusal(self, size: int) -> DeviceError:
        """The error of a request that does not fit."""
        limit = f"the budget of {self.budget / 2**30:.2f} GiB" if self.budget else "the device"
        return DeviceError(
            f"the GPU's memory is full: {size / 2**20:.0f} MiB more do not fit {limit}, of which "
            f"{self.source.used_bytes() / 2**30:.2f} GiB are in use, and nothing is left that could leave it; "
            "use a shorter prompt, a lower --keep-ratio, --kv q4_0 or a larger --vram"
        )
