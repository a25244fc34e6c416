"""What `sp kernels bench` does: time every case of the registered families."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import sp.bench.families  # noqa: F401  (fills the registry)
from sp.bench.cases import FAMILIES, Case
from sp.bench.record import make_record
from sp.bench.timing import mode_of, spread, time_kernel
from sp.errors import unknown_name
from sp.kernels import forced_path
from sp.kernels.launch import launched_sources, reset_launched
from sp.kernels.path import PATHS


def run_cases(only: str | None = None, repeats: int = 20) -> Iterator[dict[str, Any]]:
    """Time every case of one family or of all; yields records."""
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
    config = {**case.config, "path": case.path, "mode": mode_of(case.graph)}
    return make_record(name, config, metrics, samples, launched_sources())
