"""`sp bench drafter`: how long a drafter takes to score prompts of several lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sp.commands.bench.asked import asked_output, kernels_of
from sp.commands.bench.bench import lengths_of, open_model
from sp.commands.options import DraftingCards, KernelPath, ModelMath, Output, RecordBelow
from sp.commands.tables import Wide, print_table
from sp.commands.terminal import AsJson, print_csv, print_json, progress_bar
from sp.errors import ConfigError

MAIN = ("model", "tokens", "attention", "density", "score (s)", "limit (s)")


def bench_drafter(
    file: Annotated[
        Path | None, typer.Option("-m", "--model", help="A GGUF file; the embedded drafter if nothing is named.")
    ] = None,
    synthetic: Annotated[
        str | None, typer.Option(help="Random weights in a named shape instead of a file, e.g. qwen3-0.6b.")
    ] = None,
    type_: Annotated[str, typer.Option("--type", help="File type of the random weights.")] = "bf16",
    prompts: Annotated[str, typer.Option("-p", "--prompts", help="Prompt lengths, comma-separated.")] = "8k",
    alpha: Annotated[
        str, typer.Option(help="FlashPrefill thresholds, comma-separated; 'dense' reads all blocks.")
    ] = "",
    density: Annotated[
        str, typer.Option(help="Shares of blocks to read instead, for random weights, which no threshold suits.")
    ] = "",
    blocks: Annotated[
        str, typer.Option(help="Rules for how many blocks instead: constant:64, sqrt:64, energy:0.9.")
    ] = "",
    layers: Annotated[int | None, typer.Option(min=1, help="Run only so many layers.")] = None,
    cards: DraftingCards = 1,
    repeats: Annotated[int, typer.Option("-r", "--repeats", min=1, help="Samples a test; of short ones more.")] = 5,
    device: Annotated[str, typer.Option(help="auto (the GPU if there is one), cuda or cpu.")] = "auto",
    path: KernelPath = "auto",
    math: ModelMath = "bf16",
    record: RecordBelow = None,
    output: Output = "table",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Time the tail scorer: seconds from ids to scores, stages, density, memory, and the limit.

    A model from a file reads the embedded document over and over, so that densities are those of text. Random weights
    attend to everything alike, so synthetic drafters read random tokens and are timed at a set density.

    [bold]Examples[/bold]

      sp bench drafter --synthetic qwen3-0.6b -p 8k,32k,64k,128k,256k --density 0.05

      sp bench drafter --synthetic qwen3-0.6b -p 128k --density 0.05 --math auto

      sp bench drafter --synthetic qwen3-0.6b -p 128k,256k,512k --blocks constant:64,sqrt:64 --density 0.05

      sp bench drafter --synthetic qwen3-0.6b -p 128k,1m --density 0.05 --cards 4

      sp bench drafter -m Qwen3-0.6B-BF16.gguf -p 131072 --alpha dense,0.05,0.1,0.2 -o md
    """
    from sp.bench.drafter import Draft, describe, run_drafts
    from sp.bench.record import append, make_record
    from sp.gguf import GGUFFile, Tokenizer
    from sp.kernels.device import pick_device
    from sp.models import Cards, read_math
    from sp.models.arithmetic import scoring
    from sp.parallel.nccl import copies, group_of
    from sp.session.load import LONGEST_DRAFT, embedded
    from sp.studies.sample import sample

    output = asked_output(output, as_json, record, path)
    if file is not None and synthetic is not None:
        raise ConfigError("give either a GGUF file or --synthetic with the name of a shape")
    lengths = lengths_of(prompts, "-p")
    chosen = [
        attention_options(name, text)
        for name, given in (("alpha", alpha), ("density", density), ("blocks", blocks))
        for text in parts(given)
    ]
    common = {} if layers is None else {"depth": layers}
    drafts = [Draft(n, options | common) for n in lengths for options in chosen or [{}]]
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
            if record is not None and where == "cuda":
                append(
                    make_record(
                        **describe(timing, name, taken, "random" if text is None else "text", model.arithmetic)
                    ),
                    record,
                )
    rows = [_row(timing, name, taken) for timing in timings]
    if output == "json":
        print_json({"tests": [row | {"samples": t.seconds} for row, t in zip(rows, timings, strict=True)]})
    else:
        print_rows(rows, output, wide)


def parts(text: str) -> list[str]:
    """Items of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def attention_options(name: str, text: str) -> dict[str, Any]:
    """Scorer options of one item of --alpha, --density or --blocks."""
    if text == "dense":
        return {}
    if name == "blocks":
        return {"attention": "flashprefill", name: text}
    try:
        return {"attention": "flashprefill", name: float(text)}
    except ValueError:
        raise ConfigError(f"--{name} takes numbers or 'dense' with commas between them, not {text!r}") from None


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


def print_rows(rows: list[dict[str, Any]], output: str, wide: bool = False) -> None:
    """Readings, one a row; rates of a GPU have their stages besides."""
    if output == "csv":
        print_csv(rows)
        return
    stages = [key for key in rows[0] if key.endswith("_ms")]
    heads = [
        "model",
        "path",
        "tokens",
        "attention",
        "density",
        "score (s)",
        "limit (s)",
        "peak memory",
        "of it weights",
    ]
    heads += [stage.removesuffix("_ms").replace("_", "+") + " (ms)" for stage in stages]
    cells = [
        [
            row["model"],
            row["path"],
            str(row["prompt_tokens"]),
            row["attention"],
            f"{row['density']:.1%}",
            f"{row['score_s']:.3f}",
            f"{row['limit_s']:.3f}" if row["limit_s"] else "",
            f"{row['peak_bytes'] / 1e9:.2f} GB" if row["peak_bytes"] else "",
            f"{row['weight_bytes'] / 1e9:.2f} GB" if row["weight_bytes"] else "",
            *(f"{row[stage]:.1f}" for stage in stages),
        ]
        for row in rows
    ]
    print_table(heads, cells, output, 2, main=MAIN, wide=wide)
