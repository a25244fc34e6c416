"""What `sp sweep` adds to its runs: wall time of 500 small runs, start to end, against the seconds of the runs alone.

    python experiments/sweep_overhead.py results [--runs 500]

One example a run, 256 tokens, one cell, no full prefill: as small as a run gets. The rest is start of the process,
planning, loading and warming the pair, making examples known to the store, and an fsync a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sp.bench.record import append, make_record
from sp.studies.sweep.store import read_results

SWEEP = """\
name: overhead
out: {out}
device: cpu
full: false
tasks: {{task: needle, tokens: 256, examples: {runs}, per_run: 1}}
cells: {{scorer: random, keep_ratio: 0.5}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of records, e.g. results")
    parser.add_argument("--runs", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "overhead.yaml"
        file.write_text(SWEEP.format(out=folder, runs=arguments.runs))
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "sp.cli", "sweep", str(file)], check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        found = read_results([Path(folder) / "rows.jsonl"])
    samples = [run["seconds"] for run in found.runs.values()]
    assert len(samples) == arguments.runs, f"{len(samples)} of {arguments.runs} runs were done"
    inside = sum(samples)
    metrics = {"wall_s": wall, "runs_s": inside, "overhead": (wall - inside) / inside}
    config = {"runs": arguments.runs, "tokens": 256, "cells": 1}
    append(make_record("sweep_overhead", config, metrics, samples, device="cpu"), arguments.out)
    print(json.dumps(metrics, indent=1))


if __name__ == "__main__":
    main()
