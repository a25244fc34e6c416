"""What every benchmark on the GPU does: time with events, let pytest-benchmark show the same work, keep the record."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sp.bench.record import append, make_record
from sp.bench.timing import time_kernel


def timed(benchmark: Any, run: Callable[[], object], repeats: int, graph: bool = False) -> list[float]:
    """Milliseconds of the repeats; none where benchmarks are off, after one run that shows whether it works."""
    import cupy

    def once() -> None:
        run()
        cupy.cuda.get_current_stream().synchronize()

    once()
    if not benchmark.enabled:
        return []
    samples = time_kernel(run, repeats=repeats, graph=graph)
    benchmark.pedantic(once, rounds=1)
    return samples


def keep(
    bench: str, config: dict[str, Any], metrics: dict[str, float], samples: list[float], sources: Iterable[str]
) -> None:
    """Append a record below the folder named in SP_RESULTS, else to ``results``."""
    append(make_record(bench, config, metrics, samples, sources), Path(os.environ.get("SP_RESULTS", "results")))
