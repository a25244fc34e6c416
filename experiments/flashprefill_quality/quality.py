"""What a sparse drafter costs in quality: FlashPrefill's alpha against dense attention, on the embedded drafter.

    python experiments/flashprefill_quality/quality.py [--results results] [--grid grid.yaml] [--device cuda] [--draw]

Every document is the paragraphs of the embedded sample in random order, again and again up to the length, with one
needle ("One of the special magic numbers for ... is: ...") that the question asks for, at a random depth inside a
paragraph, and distractors of the same form. Each is scored densely once and at every alpha, and by the controls, and
compared with the dense scores:

* density: share of the causal blocks that attention read, mean of the layers that attend;
* rank correlation: Spearman's, over the means of chunks of 32 tokens;
* overlap: tokens kept by both over tokens kept by either, forced ones left out;
* recall: documents whose needle's value is kept whole. `lost`: those that dense attention kept and this did not.

The row "full prefill" keeps everything. Appends a record a length and row to flashprefill_quality.jsonl in the folder
of the machine, draws flashprefill_quality.png there, prints a table.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from documents import Case, make_case, score
from draw import found_in, picture, table

from sp.bench.record import append, make_record
from sp.config import check_fields, from_mapping
from sp.kernels.machine import machine_facts, machine_slug
from sp.pipeline.load import Loaded, embedded, load
from sp.scoring import Importance, chunk_means
from sp.selection import SELECTORS, SelectionRequest
from sp.studies.figures import save_png

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Grid:
    """See grid.yaml."""

    lengths: tuple[int, ...]
    alphas: tuple[float, ...]
    cases: int
    distractors: int
    keep_ratio: float
    scorer: str
    seed: int

    def __post_init__(self) -> None:
        check_fields(self, "grid")


def compared(case: Case, keep_ratio: float, found: Importance, dense: Importance) -> dict[str, float | None]:
    """Agreement of two scorings of one document."""
    selector = SELECTORS.build("top_chunks")
    mine, its = (
        selector.select(SelectionRequest(one.scores, case.prompt.mask("protected"), keep_ratio))
        for one in (found, dense)
    )
    chosen, others = mine.kept & ~mine.forced, its.kept & ~its.forced
    ranks = [np.argsort(np.argsort(chunk_means(one.scores, 32))) for one in (found, dense)]
    return {
        "density": float(np.mean(found.densities)) if found.densities else None,
        "overlap": float((chosen & others).sum() / max(1, (chosen | others).sum())),
        "rank_correlation": float(np.corrcoef(*ranks)[0, 1]),
        "found": float(mine.kept[case.value].all()),
        "found_dense": float(its.kept[case.value].all()),
        "score_s": None,
    }


def measured(drafter: Loaded, grid: Grid, case: Case) -> dict[str, dict[str, float | None]]:
    """One document by everything that is compared."""

    def timed(**options: Any) -> tuple[Importance, float]:
        start = time.perf_counter()
        return score(drafter, case.prompt, grid.scorer, **options), time.perf_counter() - start

    dense, seconds = timed()
    rows = {"dense": compared(case, grid.keep_ratio, dense, dense) | {"density": 1.0, "score_s": seconds}}
    rows["full prefill"] = rows["dense"] | {"density": None, "score_s": None, "found": 1.0}
    for alpha in grid.alphas:
        sparse, seconds = timed(sparse=f"alpha:{alpha}")
        rows[f"alpha {alpha:g}"] = compared(case, grid.keep_ratio, sparse, dense) | {"score_s": seconds}
    for name, control in case.controls.items():
        rows[name] = compared(case, grid.keep_ratio, control, dense)
    return {name: row | {"tokens": float(len(case.prompt))} for name, row in rows.items()}


def summary(rows: list[dict[str, float | None]]) -> dict[str, Any]:
    """Means over the documents, the median time, and counts."""

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows])

    means = {name: float(column(name).mean()) for name in ("overlap", "rank_correlation", "tokens")}
    density, seconds = (None if rows[0][name] is None else column(name) for name in ("density", "score_s"))
    return means | {
        "density": None if density is None else float(density.mean()),
        "lowest_rank_correlation": float(column("rank_correlation").min()),
        "score_s": None if seconds is None else float(np.median(seconds)),
        "cases": len(rows),
        "found": int(column("found").sum()),
        "lost": int((column("found_dense") > column("found")).sum()),
        "samples_s": [] if seconds is None else seconds.tolist(),
    }


def shared(grid: Grid) -> dict[str, Any]:
    """What the configurations of all rows share."""
    same = {field: getattr(grid, field) for field in ("keep_ratio", "distractors", "seed", "cases")}
    return {"model": embedded("drafter").name, **same}


def record(grid: Grid, tokens: int, name: str, metrics: dict[str, Any], device: Any) -> dict[str, Any]:
    """One row for the results."""
    drafted = name == "dense" or name.startswith("alpha")
    config = shared(grid) | {
        "row": name,
        "scorer": grid.scorer if drafted else name,
        "alpha": float(name.split()[1]) if name.startswith("alpha") else None,
        "prompt_tokens": tokens,
    }
    samples = metrics["samples_s"]
    kept = {name: value for name, value in metrics.items() if name != "samples_s"}
    return make_record("flashprefill_quality", config, kept, samples, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--grid", type=Path, default=HERE / "grid.yaml")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--draw", action="store_true", help="measure nothing; table and picture of what is recorded")
    arguments = parser.parse_args()
    grid = from_mapping(Grid, yaml.safe_load(arguments.grid.read_text()), str(arguments.grid))
    path = arguments.results / machine_slug(machine_facts(arguments.device)) / "flashprefill_quality.jsonl"
    if not arguments.draw:
        measure(grid, arguments.device, arguments.results)
    found = found_in(path, shared(grid), grid.lengths)
    save_png(picture(found, grid.keep_ratio), path.with_suffix(".png"))
    print(table(found))


def measure(grid: Grid, device: Any, results: Path) -> None:
    """Append the records of all lengths."""
    workers = min(16, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        making = {
            tokens: pool.map(
                partial(make_case, tokens, grid.distractors), [f"{grid.seed} {tokens} {i}" for i in range(grid.cases)]
            )
            for tokens in reversed(grid.lengths)  # the longest take longest to make
        }
        drafter = load(embedded("drafter"), extrapolate=True, device=device)
        for tokens in grid.lengths:
            rows = [measured(drafter, grid, case) for case in making[tokens]]
            for name in rows[0]:
                append(record(grid, tokens, name, summary([row[name] for row in rows]), device), results)
            print(f"{tokens} tokens are done", file=sys.stderr)


if __name__ == "__main__":
    main()
