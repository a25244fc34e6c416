"""What a sparse drafter costs in quality: FlashPrefill's alpha against dense attention, on the embedded drafter.

    python experiments/flashprefill_quality/quality.py results/<machine> [--grid grid.yaml] [--device cuda]

Every document is the paragraphs of the embedded sample in random order, again and again up to the length, with one
needle ("One of the special magic numbers for ... is: ...") that the question asks for, at a random depth inside a
paragraph, and distractors of the same form. Each is scored densely once and at every alpha, and compared:

* density: share of the causal blocks that attention read, mean of the layers that attend;
* rank correlation: Spearman's, over the means of chunks of 32 tokens;
* overlap: tokens kept by both over tokens kept by either, forced ones left out;
* recall: documents whose needle's value is kept whole. `lost`: those that dense attention kept and sparse did not.

Appends one record a length and alpha to flashprefill_quality.jsonl, draws flashprefill_quality.png, prints a table.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure

from sp.config import check_fields, from_mapping
from sp.models import load_model
from sp.pipeline.load import LONGEST_DRAFT, Loaded, embedded, load
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring import SCORERS, Importance, ScoreRequest, chunk_means
from sp.selection import SELECTORS, SelectionRequest
from sp.studies.plots import INK, save_png
from sp.studies.sample import sample

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "needle_pair"))
from words import ADJECTIVES, NOUNS, split_words  # noqa: E402

NEEDLE = "One of the special magic numbers for {key} is: {value}."
QUESTION = "What is the special magic number for {key} mentioned in the provided text?"


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


@dataclass(frozen=True)
class Case:
    """A tokenised prompt and the tokens of its needle's value."""

    prompt: TokenisedPrompt
    value: np.ndarray


def paragraphs() -> list[str]:
    """The sample document without its needle."""
    document, example = sample()
    return [part.strip() for part in document.replace(example.needle, "").split("\n\n") if part.strip()]


def make_case(drafter: Loaded, tokens: int, distractors: int, rng: random.Random) -> Case:
    """One document of about `tokens` tokens; its words are those that the pair was not trained on."""
    adjectives, nouns = split_words(ADJECTIVES)[1], split_words(NOUNS)[1]
    keys: list[str] = []
    while len(keys) < 1 + distractors:
        key = f"{rng.choice(adjectives)}-{rng.choice(nouns)}"
        if key not in keys:
            keys.append(key)
    values = [str(rng.randrange(10**6, 10**7)) for _ in keys]
    needles = [NEEDLE.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    filling, pool, used = [], paragraphs(), 0
    room = tokens - 40 * (1 + len(needles))
    while used < room:
        rng.shuffle(pool)
        for part in pool:
            if used < room:
                filling.append(part)
                used += len(drafter.tokenizer.encode(part).ids) + 1
    for needle in needles:
        at = rng.randrange(len(filling))
        ends = [match.end() for match in re.finditer(r"\. ", filling[at])] or [0]
        cut = rng.choice(ends)
        filling[at] = f"{filling[at][:cut]}{needle} {filling[at][cut:]}"
    question = QUESTION.format(key=keys[0])
    text = "\n\n".join(filling)
    prompt = Prompt.from_document(text, question, drafter.template, needle=needles[0]).tokenise(drafter.tokenizer)
    start = prompt.prompt.text.encode().index(needles[0].encode()) + needles[0].index(values[0])
    first, last = prompt.bytes[:, 0], prompt.bytes[:, 1]
    return Case(prompt, (last > start) & (first < start + len(values[0])))


def score(drafter: Loaded, case: Case, scorer: str, **options: Any) -> tuple[Importance, float]:
    """Scores, and the seconds they took."""
    prompt = case.prompt
    request = ScoreRequest(
        drafter.model, prompt.ids, np.arange(len(prompt)), prompt.mask("question"), prompt.mask("needle"),
        drafter.tokenizer.eos_ids,
    )  # fmt: skip
    start = time.perf_counter()
    return SCORERS.build(scorer, options).score(request), time.perf_counter() - start


def compared(case: Case, keep_ratio: float, found: Importance, dense: Importance) -> dict[str, float]:
    """Agreement of two scorings of one document."""
    selector = SELECTORS.build("top_chunks")
    mine, its = (
        selector.select(SelectionRequest(one.scores, case.prompt.mask("protected"), keep_ratio))
        for one in (found, dense)
    )
    chosen, others = mine.kept & ~mine.forced, its.kept & ~its.forced
    ranks = [np.argsort(np.argsort(chunk_means(one.scores, 32))) for one in (found, dense)]
    return {
        "density": float(np.mean(found.densities)) if found.densities else 1.0,
        "overlap": float((chosen & others).sum() / max(1, (chosen | others).sum())),
        "rank_correlation": float(np.corrcoef(*ranks)[0, 1]),
        "found": float(mine.kept[case.value].all()),
        "found_dense": float(its.kept[case.value].all()),
    }


def measure(drafter: Loaded, grid: Grid, tokens: int) -> dict[float | None, dict[str, Any]]:
    """Metrics of one length by alpha, None for dense."""
    gathered: dict[float | None, list[dict[str, float]]] = {}
    for number in range(grid.cases):
        case = make_case(drafter, tokens, grid.distractors, random.Random(f"{grid.seed} {tokens} {number}"))
        dense, seconds = score(drafter, case, grid.scorer)
        row = compared(case, grid.keep_ratio, dense, dense) | {"score_s": seconds, "tokens": len(case.prompt)}
        gathered.setdefault(None, []).append(row)
        for alpha in grid.alphas:
            sparse, seconds = score(drafter, case, grid.scorer, attention="flashprefill", alpha=alpha)
            row = compared(case, grid.keep_ratio, sparse, dense) | {"score_s": seconds, "tokens": len(case.prompt)}
            gathered.setdefault(alpha, []).append(row)
    return {alpha: summary(rows) for alpha, rows in gathered.items()}


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the documents, the median time, and counts."""

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows])

    means = {name: float(column(name).mean()) for name in ("density", "overlap", "rank_correlation", "tokens")}
    return means | {
        "lowest_rank_correlation": float(column("rank_correlation").min()),
        "score_s": float(np.median(column("score_s"))),
        "cases": len(rows),
        "found": int(column("found").sum()),
        "lost": int((column("found_dense") > column("found")).sum()),
        "samples_s": column("score_s").tolist(),
    }


def facts(device: str) -> dict[str, Any]:
    """What the figures depend on."""
    if device == "cuda":
        from sp.bench.record import commit, environment

        return environment() | {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    commit_ = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "gpu": None,
        "cpu": names[0] if names else platform.processor(),
        "cores": len(names),
        "numpy": np.__version__,
        "commit": commit_.stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def table(found: dict[int, dict[float | None, dict[str, Any]]]) -> str:
    """Markdown."""
    lines = [
        "| tokens | alpha | density | rank correlation (lowest) | overlap | needle kept | lost | seconds |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for by_alpha in found.values():
        for alpha, m in by_alpha.items():
            lines.append(
                f"| {m['tokens']:,.0f} | {'dense' if alpha is None else f'{alpha:g}'} | {m['density']:.1%} "
                f"| {m['rank_correlation']:.4f} ({m['lowest_rank_correlation']:.4f}) | {m['overlap']:.3f} "
                f"| {m['found']}/{m['cases']} | {m['lost']} | {m['score_s']:.2f} |"
            )
    return "\n".join(lines)


def picture(found: dict[int, dict[float | None, dict[str, Any]]], keep_ratio: float) -> Figure:
    """Density, rank correlation, overlap and recall over alpha, a line a length."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = {
        "density": "blocks read",
        "rank_correlation": "rank correlation with dense",
        "overlap": "overlap of kept tokens",
        "found": "needles kept",
    }
    axes = figure.subplots(1, len(panels))
    for shade, (tokens, by_alpha) in enumerate(found.items()):
        colour = (INK, "#1c7ed6", "#f08c00", "#2f9e44", "#9c36b5", "#e03131")[shade % 6]
        alphas = [alpha for alpha in by_alpha if alpha is not None]
        for panel, name in zip(axes, panels, strict=True):
            values = [by_alpha[a][name] / (by_alpha[a]["cases"] if name == "found" else 1) for a in alphas]
            panel.plot(alphas, values, marker="o", markersize=3, color=colour, label=f"{tokens:,} tokens")
            if name == "found":
                panel.axhline(by_alpha[None]["found"] / by_alpha[None]["cases"], color=colour, linewidth=0.7, ls=":")
    for panel, (name, title) in zip(axes, panels.items(), strict=True):
        panel.set_xscale("log")
        if name == "rank_correlation":  # it hardly falls
            lowest = min(m[name] for by_alpha in found.values() for m in by_alpha.values())
            panel.set_ylim(min(0.9, lowest), 1.005)
        else:
            panel.set_ylim(0, 1.05)
        panel.set_xlabel("alpha")
        panel.set_title(title, fontsize=10)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"FlashPrefill in the embedded drafter against dense attention; {keep_ratio:.0%} of the tokens kept"
    )
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the machine's results")
    parser.add_argument("--grid", type=Path, default=HERE / "grid.yaml")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    grid = from_mapping(Grid, yaml.safe_load(arguments.grid.read_text()), str(arguments.grid))
    drafter = load(embedded("drafter"), extrapolate=True)
    if arguments.device == "cuda":
        drafter = replace(drafter, model=load_model(embedded("drafter"), device="cuda", context=LONGEST_DRAFT))
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for tokens in grid.lengths:
        found[tokens] = measure(drafter, grid, tokens)
        with (arguments.out / "flashprefill_quality.jsonl").open("a") as file:
            for alpha, metrics in found[tokens].items():
                config = {"model": embedded("drafter").name, "alpha": alpha, "prompt_tokens": tokens}
                config |= {name: getattr(grid, name) for name in ("keep_ratio", "scorer", "distractors", "seed")}
                samples = metrics.pop("samples_s")
                record = {"bench": "flashprefill_quality", "config": config, "metrics": metrics, "samples": samples}
                file.write(json.dumps(record | facts(arguments.device)) + "\n")
        print(f"{tokens} tokens are done", file=sys.stderr)
    save_png(picture(found, grid.keep_ratio), arguments.out / "flashprefill_quality.png")
    print(table(found))


if __name__ == "__main__":
    main()
