"""Time to first token on the embedded pair and document: full prefill, both drafter scorers, and the controls.

    python experiments/sample_ttft.py results/<machine>/sample_ttft.jsonl [--runs 5]

Every row is `--runs` runs in one process after a warm-up; a record holds all samples. Prints a markdown table of
medians. One document, so `answer` says only whether this needle was found; accuracy is in the model card.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import sp
from sp.scoring import SCORERS
from sp.session import Pipeline, RunOptions
from sp.studies.sample import sample
from sp.trace import peak_bytes

ROWS = [
    ("full prefill", None, 1.0),
    *((name, name, keep) for keep in (0.1, 0.05) for name in ("tail", "lookahead")),
    *((name, name, 0.05) for name in ("random", "lexical", "head_tail", "oracle")),
]


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "gpu": None,
        "cpu": names[0] if names else platform.processor(),
        "cores": len(names),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def measure(pipeline: Pipeline, scorer: str | None, keep: float, runs: int) -> dict[str, Any]:
    """One record: `runs` timed runs of the sample after one warm-up."""
    document, example = sample()
    prompt = sp.Prompt.from_document(document, example.question, pipeline.target.template, needle=example.needle)
    options = RunOptions(
        keep_ratio=keep,
        scorer=SCORERS.build(scorer or "tail"),
        compress="always" if scorer else "off",
        max_new_tokens=16,
    )
    results = [pipeline.run(prompt, options, full=False) for _ in range(runs + 1)][1:]
    samples = [result.answer.ttft_s for result in results]
    last = results[-1]
    stages = {
        stage.name: statistics.median(r.answer.trace.stages[i].seconds for r in results)
        for i, stage in enumerate(last.answer.trace.stages)
    }
    return {
        "bench": "sample_ttft",
        "config": {
            "target": pipeline.target.path.name,
            "drafter": pipeline.drafter.path.name if scorer and pipeline.drafter else None,
            "scorer": scorer,
            "selector": repr(options.selector) if scorer else None,
            "prompt_tokens": len(last.prompt),
            "keep_ratio": keep,
        },
        "metrics": {
            "ttft_s": statistics.median(samples),
            "kept_tokens": last.kept_tokens,
            "needle_recall": last.needle_recall,
            "right_answer": all(value in last.answer.text for value in example.answers),
            "peak_bytes": peak_bytes(),
            "stages": stages,
        },
        "samples": samples,
        **machine(),
    }


def table(records: list[dict[str, Any]]) -> str:
    """Markdown of the medians; speed-up against the full prefill of the same process."""
    lines = [
        "| scorer | kept tokens | first token after (s) | against full | needle kept | answer |",
        "|---|---:|---:|---:|---:|---|",
    ]
    full = records[0]["metrics"]["ttft_s"]
    for record in records:
        config, metrics = record["config"], record["metrics"]
        lines.append(
            f"| {config['scorer'] or 'none: full prefill'} "
            f"| {metrics['kept_tokens']:,} of {config['prompt_tokens']:,} "
            f"| {metrics['ttft_s']:.2f} | {full / metrics['ttft_s']:.1f}x "
            f"| {100 * metrics['needle_recall']:.0f} % | {'right' if metrics['right_answer'] else 'wrong'} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON-lines file to append to")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.out.is_dir():
        parser.error(f"{arguments.out} is a folder; name a file, e.g. {arguments.out / 'sample_ttft.jsonl'}")
    pipeline = sp.load(device="cpu")
    pipeline.warm_up()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    records = []
    for _, scorer, keep in ROWS:
        records.append(measure(pipeline, scorer, keep, arguments.runs))
        with arguments.out.open("a") as out:
            out.write(json.dumps(records[-1]) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
