"""Kernels compiled before they are launched, on all cores: a first pass only notes what would be launched."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

from fingerprint.finding import find


def compile_ahead(work: Sequence[Callable[[], Any]]) -> int:
    """Fill the cache with all that `work` launches; how many variants those are."""
    jobs = sorted(needed(work))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(_build, *job) for job in jobs]:
            done.result()
    return len(jobs)


def needed(work: Sequence[Callable[[], Any]]) -> set[tuple[str, tuple[str, ...]]]:
    """Sources and options of the variants that some work launches, without launching them."""
    kernel = find("KernelSpec")
    plain, found = kernel.launch, {}

    def note(self: Any, grid: tuple[int, ...], *values: Any, defines: Any = None) -> None:
        chosen = self.variants[0] if defines is None else defines
        found[self, tuple(chosen.items())] = chosen

    kernel.launch = note
    try:
        for one in work:
            with suppress(Exception):  # results are rubbish, which the host may stumble over
                one()
    finally:
        kernel.launch = plain
    arch, options, capability = find("device_arch"), find("compile_options"), find("require_device")()
    return {(one.source, tuple(options(chosen, arch(one.arches, capability)))) for (one, _), chosen in found.items()}


def _build(source: str, options: tuple[str, ...]) -> None:
    with suppress(Exception):  # the launch will tell
        find("build", "jit")(source, options)
