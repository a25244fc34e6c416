"""`sp kernels`: check, list, build and time the CUDA kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.markup import escape

from sp.commands.shell.parser import opt
from sp.commands.shell.terminal import AsJson, Wide, print_json, print_table, progress_bar, text_width

if TYPE_CHECKING:
    from sp.kernels.tools.check import Report

MAIN_GPUS = ("sm_80", "sm_90a", "sm_120")  # columns of `sp kernels check` on a narrow terminal

Family = Annotated[str | None, opt(help="Only this family; see sp kernels list.")]
RecordBelow = Annotated[
    Path | None, opt("--record", writes="folder", help="Append the results below this folder, e.g. results.")
]


def list_kernels(
    family: Family = None,
    dispatch: Annotated[
        bool, opt("--dispatch", help="Show the kernel of each matrix product by number of rows in place of the list.")
    ] = False,
    path: Annotated[Literal["sm_90a", "portable"], opt(help="Kernel path of --dispatch.")] = "sm_90a",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List all declared kernels: source, GPUs, number of variants; with --json also arguments and defines.

    Examples
    --------
      sp kernels list
      sp kernels list --dispatch
    """
    from sp.kernels.manifest import family_of, kernels

    if dispatch:
        _list_dispatch(path, wide, as_json)
        return

    specs = kernels(family).values()
    if as_json:
        keys = ("source", "entry", "args", "arches")
        rows = [{k: getattr(x, k) for k in keys} | {"variants": [dict(v) for v in x.variants]} for x in specs]
        print_json({"kernels": [row | {"family": family_of(x)} for row, x in zip(rows, specs, strict=True)]})
        return
    cells = []
    for kernel in specs:
        gpus = "sm_90a" if kernel.arches == "90a" else "sm_80+"
        cells.append([family_of(kernel), kernel.entry, kernel.source, gpus, str(len(kernel.variants))])
    main = ("family", "kernel", "GPUs", "variants")
    print_table(["family", "kernel", "source", "GPUs", "variants"], cells, "table", 4, main=main, wide=wide)


def _list_dispatch(path: str, wide: bool, as_json: bool) -> None:
    """Print the measured table of matrix products."""
    from sp.ops.matmul.dispatch import SHAPES, rows, table

    choices = rows(path)
    if as_json:
        print_json({"gpu": table()["gpu"], "date": table()["date"], "path": path, "rows": choices})
        return
    cells = []
    for row in choices:
        others = ", ".join(f"{name} {us:.1f}" for name, us in row["others"].items())
        # a row without times was chosen by a rule
        rule = "rule: beyond the table" if row["rows"].endswith("..") else "rule: not timed"
        us = f"{row['us']:.1f}" if row["us"] else rule
        cells.append([row["shape"], row["format"], row["rows"], row["kernel"], us, others])
    heads = ["shape", "format", "rows", "kernel", "us", "others, us"]
    print_table(heads, cells, "table", 6, main=heads[:5], wide=wide)
    sizes = ", ".join(f"{name} {out} x {width}" for name, (out, width) in SHAPES.items())
    legend = (
        f"{table()['gpu']}, {table()['date']}; us: time per launch in a chain, at the most rows of a range; {sizes}"
    )
    print(fill(legend, text_width()))


def check(
    arch: Annotated[str | None, opt(help="Architectures, comma-separated, e.g. 80,90a; all if omitted.")] = None,
    family: Family = None,
    update: Annotated[bool, opt("--update", help="Write the resources as the new baseline.")] = False,
    baseline: Annotated[Path | None, opt(help="Baseline file; that of the repository if omitted.")] = None,
    changed: Annotated[
        bool,
        opt("--changed", help="Compile only kernels whose code differs from the baseline, and a sample of others."),
    ] = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Compile every kernel for every architecture, without a GPU; exit status 1 if one has become worse.

    Worse means: an error, a warning, a new spill, over 10 % more registers than in the baseline, or more registers or
    shared memory than the GPU has.

    Examples
    --------
      sp kernels check
      sp kernels check --changed --arch 80,90a
      sp kernels check --update
    """
    from sp.errors import ConfigError, unknown_name
    from sp.kernels.manifest import kernels
    from sp.kernels.tools import check as checks
    from sp.kernels.tools.baseline import BASELINE, Baseline, compiler, write_baseline
    from sp.kernels.tools.resources import ARCHES

    arches, specs, file = arch.split(",") if arch else ARCHES, list(kernels(family).values()), baseline or BASELINE
    for name in arches:
        if name not in ARCHES:
            raise unknown_name("architecture", name, ARCHES)
    if update and (arch or family or changed):
        raise ConfigError("--update writes the baseline of all kernels; omit --arch, --family and --changed")
    start = time.perf_counter()
    with progress_bar("compiling", None if changed else len(checks.plan(specs, arches))) as progress:
        report = checks.check(specs, arches, None if update else file, progress, changed=changed)
    seconds = time.perf_counter() - start
    if update:
        write_baseline(file, Baseline(report.rows, report.compiled))
    if as_json:
        rows = {name: asdict(need) | {"dynamic": report.dynamic[name]} for name, need in report.rows.items()}
        facts = {"nvrtc": compiler(), "seconds": seconds, "baseline": str(file), "compilations": report.jobs}
        print_json(facts | {"rows": rows, "problems": report.problems, "remarks": report.remarks})
    else:
        console = Console(highlight=False, soft_wrap=True)
        print("registers per thread (+ bytes of spills)")
        print_resources(report, wide)
        for text in report.remarks:
            console.print(f"[yellow]note[/] {escape(text)}")
        for text in report.problems:
            console.print(f"[red]fail[/] {escape(text)}")
        outcome = f"{len(report.problems)} problems" if report.problems else "no problems"
        effort = f"{report.jobs} compilations, NVRTC {compiler()}, {seconds:.0f} s"
        console.print(f"{len(report.rows)} kernels, {effort}: {outcome}")
    if report.problems:
        raise SystemExit(1)


def print_resources(report: Report, wide: bool) -> None:
    """Print registers by GPU, with a row per variant."""
    from sp.kernels.tools.resources import ARCHES

    cells: dict[str, dict[str, str]] = {}
    shared: dict[str, int] = {}
    for name, need in report.rows.items():
        variant, _, arch = name.rpartition(" sm_")
        cells.setdefault(variant, {})[arch] = f"{need.registers}" + (f" +{need.spill}" if need.spill else "")
        shared[variant] = max(shared.get(variant, 0), need.shared + report.dynamic[name])
    gpus = [f"sm_{arch}" for arch in ARCHES]
    lines = [[name, f"{shared[name]:,}", *(row.get(arch, "") for arch in ARCHES)] for name, row in cells.items()]
    print_table(["kernel", "shared", *gpus], lines, "table", 1, main=("kernel", "shared", *MAIN_GPUS), wide=wide)


def build(family: Family = None) -> None:
    """Compile all shipped kernel variants for this GPU before their first use.

    Examples
    --------
      sp kernels build
    """
    from sp.folders import cache_folder
    from sp.kernels.device import require_device
    from sp.kernels.jit import device_arches
    from sp.kernels.manifest import kernels
    from sp.kernels.tools.build import build_all
    from sp.kernels.tools.check import plan

    jobs = plan(kernels(family).values(), device_arches(require_device()))
    start = time.perf_counter()
    with progress_bar("compiling", len(jobs)) as progress:
        compiled = build_all(jobs, progress)
    seconds = time.perf_counter() - start
    print(f"{len(jobs)} modules in {cache_folder() / 'kernels'}, {compiled} compiled now, {seconds:.1f} s")


def bench(
    family: Annotated[str | None, opt(help="Only this family of cases.")] = None,
    repeats: Annotated[int, opt(least=5, help="Samples per case.")] = 20,
    record: RecordBelow = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Time the kernels on this GPU: median and quartiles, bandwidth, arithmetic rate.

    Examples
    --------
      sp kernels bench --family norms
    """
    from sp.bench.cases import run_cases
    from sp.bench.record import append
    from sp.kernels.device import require_device

    require_device()
    rows = []
    for row in run_cases(family, repeats):
        rows.append(row)
        if record:
            append(row, record)  # at once, as a later case may fail
    if as_json:
        print_json({"records": rows})
    else:
        print_times(rows, wide)


def print_times(rows: Sequence[Mapping[str, Any]], wide: bool) -> None:
    """Print the records of cases, one per row."""
    cells = []
    for row in rows:
        config, numbers = row["config"], row["metrics"]
        quartiles = f"{numbers['ms_low']:.4f} .. {numbers['ms_high']:.4f}"
        rates = [f"{numbers[key]:.0f}" if numbers[key] else "" for key in ("gb_s", "tflops")]
        case = " ".join(f"{name}={value}" for name, value in config.items() if name != "path")
        cells.append([row["bench"], case, config["path"], f"{numbers['ms']:.4f}", quartiles, *rates])
    heads = ["bench", "case", "path", "ms", "quartiles", "GB/s", "TFLOP/s"]
    print_table(heads, cells, "table", 3, main=("bench", "case", "path", "ms", "GB/s", "TFLOP/s"), wide=wide)


def tune(
    out: Annotated[
        Path | None, opt("-o", "--out", writes="file", help="File of the table; that of the package if omitted.")
    ] = None,
    record: RecordBelow = None,
    repeats: Annotated[int, opt(least=1, help="Samples per time.")] = 3,
) -> None:
    """Time all kernels for matrix products of 1 to 128 rows on this GPU, and write the dispatch table.

    Examples
    --------
      sp kernels tune --record results
    """
    import json

    from sp.bench.cases import measure, table
    from sp.bench.record import append, hashed_anew
    from sp.kernels.device import require_device
    from sp.ops.matmul.dispatch import SHAPES, TABLE
    from sp.quant import kernel_formats
    from sp.trace import write_atomic

    require_device()
    with progress_bar("timing", len(kernel_formats()) * len(SHAPES)) as progress:
        records = list(measure(repeats, progress))
    path = write_atomic(out or TABLE, (json.dumps(table(records), indent=1) + "\n").encode())
    for row in records if record else ():
        assert record is not None
        append(hashed_anew(row), record)  # the table is part of what the hash covers
    print(f"{path}: {sum(len(row['metrics']) for row in records)} times")
