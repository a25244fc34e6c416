"""The records behind the headline: one process, one pair, the longest prompts first that the machine's time must buy.

    python experiments/ttft_headline.py results [--device cuda] [--pair synthetic] [--more] [--shorter 1]

Appends `ttft` and `ttft_memory` records to results/<machine>/, each as soon as it is measured: full prefill and keep
ratio 0.05 of 32K, 64K and 128K tokens with no limit of device memory and within 23 GiB, 128K within 18 GiB, and the
controls at 32K. The drafter reads 5 % of its attention blocks, and in rows of their own as many as the embedded drafter
reads of text at alpha 0.1, which random weights cannot show. The first request of every row is told beside the others:
within a limit that is the one which makes room. With `--more` in their place other keep ratios, and short prompts for
the break-even; full prefills of lengths that results/<machine>/ttft.jsonl has of today's kernels are taken from there.
Draw and tabulate with `sp report`; `--shorter 64` is a rehearsal with prompts so much shorter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sp.bench.prompts import PromptMaker
from sp.bench.record import append, is_current, newest
from sp.bench.ttft import Bench, Cell, Request, records_of, requests_of, without_ends
from sp.kernels.machine import machine_facts, machine_slug
from sp.kernels.path import native_path
from sp.scoring import SCORERS
from sp.session import Pipeline, RunOptions, embedded, load, synthetic
from sp.session.device_memory import parse_bytes
from sp.studies.sample import sample

K = 1024
SPARSE = 0.05
READ = {32 * K: 0.33, 64 * K: 0.27, 128 * K: 0.24}
"""Density that the embedded drafter has on text at alpha 0.1, by prompt length; see flashprefill_quality.jsonl."""
CONTROLS = ("random", "lexical", "head_tail", "oracle")


@dataclass(frozen=True)
class Part:
    """One part of the plan: what is compressed how, within which budgets, and how often."""

    lengths: Sequence[int]
    keep_ratios: Sequence[float]
    budgets: Sequence[str | None] = (None,)
    scorers: Sequence[str] = ("tail",)
    densities: Sequence[float] = (SPARSE,)
    repeats: int = 5


HEADLINE = (
    *(Part((tokens,), (0.05,), densities=(SPARSE, read)) for tokens, read in READ.items()),
    Part((32 * K, 64 * K), (0.05,), ("23g",)),
    Part((128 * K,), (0.05,), ("23g", "18g"), densities=(SPARSE, READ[128 * K])),
    Part((32 * K,), (0.05,), scorers=CONTROLS),
)
MORE = (
    Part((32 * K,), (0.02, 0.1, 0.2), repeats=3), Part((2 * K, 4 * K, 8 * K), (0.05, 0.2), repeats=3),
    Part((512, 1 * K), (0.2,), repeats=3), Part((128 * K,), (0.1, 0.2), repeats=3),
)  # fmt: skip


def open_pair(name: str, device: str) -> Pipeline:
    """The pair; its target decodes past end tokens."""
    if name == "synthetic":
        pair = Pipeline.assemble(
            lambda at: synthetic("qwen3.6-27b", "q4_k_m", device=at),
            lambda at: synthetic("qwen3-0.6b", "bf16", extrapolate=True, device=at),
            device=device,  # type: ignore[arg-type]
        )
    else:
        pair = Pipeline.assemble(
            lambda at: load(embedded("target"), device=at),
            lambda at: load(embedded("drafter"), extrapolate=True, device=at),
            device=device,  # type: ignore[arg-type]
        )
    return replace(pair, target=without_ends(pair.target))


def settings_of(part: Part) -> list[RunOptions]:
    """Options of a part's requests: every keep ratio with every way to draft."""
    sparse = [SCORERS.build("tail", {"sparse": f"density:{d}"}) for d in part.densities]
    scorers = [one for name in part.scorers for one in (sparse if name == "tail" else [SCORERS.build(name)])]
    return [
        RunOptions(keep_ratio=keep, scorer=scorer, kv="q4_0", rotate=True, max_new_tokens=16)
        for scorer in scorers
        for keep in part.keep_ratios
    ]


def recorded(folder: Path, pair: Pipeline, path: str) -> dict[int, tuple[Request, ...]]:
    """Full prefills of this pair without a limit, by length, from this machine's newest records of today's kernels."""
    file = folder / machine_slug(machine_facts(pair.target.model.device)) / "ttft.jsonl"
    want = {"target": pair.target.path.name, "keep_ratio": 1.0, "vram": None, "path": path, "kv": "q4_0 rotated"}
    found = filter(is_current, newest(file)) if file.exists() else ()
    mine = [r for r in found if r["samples"] and all(r["config"].get(name) == value for name, value in want.items())]
    return {record["config"]["prompt_tokens"]: requests_of(record) for record in mine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pair", choices=("synthetic", "embedded"), default="synthetic")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--shorter", type=int, default=1)
    given = parser.parse_args()
    start = time.perf_counter()
    pair = open_pair(given.pair, given.device)
    on_device = pair.target.model.device == "cuda"
    path = native_path() if on_device else "numpy"
    document, example = sample()
    maker = PromptMaker(document, example.question, example.needle, pair.target.tokenizer, pair.target.template)
    wholes = recorded(given.results, pair, path) if given.more else {}

    def known(cell: Cell) -> tuple[Request, ...] | None:
        """Full prefills are measured once, in the first part that has their length."""
        return wholes.get(cell.tokens) if cell.full else None

    print(f"pair ready after {time.perf_counter() - start:.1f} s", flush=True)
    for number, part in enumerate(MORE if given.more else HEADLINE):
        settings = settings_of(part)
        budgets = [None if text is None or not on_device else parse_bytes(text) for text in part.budgets]
        bench = Bench(pair, maker, part.repeats, full_repeats=5, full_seconds=60.0, timelines=True)
        lengths = [max(256, length // given.shorter) for length in part.lengths]
        for timing in bench.run(lengths, settings, budgets, known, fresh=number == 0):
            made = records_of(timing, pair, path)
            for record in made:
                append(record, given.results)
            if timing.cell.full and timing.requests:
                wholes[timing.cell.tokens] = timing.requests
            config, metrics = made[0]["config"], made[0]["metrics"]
            took = f"{metrics['ttft_s']:.3f} s" if metrics["ttft_s"] else metrics["error"]
            how = f"{config['scorer'] or 'full'} {config['density'] or ''}"
            what = f"{config['prompt_tokens']:>7} keep {config['keep_ratio']:<4g} {how:10}"
            total = time.perf_counter() - start
            print(f"{total:6.1f} {what} {config['vram'] or '':4} {took} n={len(timing.requests)}", flush=True)


if __name__ == "__main__":
    main()
