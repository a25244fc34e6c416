"""A registry of families of benchmarks, each yielding cases at the shapes the models have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sp.kernels.path import PATHS, native_path


@dataclass(frozen=True)
class Case:
    """One thing to time: `run` queues it on the current stream; bytes and flops are what it must move and do.

    With `graph` it is replayed from a CUDA graph: the host needs longer to launch a short kernel than it runs.
    """

    config: Mapping[str, Any]
    path: str
    run: Callable[[], object]
    bytes: float = 0
    flops: float = 0
    graph: bool = False


Family = Callable[[], Iterator[Case]]
FAMILIES: dict[str, Family] = {}


def family(name: str) -> Callable[[Family], Family]:
    """Register a function that yields cases; it is called with a device present. The name is that of its records."""

    def register(make: Family) -> Family:
        FAMILIES[name] = make
        return make

    return register


def paths() -> tuple[str, ...]:
    """Paths the present card can take."""
    return PATHS if native_path() == "sm_90a" else ("portable",)
