"""Compile ahead of use, on all cores: the cubins are written to the cache, where launches look first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from sp.kernels import jit
from sp.kernels.tools.check import CompileJob


def build_all(jobs: Sequence[CompileJob], progress: Callable[[int], object] = lambda done: None) -> int:
    """Compile the kernels that the cache lacks and return their number."""
    compiled = 0
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_build, job) for job in jobs]):
            compiled += future.result()
            progress(1)
    return compiled


def missing(jobs: Sequence[CompileJob]) -> list[CompileJob]:
    """Return the jobs whose cubin is not in the cache."""
    return [job for job in jobs if not jit.cubin_path(job.source, job.options).exists()]


def _build(job: CompileJob) -> bool:
    new = bool(missing([job]))
    jit.build(job.source, job.options)
    return new
