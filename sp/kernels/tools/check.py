"""Compile every declared kernel for every architecture, without a GPU, and compare resources with a baseline."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

from sp.errors import DeviceError
from sp.kernels import jit, nvrtc
from sp.kernels.flatten import flatten
from sp.kernels.hashing import bare
from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.tools.baseline import BASELINE, Baseline, Rows, compare, compiler, read_baseline
from sp.kernels.tools.resources import ARCHES, SHARED_LIMIT, misfits, parse_log, warnings

ALSO = 16  # unchanged kernels that are compiled in addition to the changed ones


@dataclass(frozen=True)
class CompileJob:
    """One compilation, and its entries with their block sizes and dynamic shared bytes."""

    source: str
    defines: tuple[tuple[str, nvrtc.Define], ...]
    arch: str
    entries: tuple[tuple[str, int, int], ...]

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the compiler."""
        return nvrtc.compile_options(dict(self.defines), self.arch)


@dataclass(frozen=True)
class Report:
    """Outcome of a check. `rows`, `dynamic`: resources and dynamic shared bytes by row name; `problems` fail the check,
    `remarks` do not; `compiled`: hashes of kernels without problems, for a baseline; `jobs`: number of compilations."""

    rows: Rows
    dynamic: dict[str, int]
    problems: list[str]
    remarks: list[str]
    compiled: dict[str, str]
    jobs: int


def row_name(entry: str, defines: Iterable[tuple[str, nvrtc.Define]], arch: str = "") -> str:
    """Return the name of an entry (or source), variant and architecture in tables and in the baseline.

    >>> row_name("rms_norm", [("COLS", 512)], "80")
    'rms_norm COLS=512 sm_80'
    """
    return " ".join([entry, *(f"{name}={value}" for name, value in defines), *([f"sm_{arch}"] if arch else [])])


def fits(kernel: KernelSpec, defines: Defines, arch: str) -> bool:
    """Return True if a variant is meant for an architecture: both or neither are Hopper-specific, and its shared memory
    fits. Ops choose variants by the GPU's properties, so one that needs more shared memory is not an error."""
    limit = SHARED_LIMIT.get(arch, 227) << 10
    return arch.endswith("a") == (kernel.arches == "90a") and kernel.shared_bytes(defines) <= limit


def unserved(kernels: Iterable[KernelSpec], arches: Iterable[str] = ARCHES) -> list[str]:
    """Return complaints about kernels none of whose variants fits an architecture for which they are declared."""
    arches = tuple(arches)
    return [
        f"{kernel.entry} (sm_{arch}): no variant fits {SHARED_LIMIT[arch]} KiB of shared memory"
        for kernel in kernels
        for arch in arches
        if arch.endswith("a") == (kernel.arches == "90a") and not any(fits(kernel, d, arch) for d in kernel.variants)
    ]


def plan(kernels: Iterable[KernelSpec], arches: Iterable[str] = ARCHES) -> list[CompileJob]:
    """Return the compilations to run: entries of one source with the same defines share one."""
    arches = tuple(arches)
    Key = tuple[str, tuple[tuple[str, nvrtc.Define], ...], str]
    shared: dict[Key, list[tuple[str, int, int]]] = defaultdict(list)
    for kernel in kernels:
        for defines in kernel.variants:
            need = kernel.entry, kernel.block(defines), kernel.shared_bytes(defines)
            for arch in arches:
                if fits(kernel, defines, arch):
                    shared[kernel.source, tuple(sorted(defines.items())), arch].append(need)
    return [CompileJob(source, defines, arch, tuple(entries)) for (source, defines, arch), entries in shared.items()]


def job_hash(job: CompileJob) -> str:
    """Hash the flattened text without comments, and all options."""
    return sha256("\0".join((bare(flatten(job.source)), *job.options)).encode()).hexdigest()[:12]


def names(job: CompileJob) -> list[str]:
    """Return the row names of a job."""
    return [row_name(entry, job.defines, job.arch) for entry, _, _ in job.entries]


def differing(jobs: Iterable[CompileJob], known: Baseline, also: int = ALSO) -> list[CompileJob]:
    """Return the jobs whose text or options differ from a baseline, and `also` random others. The same compiler gives
    the same result for the same text; the others detect a baseline that was never right."""
    changed: list[CompileJob] = []
    same: list[CompileJob] = []
    for job in jobs:
        recorded = {known.compiled.get(name) for name in names(job)}
        (same if recorded == {job_hash(job)} else changed).append(job)
    return [*changed, *random.sample(same, min(also, len(same)))]


def compile_job(job: CompileJob) -> tuple[Rows, list[tuple[str, str]]]:
    """Compile a job and return the resources of its entries, and problems as (variant, complaint)."""
    variant = row_name(job.source, job.defines)
    try:
        log = jit.compile_log(job.source, job.options)
    except (DeviceError, FileNotFoundError) as error:
        return {}, [(variant, str(error))]
    resources, rows = parse_log(log), {}
    problems = [(variant, line) for line in warnings(log)]
    for entry, threads, dynamic in job.entries:
        if entry in resources:
            rows[row_name(entry, job.defines, job.arch)] = resources[entry]
            problems += [(variant, f"{entry}: {why}") for why in misfits(resources[entry], job.arch, threads, dynamic)]
        else:
            problems.append((variant, f"{entry}: no such entry with these defines"))
    return rows, problems


def check(
    kernels: Iterable[KernelSpec],
    arches: Iterable[str] = ARCHES,
    baseline: Path | None = BASELINE,
    progress: Callable[[int], object] = lambda done: None,
    workers: int | None = None,
    changed: bool = False,
) -> Report:
    """Compile kernels and compare their resources with a baseline.

    Parameters
    ----------
    kernels : iterable of KernelSpec, declarations, usually all of the manifest
    arches : iterable of str, of `sp.kernels.tools.resources.ARCHES`
    baseline : Path, optional
        JSON file of earlier needs, keyed by the compiler's version; may be missing. With None nothing is compared.
    progress : callable, given 1 after every compilation
    workers : int, optional, processes; by default one per core
    changed : bool, compile only the `differing` jobs; the baseline supplies the resources of the others
    """
    kernels, arches = tuple(kernels), tuple(arches)
    known, jobs = read_baseline(baseline) if baseline else None, plan(kernels, arches)
    to_compile = differing(jobs, known) if changed and known else jobs
    rows: Rows = {name: known.rows[name] for job in {*jobs} - {*to_compile} for name in names(job)} if known else {}
    compiled: dict[str, str] = {}
    complaints: dict[tuple[str, str], list[str]] = defaultdict(list)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(compile_job, job): job for job in to_compile}
        for future in as_completed(pending):
            needs, errors = future.result()
            rows |= needs
            for error in errors:
                complaints[error].append(f"sm_{pending[future].arch}")
            if not errors:
                compiled |= dict.fromkeys(needs, job_hash(pending[future]))
            progress(1)
    rows = dict(sorted(rows.items()))
    dynamic = {row_name(e[0], job.defines, job.arch): e[2] for job in jobs for e in job.entries}
    worse, remarks = compare(rows, known.rows if known else None if baseline else rows)
    if baseline and known is None:
        remarks.append(f"no baseline for NVRTC {compiler()} in {baseline}; write it with --update")
    problems = [f"{name} ({' '.join(sorted(on))}): {error}" for (name, error), on in sorted(complaints.items())]
    return Report(rows, dynamic, unserved(kernels, arches) + problems + worse, remarks, compiled, len(to_compile))
