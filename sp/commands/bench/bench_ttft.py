"""`sp bench ttft`: time to first token of whole requests, by stage, beside the full prefill of the same prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sp.commands.bench.asked import asked_output, kernels_of
from sp.commands.bench.bench import lengths_of
from sp.commands.bench.settings import budgets_of, settings_of
from sp.commands.open_pair import asked_maths, asked_ropes, settled
from sp.commands.options import (
    Cache,
    Drafter,
    DrafterMath,
    DrafterRope,
    DrafterType,
    KernelPath,
    OnDevice,
    Output,
    RecordBelow,
    Rotate,
    RunCards,
    Selector,
    SyntheticDrafter,
    SyntheticTarget,
    Target,
    TargetCards,
    TargetMath,
    TargetRope,
    TargetType,
    tokens_option,
)
from sp.commands.tables import Wide, print_table
from sp.commands.terminal import AsJson, check_folder, print_csv, print_json, progress_bar, text_width
from sp.errors import ConfigError

if TYPE_CHECKING:
    from sp.models import AskedScaling
    from sp.session import Pipeline

MOST_TIMELINES = 4
Asked = tuple[Path | None, str | None, str]
"""A model as it was named: a file, or a shape; and the file type of random weights."""


MAIN = ("target reads", "scorer", "within", "tokens", "first token (s)", "against full")


def bench_ttft(
    target: Target = None,
    synthetic_target: SyntheticTarget = None,
    target_type: TargetType = "q4_k_m",
    drafter: Drafter = None,
    synthetic_drafter: SyntheticDrafter = None,
    drafter_type: DrafterType = "bf16",
    target_rope: TargetRope = None,
    drafter_rope: DrafterRope = None,
    math: TargetMath = "bf16",
    drafter_math: DrafterMath = "bf16",
    prompts: Annotated[str, typer.Option("-p", "--prompts", help="Prompt lengths, comma-separated.")] = "4k,8k,16k",
    keep_ratio: Annotated[str, typer.Option(help="Shares of the prompt the target reads, comma-separated.")] = "0.05",
    scorer: Annotated[str, typer.Option(help="Scorers, comma-separated.")] = "auto",
    selector: Selector = "top_chunks",
    alpha: Annotated[
        str, typer.Option(help="FlashPrefill thresholds, comma-separated; 'dense' reads all blocks.")
    ] = "",
    density: Annotated[
        str, typer.Option(help="Shares of blocks to read instead, for random weights, which no threshold suits.")
    ] = "",
    blocks: Annotated[
        str, typer.Option(help="Rules for how many blocks instead: constant:64, sqrt:64, energy:0.9.")
    ] = "",
    vram: Annotated[
        str,
        typer.Option(help="Limits of device memory, comma-separated, e.g. none,23g; the full prefill has the first."),
    ] = "none",
    cards: RunCards = 1,
    target_cards: TargetCards = None,
    kv: Cache = "f16",
    rotate: Rotate = None,
    new: Annotated[int, tokens_option("-n", "--new", least=1, help="Tokens decoded after the first is timed.")] = 32,
    repeats: Annotated[int, typer.Option("-r", "--repeats", min=1, help="Requests a cell, after a warm-up.")] = 5,
    full_repeats: Annotated[
        int, typer.Option(min=0, help="Full prefills a length, after a shorter one; 0 where they would take too long.")
    ] = 1,
    full_seconds: Annotated[
        float, typer.Option(help="No further full prefill of a length once its repeats have taken so long.")
    ] = 60.0,
    device: OnDevice = "auto",
    path: KernelPath = "auto",
    record: RecordBelow = None,
    resume: Annotated[bool, typer.Option(help="Leave out what the records below --record hold already.")] = False,
    plots: Annotated[Path | None, typer.Option(help="Draw stages and memory into this folder.")] = None,
    output: Output = "table",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Time whole requests, from text to the first token, compressed and by full prefill of the same prompt.

    Every length has its full prefill in the same run. Prompts are sentences of the embedded document. The first
    request of the process is told apart as cold, the first of every setting is not counted. Random weights attend to
    everything alike, so synthetic drafters are timed at a set density.

    [bold]Examples[/bold]

      sp bench ttft -p 2k,4k --keep-ratio 0.2,0.1,0.05

      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 32k,64k,128k --density 0.05 \\
      --record results --plots results/nvidia-h200

      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k --density 0.05 \\
      --math int8 --drafter-math int8

      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k --density 0.05 --cards 2

      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k --density 0.05 --cards 4 \\
      --target-cards 1

      sp bench ttft --synthetic-target qwen3.6-27b --target-rope yarn:4 --synthetic-drafter qwen3-0.6b -p 960k \\
      --keep-ratio 0.02 --blocks constant:64 --full-repeats 0
    """
    from sp.bench.prompts import PromptMaker
    from sp.bench.record import append
    from sp.bench.ttft import Bench, Cell, config_of, records_of, requests_of
    from sp.kernels.device import pick_device
    from sp.studies.plots.ttft_plots import draw_memory, draw_stages
    from sp.studies.sample import sample

    output = asked_output(output, as_json, record, path)
    check_folder(plots, "--plots")
    if resume and record is None:
        raise ConfigError("--resume reads what --record FOLDER holds; name that folder")
    common = {"kv": kv, "rotate": rotate, "max_new_tokens": new}
    budgets = budgets_of(vram)
    settings = settings_of(keep_ratio, scorer, selector, (alpha, density, blocks), common)
    asked = lengths_of(prompts, "-p")
    where, models = pick_device(device), asked_ropes(target_rope, drafter_rope) | asked_maths(math, drafter_math)
    with kernels_of(path, where)[1]:
        named = (target, synthetic_target, target_type), (drafter, synthetic_drafter, drafter_type)
        pair = open_timed_pair(*named, models, where, budgets, cards, target_cards)
    if (most := pair.target.model.config.context - new) < 1:
        raise ConfigError(f"-n {new}: the target's context of {most + new} tokens has no room for a prompt besides")
    lengths = sorted({min(n, most) for n in asked})
    if max(asked) > most:
        print(f"sp: prompts longer than the target's context leaves are cut to {most:,} tokens", file=sys.stderr)
    taken, kernels = kernels_of(path, where)
    document, example = sample()
    maker = PromptMaker(document, example.question, example.needle, pair.target.tokenizer, pair.target.template)
    before = stored(record, where) if resume and record is not None else {}
    found: dict[str, dict[str, Any]] = {}
    memory: list[dict[str, Any]] = []

    def known(cell: Cell) -> Any:
        key = config_key(config_of(cell, pair, taken))
        if key not in before:
            return None
        found[key] = before[key]
        return requests_of(before[key])

    with (
        kernels,
        progress_bar("measuring", len(lengths) * (full_repeats + repeats * len(settings) * len(budgets))) as advance,
    ):
        for options in settings:
            pair.ready(options)  # before records are looked up: what `auto` takes goes by the drafter's calibration
        bench = Bench(pair, maker, repeats, full_repeats, full_seconds, plots is not None, lambda: advance(1))
        for timing in bench.run(lengths, settings, budgets, known):
            made, *more = records_of(timing, pair, taken)
            found[config_key(made["config"])] = made
            memory += more
            for item in (made, *more) if record is not None else ():
                append(item, record or Path())
    records = sorted(found.values(), key=lambda r: (r["config"]["prompt_tokens"], -r["config"]["keep_ratio"]))
    pictures = []
    if plots is not None:
        pictures.append(draw_stages(records, plots / "ttft_stages.png"))
        shown = [m for m in memory if m["config"]["prompt_tokens"] == lengths[-1]]
        pictures += [draw_memory(shown[:MOST_TIMELINES], plots / "ttft_memory.png")] if shown else []
    show(records, [str(picture) for picture in pictures], output, wide)


def open_timed_pair(
    target: Asked,
    drafter: Asked,
    asked: Mapping[str, Any],
    device: Any,
    budgets: Sequence[int | None],
    cards: int = 1,
    target_cards: int | None = None,
) -> Pipeline:
    """The pair, within the first budget, whose answers are as long as is asked; every budget can be.

    `asked` is what `asked_ropes` and `asked_maths` found; cards are as for `Pipeline.open`.
    """
    from sp.bench.request import without_ends
    from sp.session import Pipeline
    from sp.session.pair import default_drafter, sharing

    if (target[1], *drafter[:2]) == (None, None, None):
        drafter = (default_drafter(target[0]), *drafter[1:])
    group = sharing(cards, target_cards, device, budgets[0])
    pair = Pipeline.assemble(
        lambda at: open_model(*target, "target", at, asked["math"], asked.get("target_rope"), budgets[0], group),
        lambda at: open_model(*drafter, "drafter", at, asked["drafter_math"], asked.get("drafter_rope")),
        device=device,
        vram=budgets[0],
        cards=cards,
    )
    if pair.target.model.cold is not None and len(budgets) > 1:
        raise ConfigError("experts wait in host memory as the first --vram asks; time one budget at a time")
    pair = replace(pair, target=without_ends(pair.target))
    for budget in budgets:
        pair.within(budget)  # one that cannot be is refused before anything is timed
    return settled(pair)


def open_model(
    file: Path | None,
    shape: str | None,
    file_type: str,
    role: str,
    device: Any,
    math: str,
    rope: AskedScaling | None = None,
    room: int | None = None,
    group: Any = None,
) -> Any:
    """A file, random weights in a shape, or the embedded model of a role; the last two as for `sp.session.load`."""
    from sp.session import embedded, load, synthetic

    if file is not None and shape is not None:
        raise ConfigError(f"give either --{role} or --synthetic-{role}")
    given: dict[str, Any] = {
        "extrapolate": role == "drafter",
        "device": device,
        "rope": rope,
        "room": room,
        "group": group,
        "math": math,
    }
    if shape is not None:
        return synthetic(shape, file_type, **given)
    return load(file or embedded(role), **given)


def config_key(config: Mapping[str, Any]) -> str:
    """Equal for equal configurations."""
    return json.dumps(config, sort_keys=True)


def stored(folder: Path, device: str) -> dict[str, dict[str, Any]]:
    """Records of this machine and of today's kernels that hold times, by configuration."""
    from sp.bench.record import is_current, newest
    from sp.kernels.machine import machine_facts, machine_slug

    file = folder / machine_slug(machine_facts(device)) / "ttft.jsonl"
    records = newest(file) if file.exists() else []
    return {config_key(r["config"]): r for r in records if r["samples"] and is_current(r)}


def show(records: Sequence[Mapping[str, Any]], pictures: list[str], output: str, wide: bool = False) -> None:
    """The table and the break-evens, or all of it as JSON."""
    from sp.session.measured import PLAIN_MATHS, measured_break_evens
    from sp.studies.tables.ttft_table import cells_of, row_of, title_of

    rows, evens = [row_of(record) for record in records], measured_break_evens(records)
    if output == "json":
        tests = [row | {"samples": record["samples"]} for row, record in zip(rows, records, strict=True)]
        print_json({"tests": tests, "break_even": [vars(even) for even in evens], "pictures": pictures})
    elif output == "csv":
        print_csv(rows)
    else:
        heads, cells, left = cells_of(rows)
        print((fill(title_of(rows), text_width()) if output == "table" else title_of(rows)) + "\n")
        print_table(heads, cells, output, left, main=MAIN, wide=wide)
        print()
        for even in evens:
            how = " ".join(f"{name} {value}" for name, value in even.drafting.items() if value is not None)
            where = f" within {even.vram}" if even.vram else ""
            how += "" if even.maths == PLAIN_MATHS else f" math {' and '.join(even.maths)}"
            line = f"keep {even.keep_ratio:g}{where} ({how}): {even.describe()}"
            print(f"- {line}" if output == "md" else fill(line, text_width()))
        for picture in pictures:
            print(picture)
