"""`sp bench drafter`: how long a drafter takes to score prompts of several lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from sp.commands.asked import KernelPath, OnDevice, Prompts, Results, kernels_of
from sp.commands.bench.model import open_model
from sp.commands.bench.ttft import SparseWays
from sp.commands.line import opt
from sp.commands.terminal import Column, cells_of, progress_bar
from sp.errors import ConfigError
from sp.session.options import MathName

MAIN = ("model", "tokens", "attention", "density", "score (s)", "limit (s)")


def bench_drafter(
    results: Results,
    file: Annotated[
        Path | None, opt("-m", "--model", help="A GGUF file; the embedded drafter if nothing is named.")
    ] = None,
    synthetic: Annotated[
        str | None, opt(help="Random weights in a named shape instead of a file, e.g. qwen3-0.6b.")
    ] = None,
    type_: Annotated[str, opt("--type", help="File type of the random weights.")] = "bf16",
    prompts: Prompts = (8192,),
    sparse: SparseWays = (),
    layers: Annotated[int | None, opt(least=1, help="Run only so many layers.")] = None,
    cards: Annotated[
        int, opt(least=1, help="GPUs on which the drafter reads a prompt together, from the first on.")
    ] = 1,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples a test; of short ones more.")] = 5,
    device: OnDevice = "auto",
    path: KernelPath = "auto",
    math: Annotated[MathName, opt(help="What is multiplied where a prompt is read.")] = "bf16",
) -> None:
    """Time the tail scorer: seconds from ids to scores, stages, density, memory, and the limit.

    A model from a file reads the embedded document over and over, so that densities are those of text. Random weights
    attend to everything alike, so synthetic drafters read random tokens and are timed at a set density.

    Examples
    --------
      sp bench drafter --synthetic qwen3-0.6b -p 8k,32k,64k,128k,256k --sparse density:0.05
      sp bench drafter --synthetic qwen3-0.6b -p 128k --sparse density:0.05 --math auto
      sp bench drafter --synthetic qwen3-0.6b -p 128k,256k,512k --sparse blocks:64,sqrt:64,density:0.05
      sp bench drafter --synthetic qwen3-0.6b -p 128k,1m --sparse density:0.05 --cards 4
      sp bench drafter -m Qwen3-0.6B-BF16.gguf -p 131072 --sparse off,alpha:0.05,alpha:0.1,alpha:0.2 -o md
    """
    from sp.bench.drafter import Draft, describe, run_drafts
    from sp.bench.record import make_record
    from sp.gguf import GGUFFile, Tokenizer
    from sp.kernels.device import pick_device
    from sp.models import Cards, read_math
    from sp.models.network.arithmetic import scoring
    from sp.parallel.nccl import copies, group_of
    from sp.session.load import LONGEST_DRAFT, embedded
    from sp.studies.sample import sample

    if file is not None and synthetic is not None:
        raise ConfigError("give either a GGUF file or --synthetic with the name of a shape")
    common = {} if layers is None else {"depth": layers}
    drafts = [Draft(n, {"sparse": how, **common}) for n in prompts for how in sparse or ("off",)]
    where, asked = pick_device(device), read_math(math, "--math")
    named = file or (embedded("drafter") if synthetic is None else None)
    group = group_of(cards, where)
    with kernels_of(path, where)[1]:
        model, name, _ = open_model(named, synthetic, type_, where, asked)
        spread = None
        if group is not None:
            others = copies(group, lambda: open_model(named, synthetic, type_, where, asked)[0])
            spread = Cards(group, [model, *others])
    text = None if named is None else np.asarray(Tokenizer.from_gguf(GGUFFile.open(named)).encode(sample()[0]).ids)
    for one in [model] if spread is None else spread.models:
        one.arithmetic = scoring(one.arithmetic, where, one.config.head_dim)
        one.config = replace(one.config, context=max(one.config.context, LONGEST_DRAFT))
    timings, (taken, kernels) = [], kernels_of(path, where)
    with kernels, progress_bar("measuring", repeats * len(drafts)) as advance:
        for timing in run_drafts(model, drafts, repeats, lambda: advance(1), text, spread):
            timings.append(timing)
            if where == "cuda" and results.record is not None:
                tokens = "random" if text is None else "text"
                results.keep(make_record(**describe(timing, name, taken, tokens, model.arithmetic)))
    rows = [_row(timing, name, taken) for timing in timings]
    if not results.plain(rows, [timing.seconds for timing in timings]):
        print_rows(rows, results)


def _row(timing: Any, name: str, path: str) -> dict[str, Any]:
    metrics = timing.metrics()
    return {
        "model": name,
        "path": path,
        "cards": timing.cards,
        "prompt_tokens": timing.draft.tokens,
        "attention": timing.draft.attention,
        **{key: metrics[key] for key in ("score_s", "limit_s", "density", "peak_bytes", "weight_bytes")},
        **{f"{stage}_ms": ms for stage, ms in timing.stages.items()},
        **({"sum_ms": sum(timing.stages.values())} if timing.stages else {}),
    }


def print_rows(rows: list[dict[str, Any]], results: Results) -> None:
    """Readings, one a row; rates of a GPU have their stages besides."""
    stages = [key for key in rows[0] if key.endswith("_ms")]
    columns: list[Column] = [
        *((name, f"{{{key}}}") for name, key in (("model", "model"), ("path", "path"), ("tokens", "prompt_tokens"))),
        ("attention", "{attention}"),
        ("density", "{density:.1%}"),
        ("score (s)", "{score_s:.3f}"),
        ("limit (s)", lambda row: f"{row['limit_s']:.3f}" if row["limit_s"] else ""),
        ("peak memory", lambda row: f"{row['peak_bytes'] / 1e9:.2f} GB" if row["peak_bytes"] else ""),
        ("of it weights", lambda row: f"{row['weight_bytes'] / 1e9:.2f} GB" if row["weight_bytes"] else ""),
        *((f"{key.removesuffix('_ms').replace('_', '+')} (ms)", f"{{{key}:.1f}}") for key in stages),
    ]
    results.table(*cells_of(rows, columns), 2, MAIN)
