"""How much faster a study ends on several actors of Ray than on one: wall time of the whole command, start to end.

    python experiments/ray_speedup.py results --actors 1,4 [--runs 96] [--threads 1] [--at-once]

Every actor computes with as many threads, in both cases, so that what is measured is the spreading of runs. Start of
Ray, of the actors and the loading of a pair by each are part of the time, as they are for whoever waits for a study.
Actors in turn, so often as `--repeats` says; the speed-up is between medians. More actors than cores are refused. With
`--at-once` studies of all numbers of actors run side by side, on a machine with cores for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sp.bench.record import append, make_record
from sp.studies.sweep.store import read_results

SWEEP = """\
name: speedup
out: {out}
device: cpu
full: false
tasks: {{task: needle, tokens: {tokens}, examples: {runs}, per_run: 1}}
cells: {{scorer: tail, keep_ratio: 0.3}}
"""
ASIDE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def study(actors: int, runs: int, tokens: int, threads: int) -> tuple[float, float]:
    """Seconds of the command, and of its runs one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "speedup.yaml"
        file.write_text(SWEEP.format(out=folder, runs=runs, tokens=tokens))
        command = [sys.executable, "-m", "sp", "sweep", str(file), "--executor", "ray", "--actors", str(actors)]
        start = time.perf_counter()
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(ASIDE, str(threads))},
        )
        wall = time.perf_counter() - start
        found = read_results([Path(folder) / "rows.jsonl"]).runs
    assert len(found) == runs, f"{len(found)} of {runs} runs were done"
    return wall, sum(run["seconds"] for run in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of records, e.g. results")
    parser.add_argument("--actors", default="1,4", help="numbers of actors, the first is what others are held to")
    parser.add_argument("--runs", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1, help="of each actor")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-once", action="store_true", help="with all numbers of actors side by side")
    arguments = parser.parse_args()
    counts = [int(each) for each in arguments.actors.split(",")]
    most = sum(counts) if arguments.at_once else max(counts)
    if most * arguments.threads > (cores := os.cpu_count() or 1):
        parser.error(f"{most} actors of {arguments.threads} threads need as many cores; here are {cores}")
    samples: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    for _ in range(arguments.repeats):
        with ThreadPoolExecutor(len(counts) if arguments.at_once else 1) as pool:
            how = {"runs": arguments.runs, "tokens": arguments.tokens, "threads": arguments.threads}
            found = pool.map(partial(study, **how), counts)
            for count, sample in zip(counts, found, strict=True):
                samples[count].append(sample)
                print(f"{count} actors: {sample[0]:.1f} s", file=sys.stderr, flush=True)
    walls = {count: statistics.median(wall for wall, _ in found) for count, found in samples.items()}
    for count in counts[1:]:
        config = {"actors": count, "against": counts[0], "runs": arguments.runs, "tokens": arguments.tokens}
        metrics = {
            "wall_s": walls[count],
            "against_wall_s": walls[counts[0]],
            "runs_s": statistics.median(inside for _, inside in samples[count]),
            "speedup": walls[counts[0]] / walls[count],
        }
        both = [
            {"actors": each, "wall_s": [round(wall, 2) for wall, _ in samples[each]]} for each in (counts[0], count)
        ]
        config |= {"threads": arguments.threads, "at_once": arguments.at_once}
        append(make_record("ray_speedup", config, metrics, both, device="cpu"), arguments.out)
        print(json.dumps(metrics, indent=1))


if __name__ == "__main__":
    main()
