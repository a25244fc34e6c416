"""`sp sweep`: do the runs of a sweep file, and resume an interrupted sweep."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sp.commands.common import Devices, RayAddress
from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import AsJson, Wide, clock, followed, print_json, print_table
from sp.errors import ConfigError

if TYPE_CHECKING:
    from sp.studies.sweep.conduct import Estimate, Pool, SweepPlan
    from sp.studies.sweep.sweep import Run


def sweep(
    file: Annotated[Path, arg("A sweep file, e.g. experiments/quickstart.yaml.")],
    settings: Annotated[
        list[str] | None, opt("--set", help="Override a key of the file, e.g. cells.keep_ratio=[0.1]; repeatable.")
    ] = None,
    dry_run: Annotated[bool, opt("--dry-run", help="Only count the runs and estimate their time.")] = False,
    only: Annotated[str | None, opt(help="Only runs whose name matches, e.g. 'needle/4096/*'.")] = None,
    shard: Annotated[str | None, opt(help="Only part i of n equal parts of the runs, as i/n, e.g. 2/16.")] = None,
    executor: Annotated[
        Literal["local", "ray"], opt(help="local, or ray: actors on a cluster with a GPU or a CPU each.")
    ] = "local",
    actors: Annotated[
        int | None, opt(least=1, help="Number of actors with ray; all that the cluster has free if omitted.")
    ] = None,
    address: RayAddress = None,
    devices: Devices = "",
    out: Annotated[
        Path | None,
        opt("-o", "--out", writes="folder", help="Folder for rows and report; that of the file if omitted."),
    ] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Run tasks in many cells; finished runs are on disk, and the same command resumes an interrupted sweep.

    Examples
    --------
      sp sweep experiments/quickstart.yaml
      sp sweep experiments/quickstart.yaml --dry-run --set cells.keep_ratio=[0.02,0.1]
      sp sweep experiments/study.yaml --shard 3/16 -o study
      sp sweep experiments/study.yaml --devices 0,1,2,3
      sp sweep experiments/study.yaml --executor ray --actors 4
      sp sweep experiments/study.yaml --executor ray --address 10.0.0.1:6379
    """
    from sp.studies.sweep.conduct import Ray, make_plan, open_pool
    from sp.studies.sweep.executor import read_gpus
    from sp.studies.sweep.sweep import load_sweep

    gpus = read_gpus(devices) if devices else ()
    if gpus and executor != "local":
        raise ConfigError("--devices names GPUs of this machine; omit it with --executor ray")
    if executor != "ray" and (actors or address):
        raise ConfigError(f"{'--actors' if actors else '--address'} is for a cluster; add --executor ray")
    study = load_sweep(file, settings or [], out)
    plan = make_plan(study, only, None if shard is None else read_shard(shard))
    if dry_run:
        show_plan(plan, as_json, max(len(gpus), 1), wide)
        return
    console = Console(stderr=True)
    if others := plan.other_commits():
        console.print(
            f"sp: note: runs of other commits are reused ({', '.join(sorted(others))}); to repeat them, remove "
            f"{study.out}",
            highlight=False,
            soft_wrap=True,
        )
    pool = open_pool(plan, gpus, Ray(address, actors) if executor == "ray" else None)
    if plan.remaining:
        workers = "actors" if executor == "ray" else "devices"
        estimate = expected_time(plan, 1 if pool is None else min(pool.size, len(plan.remaining)), workers)
        console.print(f"sp: {estimate}", highlight=False, soft_wrap=True)
    failures = do_runs(plan, pool, console)
    summary: dict[str, Any] = {
        "sweep": study.name,
        "runs": len(plan.jobs),
        "already_done": len(plan.jobs) - len(plan.remaining),
        "failed": failures,
        "rows": str(plan.path),
    }
    if study.report and shard is None and not failures:
        from sp.studies.pages.report import write_report

        summary["report"] = str(write_report([study.out], study.out / "report"))
    if as_json:
        print_json(summary)
    else:
        done = len(plan.remaining) - len(failures)
        print(f"{done} runs done now, {summary['already_done']} before; rows in {plan.path}")
        if "report" in summary:
            print(f"report in {summary['report']}")
    for failure in failures:
        print(f"sp: failed: {failure}", file=sys.stderr)
    if failures:
        raise SystemExit(1)


def expected_time(plan: SweepPlan, workers: int, unit: str = "devices") -> str:
    """Describe the remaining runs and their time, estimated from earlier runs on this machine or typical ones.

    `unit`: plural of the kind of workers, for the text.
    """
    from sp.studies.sweep.conduct import TYPICAL, from_earlier

    measured = from_earlier(plan)
    estimate = measured or TYPICAL[plan.device]
    seconds = sum(estimate.seconds(job.work) for job in plan.remaining) / workers
    source = f"by {estimate.source}" if measured else f"a guess from {estimate.source}"
    shared = f" on {workers} {unit}" if workers > 1 else ""
    return f"{len(plan.remaining):,} of {len(plan.jobs):,} runs remain; about {clock(seconds)}{shared}, {source}"


def do_runs(plan: SweepPlan, pool: Pool | None, console: Console, *, lasting: bool = True) -> list[str]:
    """Do the remaining runs with a progress bar, and return a line for each failure.

    After an interrupt it prints how to resume. `lasting`: the rows are in a file that stays.
    """
    try:
        return _do_runs(plan, pool, console)
    except KeyboardInterrupt:
        hint = f"finished runs are in {plan.path}; the same command resumes"
        console.print(
            f"sp: {hint if lasting else 'no run was saved; pass --out FILE to save runs'}",
            highlight=False,
            soft_wrap=True,
        )
        raise


def _do_runs(plan: SweepPlan, pool: Pool | None, console: Console) -> list[str]:
    from sp.studies.sweep.conduct import carry_out

    failures = []
    # Progress is in FLOP: runs of long prompts take hundreds of times as long as those of short ones.
    shares = {id(job.run): job.work.flop / max(job.work.answers, 1) for job in plan.remaining}
    with followed(progress(console)) as bar:
        total = sum(job.work.flop for job in plan.remaining)
        task = bar.add_task(plan.sweep.name, total=total, runs=len(plan.remaining), over=0)

        def advance(run: Run, rows: int) -> None:
            bar.advance(task, shares[id(run)] * rows)

        for over, (job, outcome) in enumerate(carry_out(plan, advance, pool), 1):
            bar.update(task, over=over)
            if pool is not None:  # processes of a pool report no progress within a run
                bar.advance(task, job.work.flop)
            if outcome.error:
                failures.append(f"{job.run.label}: {outcome.error}")
    return failures


def read_shard(text: str) -> tuple[int, int]:
    """Read ``i/n`` with 1 <= i <= n."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise ConfigError(f"--shard takes i/n with 1 <= i <= n, e.g. 2/16, not {text!r}")
    return int(index), int(count)


def progress(console: Console) -> Progress:
    """Return a progress bar of runs; the time left is estimated by the work in the runs, not by their number."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[over]} of {task.fields[runs]} runs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def show_plan(plan: SweepPlan, as_json: bool, workers: int = 1, wide: bool = False) -> None:
    """Print the number of runs by task and length, and an estimate of their time on `workers` devices."""
    from sp.studies.sweep.conduct import calibrate, from_earlier

    remaining = plan.remaining
    estimate: Estimate | None = from_earlier(plan)
    if estimate is None and remaining:
        state = f"{len(remaining):,} of {len(plan.jobs):,} runs remain; some examples run to estimate their time"
        print(f"sp: {state}", file=sys.stderr, flush=True)
        estimate = calibrate(plan)
    seconds = sum(estimate.seconds(job.work) for job in remaining) if estimate else 0.0
    source = estimate.source if estimate else "nothing to do"
    rows = Counter((job.run.spec.name, job.run.tokens) for job in plan.jobs)
    todo = Counter((job.run.spec.name, job.run.tokens) for job in remaining)
    if as_json:
        tasks = [
            {"task": name, "tokens": tokens, "runs": n, "left": todo[name, tokens]}
            for (name, tokens), n in rows.items()
        ]
        answers = sum(job.work.answers for job in remaining)
        total = {"runs": len(plan.jobs), "left": len(remaining), "answers": answers}
        print_json({"sweep": plan.sweep.name, **total, "seconds": seconds, "source": source, "tasks": tasks})
        return
    print(f"{plan.sweep.name}: {len(plan.sweep.runs[0].cells)} cells")
    cells = []
    for name, tokens in rows:
        jobs = [job for job in remaining if (job.run.spec.name, job.run.tokens) == (name, tokens)]
        cells.append(
            [
                name,
                f"{tokens:,}",
                f"{rows[name, tokens]:,}",
                f"{len(jobs):,}",
                f"{sum(job.run.count for job in jobs):,}",
                f"{sum(job.work.answers for job in jobs):,}",
                clock(sum(estimate.seconds(job.work) for job in jobs)) if estimate else "",
            ]
        )
    heads = ["task", "tokens", "runs", "left", "examples left", "answers left", "estimate"]
    main = ("task", "tokens", "runs", "left", "answers left", "estimate")
    print_table(heads, cells, "table", 1, main=main, wide=wide)
    shared = f" ({clock(seconds / workers)} on {workers} devices)" if workers > 1 else ""
    print(f"{len(remaining):,} of {len(plan.jobs):,} runs remain; about {clock(seconds)}{shared}, by {source}")
