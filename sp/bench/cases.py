"""What `sp kernels bench` times: a registry of families, each yielding cases at the shapes the models have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from sp.bench.record import make_record
from sp.bench.timing import spread, time_kernel
from sp.errors import unknown_name
from sp.kernels import forced_path
from sp.kernels.launch import launched_sources, reset_launched
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


def run_cases(only: str | None = None, repeats: int = 20) -> Iterator[dict[str, Any]]:
    """Time every case of one family or of all; yields records."""
    import sp.bench.families  # noqa: F401  (fills the registry; late, since it imports the ops)

    if only is not None and only not in FAMILIES:
        raise unknown_name("family of benchmarks", only, FAMILIES)
    for name, make in FAMILIES.items():
        if only in (None, name):
            for case in make():
                yield _measure(name, case, repeats)


def _measure(name: str, case: Case, repeats: int) -> dict[str, Any]:
    reset_launched()
    with forced_path(case.path) if case.path in PATHS else nullcontext():
        samples = time_kernel(case.run, repeats, graph=case.graph)
    times = spread(samples)
    metrics = {
        "ms": times.median,
        "ms_low": times.low,
        "ms_high": times.high,
        "gb_s": case.bytes / times.median / 1e6,
        "tflops": case.flops / times.median / 1e9,
    }
    return make_record(name, {**case.config, "path": case.path}, metrics, samples, launched_sources())
