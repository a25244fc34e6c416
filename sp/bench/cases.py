"""What `sp kernels bench` times: a registry of families, each yielding cases at the shapes the models have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sp.bench.record import make_record
from sp.bench.timing import spread, time_kernel
from sp.errors import unknown_name
from sp.kernels import forced_path


@dataclass(frozen=True)
class Case:
    """One thing to time: `run` queues it on the current stream; bytes and flops are what it must move and do."""

    name: str
    path: str
    run: Callable[[], object]
    bytes: float = 0
    flops: float = 0


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {}


def family(name: str) -> Callable[[Callable[[], Iterator[Case]]], Callable[[], Iterator[Case]]]:
    """Register a function that yields cases; it is called with a device present."""

    def register(make: Callable[[], Iterator[Case]]) -> Callable[[], Iterator[Case]]:
        FAMILIES[name] = make
        return make

    return register


def run_cases(only: str | None = None, repeats: int = 20) -> Iterator[dict[str, Any]]:
    """Time every case of one family or of all; yields records of the measurement ``kernels``."""
    import sp.bench.families  # noqa: F401  (fills the registry; late, since it imports the ops)

    if only is not None and only not in FAMILIES:
        raise unknown_name("family of benchmarks", only, FAMILIES)
    for name, make in FAMILIES.items():
        if only in (None, name):
            for case in make():
                yield _measure(name, case, repeats)


def _measure(name: str, case: Case, repeats: int) -> dict[str, Any]:
    with forced_path(case.path):
        samples = time_kernel(case.run, repeats)
    times = spread(samples)
    metrics = {
        "ms": times.median,
        "ms_low": times.low,
        "ms_high": times.high,
        "gb_s": case.bytes / times.median / 1e6,
        "tflops": case.flops / times.median / 1e9,
    }
    return make_record("kernels", {"family": name, "case": case.name, "path": case.path}, metrics, samples)
