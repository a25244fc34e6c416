"""`sp bench ttft`: time to the first token of runs; `sp bench turn`: that of turns of a conversation."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sp.commands.common import KernelPath, OutputOptions, Prompts, Share, Synthetic, freeze_loaded, kernels_of
from sp.commands.shell.parser import Adjusted, opt
from sp.commands.shell.terminal import progress_bar, text_width
from sp.config import Tokens
from sp.errors import ConfigError, unknown_name
from sp.keywords import recorded
from sp.scoring.sparse import Sparse
from sp.session import ConversationOptions, RunOptions
from sp.session.device_memory import Size
from sp.session.options import ModelOptions, PlaceOptions

if TYPE_CHECKING:
    from sp.session import Pipeline

SparseRules = Annotated[
    tuple[Sparse, ...],
    opt(
        help="Rules for the key blocks that the drafter reads, comma-separated: off, alpha:0.1, blocks:64, sqrt:64, "
        "energy:0.9; for random weights density:0.05, as thresholds need trained ones."
    ),
]
Budgets = Annotated[
    tuple[Literal["none"] | Size, ...],
    opt("--vram", help="Limits of GPU memory, comma-separated, e.g. none,23g; full prefills use the first."),
]


def settings_of(
    ratios: Sequence[float], scorer: str, selector: str, sparse: Sequence[Sparse], common: RunOptions
) -> list[RunOptions]:
    """Return options of compressed requests: every keep ratio below 1 with every scorer and sparse rule."""
    from sp.named import read_strategies
    from sp.scoring import SCORERS
    from sp.selection import SELECTORS

    scorers = []
    for strategy in read_strategies(scorer, SCORERS, "--scorer"):
        rules = sparse if hasattr(strategy, "sparse") else ()
        scorers += [replace(strategy, sparse=rule) for rule in rules] or [strategy]  # type: ignore[type-var]
    (chosen,) = read_strategies(selector, SELECTORS, "--selector")
    compressed = [
        replace(common, selector=chosen, compress="always", keep_ratio=ratio, scorer=strategy)
        for strategy in scorers
        for ratio in dict.fromkeys(ratios)
        if ratio != 1
    ]
    if not compressed:
        raise ConfigError("every --keep-ratio is 1, which is the full prefill; add one below 1")
    return compressed


def budgets_of(vram: Sequence[str | int]) -> list[int | None]:
    """Return the limits of --vram in bytes; None for no limit."""
    return [None if isinstance(limit, str) else limit for limit in vram] or [None]


MOST_TIMELINES = 4
TIMED = "keep_ratio scorer selector compress threshold sparse decode max_new_tokens seed"
"""Options of a run that the benchmark sets itself."""
MAIN = ("target reads", "scorer", "within", "tokens", "first token (s)", "against full")


def bench_ttft(
    models: ModelOptions,
    synthetic: Synthetic,
    run: Annotated[RunOptions, Adjusted(TIMED)],
    place: Annotated[PlaceOptions, Adjusted("vram break_even")],
    results: OutputOptions,
    prompts: Prompts = (4096, 8192, 16384),
    keep_ratio: Annotated[
        tuple[Share, ...], opt(help="Shares of the prompt that the target reads, comma-separated.")
    ] = (0.05,),
    scorer: Annotated[str, opt(help="Scorers, comma-separated.")] = "auto",
    selector: Annotated[str, opt(help="Selector of tokens.")] = "top_chunks",
    sparse: SparseRules = (),
    vram: Budgets = ("none",),
    new: Annotated[Tokens, opt("-n", "--new", least=1, help="Tokens to decode after the first one is timed.")] = 32,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Requests per cell, after a warm-up.")] = 5,
    full_repeats: Annotated[
        int, opt(least=0, help="Full prefills per length, after a shorter warm-up; 0 for none.")
    ] = 1,
    full_seconds: Annotated[
        float, opt(least=0, help="Stop repeating full prefills of a length after this many seconds.")
    ] = 60.0,
    path: KernelPath = "auto",
    resume: Annotated[bool, opt(help="Skip cells that the records below --record have already.")] = False,
    plots: Annotated[Path | None, opt(writes="folder", help="Draw stages and memory into this folder.")] = None,
) -> None:
    """Time requests from text to first token, compressed and by full prefill of the same prompt.

    Full prefills are timed in the same run, for every length. Prompts consist of sentences of the embedded document.
    The first request of the process is reported as cold; the first request of every setting is a warm-up. Random
    weights attend to all tokens equally, so synthetic drafters need a fixed density.

    Examples
    --------
      sp bench ttft -p 2k,4k --keep-ratio 0.2,0.1,0.05
      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 32k,64k,128k \\
      --sparse density:0.05 --record results --plots results/nvidia-h200
      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k \\
      --sparse density:0.05 --precision int8 --drafter-precision int8
      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k \\
      --sparse density:0.05 --gpus 2
      sp bench ttft --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k \\
      --sparse density:0.05 --gpus 4 --target-gpus 1
      sp bench ttft --synthetic-target qwen3.6-27b --target-rope yarn:4 --synthetic-drafter qwen3-0.6b -p 960k \\
      --keep-ratio 0.02 --sparse blocks:64 --full-repeats 0
    """
    from sp.bench.prompts import PromptMaker
    from sp.bench.ttft import Bench, RequestCell, config_of, records_of, requests_of
    from sp.kernels.device import pick_device
    from sp.studies.plots.ttft_plots import draw_memory, draw_stages
    from sp.studies.sample import sample

    if resume and results.record is None:
        raise ConfigError("--resume needs the folder of earlier records; add --record FOLDER")
    budgets = budgets_of(vram)
    settings = settings_of(keep_ratio, scorer, selector, sparse, replace(run, max_new_tokens=new))
    where = pick_device(place.device)
    with kernels_of(path, where)[1]:
        pair = open_timed_pair(models, synthetic, place, budgets)
    if (most := pair.target.model.config.context - new) < 1:
        raise ConfigError(f"-n {new}: the target's context of {most + new} tokens leaves none for a prompt; use fewer")
    lengths = sorted({min(n, most) for n in prompts})  # a set: several longer ones become the same length
    if max(prompts) > most:
        print(f"sp: prompts are limited to {most:,} tokens by the target's context", file=sys.stderr)
    kernel_path, kernels = kernels_of(path, where)
    document, example = sample()
    maker = PromptMaker(document, example.question, example.needle, pair.target.tokenizer, pair.target.template)
    before = stored(results.record, where) if resume and results.record is not None else {}
    by_config: dict[str, dict[str, Any]] = {}
    memory: list[dict[str, Any]] = []

    def known(cell: RequestCell) -> Any:
        key = config_key(config_of(cell, pair, kernel_path))
        if key not in before:
            return None
        by_config[key] = before[key]
        return requests_of(before[key])

    with (
        kernels,
        progress_bar("measuring", len(lengths) * (full_repeats + repeats * len(settings) * len(budgets))) as advance,
    ):
        for options in settings:
            pair.ready(options)  # before records are looked up: `auto` depends on the drafter's calibration
        bench = Bench(pair, maker, repeats, full_repeats, full_seconds, plots is not None, lambda: advance(1))
        for timing in bench.run(lengths, settings, budgets, known):
            times, *timelines = records_of(timing, pair, kernel_path)
            by_config[config_key(times["config"])] = times
            memory += timelines
            for record in (times, *timelines):
                results.append_record(record)
    records = sorted(by_config.values(), key=lambda r: (r["config"]["prompt_tokens"], -r["config"]["keep_ratio"]))
    pictures = []
    if plots is not None:
        pictures.append(draw_stages(records, plots / "ttft_stages.png"))
        longest = [m for m in memory if m["config"]["prompt_tokens"] == lengths[-1]]
        pictures += [draw_memory(longest[:MOST_TIMELINES], plots / "ttft_memory.png")] if longest else []
    show(records, [str(picture) for picture in pictures], results)


def open_timed_pair(
    models: ModelOptions, synthetic: Synthetic, place: PlaceOptions, budgets: Sequence[int | None]
) -> Pipeline:
    """Open the pair within the first budget, after a check of all budgets; its answers never end early."""
    from sp.bench.ttft import without_ends
    from sp.kernels.device import pick_device
    from sp.session import Pipeline
    from sp.session.loaded import default_drafter, sharing

    shapes, drafter = synthetic, models.drafter
    if (shapes.synthetic_target, drafter, shapes.synthetic_drafter) == (None, None, None):
        drafter = default_drafter(models.target)
    group = sharing(place.gpus, place.target_gpus, place.device, budgets[0])
    heavy: dict[str, Any] = {
        "precision": models.precision,
        "rope": models.target_rope,
        "room": budgets[0],
        "group": group,
    }
    small: dict[str, Any] = {"precision": models.drafter_precision, "rope": models.drafter_rope, "extrapolate": True}
    pair = Pipeline.assemble(
        lambda device: open_model(
            "target", models.target, shapes.synthetic_target, shapes.target_type, device=device, **heavy
        ),
        lambda device: open_model(
            "drafter", drafter, shapes.synthetic_drafter, shapes.drafter_type, device=device, **small
        ),
        device=pick_device(place.device),
        vram=budgets[0],
        gpus=place.gpus,
    )
    if pair.target.model.cold is not None and len(budgets) > 1:
        raise ConfigError(
            "within the first --vram experts are in host memory, and another limit would place them differently; "
            "pass a single limit"
        )
    pair = replace(pair, target=without_ends(pair.target))
    for budget in budgets:
        pair.within(budget)  # raises for one that is too small, before anything is timed
    return freeze_loaded(pair)


def open_model(role: str, file: Path | None, shape: str | None, file_type: str | None, **options: Any) -> Any:
    """Open a file, random weights in a shape, or the embedded model of a role; `options` as for `load`."""
    from sp.session import embedded, load, synthetic

    if file is not None and shape is not None:
        raise ConfigError(f"--{role} and --synthetic-{role} exclude each other; omit one")
    return load(file or embedded(role), **options) if shape is None else synthetic(shape, file_type, **options)


def config_key(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal configurations."""
    return json.dumps(config, sort_keys=True)


def stored(folder: Path, device: str) -> dict[str, dict[str, Any]]:
    """Return the records with times of this machine and the present kernels, by `config_key`."""
    from sp.bench.record import is_current, newest
    from sp.kernels.machine import machine_facts, machine_slug

    file = folder / machine_slug(machine_facts(device)) / "ttft.jsonl"
    records = newest(file) if file.exists() else []
    return {config_key(r["config"]): r for r in records if r["samples"] and is_current(r)}


def show(records: Sequence[Mapping[str, Any]], pictures: list[str], results: OutputOptions) -> None:
    """Print the table and the break-even lengths, or all of it as JSON."""
    from sp.session.measured import PLAIN_PRECISIONS, measured_break_evens
    from sp.studies.tables.ttft_table import cells_of, row_of, title_of

    rows, evens = [row_of(record) for record in records], measured_break_evens(records)
    more = {"break_even": [recorded(vars(even)) for even in evens], "pictures": pictures}
    if results.print_plain(rows, [record["samples"] for record in records], **more):
        return
    heads, cells, text_columns = cells_of(rows)
    results.print_title(title_of(rows))
    results.print_table(heads, cells, text_columns, MAIN)
    print()
    for even in evens:
        settings = " ".join(f"{name} {value}" for name, value in even.drafting.items() if value is not None)
        where = f" within {even.vram}" if even.vram else ""
        settings += "" if even.precisions == PLAIN_PRECISIONS else f" {' and '.join(even.precisions)}"
        line = f"keep {even.keep_ratio:g}{where} ({settings}): {even.describe()}"
        print(f"- {line}" if results.output == "md" else fill(line, text_width()))
    for picture in pictures:
        print(picture)


TURN_MAIN = ("policy", "recall", "within", "transcript", "new", "p50 (s)", "p95 (s)", "read")


def bench_turn(
    models: ModelOptions,
    synthetic: Synthetic,
    run: Annotated[RunOptions, Adjusted(TIMED)],
    memory: ConversationOptions,
    place: Annotated[PlaceOptions, Adjusted("vram break_even gpus target_gpus")],
    results: OutputOptions,
    prompts: Prompts = (1 << 17,),
    new_tokens: Annotated[Tokens, opt(least=1, help="Tokens that each turn adds, with its question.")] = 4096,
    keep_ratio: Annotated[float, opt(least=1e-6, most=1, help="Share of the new tokens that the target reads.")] = 0.1,
    policies: Annotated[
        tuple[str, ...],
        opt(help="conversation, cold (compress the whole transcript), prefix (read all new tokens)."),
    ] = ("conversation", "cold", "prefix"),
    scorer: Annotated[str, opt(help="Scorer of tokens.")] = "auto",
    selector: Annotated[str, opt(help="Selector of tokens.")] = "top_chunks",
    sparse: SparseRules = (),
    vram: Budgets = ("none",),
    new: Annotated[Tokens, opt("-n", "--new", least=1, help="Tokens to decode after the first one is timed.")] = 8,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Turns per policy, after a warm-up.")] = 20,
    path: KernelPath = "auto",
) -> None:
    """Time turns of a long chat from messages to first token, with three policies in alternation.

    Each policy reads the transcript once. Then every turn starts at the end of the transcript, and adds another text
    and question. The first turns are warm-ups. With a limit of memory the policies run one after the other.

    Examples
    --------
      sp bench turn -p 2k --new-tokens 512 -r 5
      sp bench turn --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k --sparse density:0.05 \\
      --vram none,23g --keys q4_0 --record results
    """
    from sp.bench.prompts import TranscriptMaker
    from sp.bench.record import make_record
    from sp.bench.turn import POLICIES, TurnBench, describe_turn
    from sp.kernels.device import pick_device
    from sp.studies.sample import sample

    for name in policies:
        if name not in POLICIES:
            raise unknown_name("policy", name, POLICIES)
    settings = settings_of((keep_ratio,), scorer, selector, sparse, replace(run, max_new_tokens=new))
    if len(settings) > 1:
        raise ConfigError("sp bench turn takes one --scorer and one --sparse; omit the others")
    lengths, budgets, added = sorted(set(prompts)), budgets_of(vram), new_tokens
    where = pick_device(place.device)
    with kernels_of(path, where)[1]:
        pair = open_timed_pair(models, synthetic, place, budgets)
    if max(lengths) + added + new > (most := pair.target.model.config.context):
        raise ConfigError(
            f"-p {max(prompts)}: with {added + new:,} new tokens it exceeds the target's context of {most:,}; use fewer"
        )
    kernel_path, kernels = kernels_of(path, where)
    document, example = sample()
    maker = TranscriptMaker(document, example.question, pair.target)
    records = []
    with kernels, progress_bar("measuring", len(lengths) * len(budgets) * len(policies) * repeats) as advance:
        bench = TurnBench(pair, maker, repeats, [*policies], lambda: advance(1))
        for timing in bench.run(lengths, added, settings[0], memory, budgets):
            records.append(make_record(**describe_turn(timing, pair, kernel_path)))
            results.append_record(records[-1])
    show_turns(records, results)


def show_turns(records: Sequence[Mapping[str, Any]], results: OutputOptions) -> None:
    """Print the table, or all of it as JSON."""
    from sp.studies.tables.turn_page import cells_of, row_of, title_of

    rows = [row_of(record) for record in records]
    if not results.print_plain(rows, [record["samples"] for record in records]):
        heads, cells, text_columns = cells_of(rows)
        results.print_title(title_of(rows))
        results.print_table(heads, cells, text_columns, TURN_MAIN)
