"""sp bench ttft and turn: time to the first token of runs, and of the turns of a conversation."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sp.commands.asked import KernelPath, Prompts, Results, Share, Synthetic, kernels_of, settled
from sp.commands.shell.line import Part, opt
from sp.commands.shell.terminal import check_folder, progress_bar, text_width
from sp.config import Tokens
from sp.errors import ConfigError, unknown_name
from sp.keywords import recorded
from sp.scoring.base import Sparse
from sp.session import ConversationOptions, RunOptions
from sp.session.device_memory import Size
from sp.session.options import ModelOptions, PlaceOptions

if TYPE_CHECKING:
    from sp.session import Pipeline

SparseWays = Annotated[
    tuple[Sparse, ...],
    opt(
        help="Which key blocks the drafter reads, comma-separated: off, alpha:0.1, blocks:64, sqrt:64, energy:0.9, or "
        "for random weights, which no threshold suits, density:0.05."
    ),
]
Budgets = Annotated[
    tuple[Literal["none"] | Size, ...],
    opt("--vram", help="Limits of device memory, comma-separated, e.g. none,23g; a full prefill has the first."),
]


def settings_of(
    ratios: Sequence[float], scorer: str, selector: str, sparse: Sequence[Sparse], common: RunOptions
) -> list[RunOptions]:
    """Options of compressed requests: every keep ratio below 1 with every scorer and way to attend."""

    from sp.named import read_strategies
    from sp.scoring import SCORERS
    from sp.selection import SELECTORS

    scorers = []
    for one in read_strategies(scorer, SCORERS, "--scorer"):
        ways = sparse if hasattr(one, "sparse") else ()
        scorers += [replace(one, sparse=how) for how in ways] or [one]  # type: ignore[type-var]
    (chosen,) = read_strategies(selector, SELECTORS, "--selector")
    compressed = [
        replace(common, selector=chosen, compress="always", keep_ratio=ratio, scorer=one)
        for one in scorers
        for ratio in dict.fromkeys(ratios)
        if ratio != 1
    ]
    if not compressed:
        raise ConfigError("every --keep-ratio is 1, which is the full prefill; give one below it")
    return compressed


def budgets_of(vram: Sequence[str | int]) -> list[int | None]:
    """Bytes of --vram; None where there is no limit."""
    return [None if isinstance(one, str) else one for one in vram] or [None]


MOST_TIMELINES = 4
TIMED = "keep_ratio scorer selector compress threshold sparse decode max_new_tokens seed"
"""Options of a run that a bench sets otherwise."""
MAIN = ("target reads", "scorer", "within", "tokens", "first token (s)", "against full")


def bench_ttft(
    models: ModelOptions,
    synthetic: Synthetic,
    run: Annotated[RunOptions, Part(TIMED)],
    place: Annotated[PlaceOptions, Part("vram break_even")],
    results: Results,
    prompts: Prompts = (4096, 8192, 16384),
    keep_ratio: Annotated[tuple[Share, ...], opt(help="Shares of the prompt the target reads, comma-separated.")] = (
        0.05,
    ),
    scorer: Annotated[str, opt(help="Scorers, comma-separated.")] = "auto",
    selector: Annotated[str, opt(help="How tokens are chosen from their importance.")] = "top_chunks",
    sparse: SparseWays = (),
    vram: Budgets = ("none",),
    new: Annotated[Tokens, opt("-n", "--new", least=1, help="Tokens decoded after the first is timed.")] = 32,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Requests a cell, after a warm-up.")] = 5,
    full_repeats: Annotated[
        int, opt(least=0, help="Full prefills a length, after a shorter one; 0 where they would take too long.")
    ] = 1,
    full_seconds: Annotated[
        float, opt(least=0, help="No further full prefill of a length once its repeats have taken so long.")
    ] = 60.0,
    path: KernelPath = "auto",
    resume: Annotated[bool, opt(help="Leave out what the records below --record hold already.")] = False,
    plots: Annotated[Path | None, opt(help="Draw stages and memory into this folder.")] = None,
) -> None:
    """Time whole requests, from text to the first token, compressed and by full prefill of the same prompt.

    Every length has its full prefill in the same run. Prompts are sentences of the embedded document. The first
    request of the process is told apart as cold, the first of every setting is not counted. Random weights attend to
    everything alike, so synthetic drafters are timed at a set density.

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

    check_folder(plots, "--plots")
    if resume and results.record is None:
        raise ConfigError("--resume reads what --record FOLDER holds; name that folder")
    budgets = budgets_of(vram)
    settings = settings_of(keep_ratio, scorer, selector, sparse, replace(run, max_new_tokens=new))
    where = pick_device(place.device)
    with kernels_of(path, where)[1]:
        pair = open_timed_pair(models, synthetic, place, budgets)
    if (most := pair.target.model.config.context - new) < 1:
        raise ConfigError(f"-n {new}: the target's context of {most + new} tokens has no room for a prompt besides")
    lengths = sorted({min(n, most) for n in prompts})
    if max(prompts) > most:
        print(f"sp: prompts longer than the target's context leaves are cut to {most:,} tokens", file=sys.stderr)
    taken, kernels = kernels_of(path, where)
    document, example = sample()
    maker = PromptMaker(document, example.question, example.needle, pair.target.tokenizer, pair.target.template)
    before = stored(results.record, where) if resume and results.record is not None else {}
    found: dict[str, dict[str, Any]] = {}
    memory: list[dict[str, Any]] = []

    def known(cell: RequestCell) -> Any:
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
            for item in (made, *more):
                results.keep(item)
    records = sorted(found.values(), key=lambda r: (r["config"]["prompt_tokens"], -r["config"]["keep_ratio"]))
    pictures = []
    if plots is not None:
        pictures.append(draw_stages(records, plots / "ttft_stages.png"))
        shown = [m for m in memory if m["config"]["prompt_tokens"] == lengths[-1]]
        pictures += [draw_memory(shown[:MOST_TIMELINES], plots / "ttft_memory.png")] if shown else []
    show(records, [str(picture) for picture in pictures], results)


def open_timed_pair(
    models: ModelOptions, synthetic: Synthetic, place: PlaceOptions, budgets: Sequence[int | None]
) -> Pipeline:
    """The pair, within the first budget, whose answers are as long as is asked; every budget can be."""
    from sp.bench.ttft import without_ends
    from sp.kernels.device import pick_device
    from sp.session import Pipeline
    from sp.session.loaded import default_drafter, sharing

    shapes, drafter = synthetic, models.drafter
    if (shapes.synthetic_target, drafter, shapes.synthetic_drafter) == (None, None, None):
        drafter = default_drafter(models.target)
    group = sharing(place.gpus, place.target_gpus, pick_device(place.device), budgets[0])
    heavy: dict[str, Any] = {
        "precision": models.precision,
        "rope": models.target_rope,
        "room": budgets[0],
        "group": group,
    }
    small: dict[str, Any] = {"precision": models.drafter_precision, "rope": models.drafter_rope, "extrapolate": True}
    pair = Pipeline.assemble(
        lambda at: open_model("target", models.target, shapes.synthetic_target, shapes.target_type, device=at, **heavy),
        lambda at: open_model("drafter", drafter, shapes.synthetic_drafter, shapes.drafter_type, device=at, **small),
        device=pick_device(place.device),
        vram=budgets[0],
        gpus=place.gpus,
    )
    if pair.target.model.cold is not None and len(budgets) > 1:
        raise ConfigError("experts wait in host memory as the first --vram asks; time one budget at a time")
    pair = replace(pair, target=without_ends(pair.target))
    for budget in budgets:
        pair.within(budget)  # one that cannot be is refused before anything is timed
    return settled(pair)


def open_model(role: str, file: Path | None, shape: str | None, file_type: str | None, **how: Any) -> Any:
    """A file, random weights in a shape, or the embedded model of a role; the rest as for `load`."""
    from sp.session import embedded, load, synthetic

    if file is not None and shape is not None:
        raise ConfigError(f"give either --{role} or --synthetic-{role}")
    return load(file or embedded(role), **how) if shape is None else synthetic(shape, file_type, **how)


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


def show(records: Sequence[Mapping[str, Any]], pictures: list[str], results: Results) -> None:
    """The table and the break-evens, or all of it as JSON."""
    from sp.session.measured import PLAIN_PRECISIONS, measured_break_evens
    from sp.studies.tables.ttft_table import cells_of, row_of, title_of

    rows, evens = [row_of(record) for record in records], measured_break_evens(records)
    more = {"break_even": [recorded(vars(even)) for even in evens], "pictures": pictures}
    if results.plain(rows, [record["samples"] for record in records], **more):
        return
    heads, cells, left = cells_of(rows)
    results.title(title_of(rows))
    results.table(heads, cells, left, MAIN)
    print()
    for even in evens:
        how = " ".join(f"{name} {value}" for name, value in even.drafting.items() if value is not None)
        where = f" within {even.vram}" if even.vram else ""
        how += "" if even.precisions == PLAIN_PRECISIONS else f" {' and '.join(even.precisions)}"
        line = f"keep {even.keep_ratio:g}{where} ({how}): {even.describe()}"
        print(f"- {line}" if results.output == "md" else fill(line, text_width()))
    for picture in pictures:
        print(picture)


TURN_MAIN = ("policy", "recall", "within", "transcript", "new", "p50 (s)", "p95 (s)", "read")


def bench_turn(
    models: ModelOptions,
    synthetic: Synthetic,
    run: Annotated[RunOptions, Part(TIMED)],
    memory: ConversationOptions,
    place: Annotated[PlaceOptions, Part("vram break_even gpus target_gpus")],
    results: Results,
    prompts: Prompts = (1 << 17,),
    new_tokens: Annotated[Tokens, opt(least=1, help="Tokens that a turn adds, its question among them.")] = 4096,
    keep_ratio: Annotated[float, opt(least=1e-6, most=1, help="Share of the new tokens the target reads.")] = 0.1,
    policies: Annotated[
        tuple[str, ...], opt(help="conversation, cold (all compressed anew), prefix (all that is new is read).")
    ] = ("conversation", "cold", "prefix"),
    scorer: Annotated[str, opt(help="How tokens get their importance.")] = "auto",
    selector: Annotated[str, opt(help="How tokens are chosen from their importance.")] = "top_chunks",
    sparse: SparseWays = (),
    vram: Budgets = ("none",),
    new: Annotated[Tokens, opt("-n", "--new", least=1, help="Tokens decoded after the first is timed.")] = 8,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Turns a policy, after a warm-up.")] = 20,
    path: KernelPath = "auto",
) -> None:
    """Time turns of a long chat, from its messages to the first token, by three policies that take turns.

    A policy reads the transcript once; then every turn goes back to its end and adds another text and question. The
    first turns are not counted. Within a limit of memory the policies come one after the other.

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
        raise ConfigError("give one --scorer and one --sparse; a policy is timed in one way")
    lengths, budgets, added = sorted(set(prompts)), budgets_of(vram), new_tokens
    where = pick_device(place.device)
    with kernels_of(path, where)[1]:
        pair = open_timed_pair(models, synthetic, place, budgets)
    if max(lengths) + added + new > (most := pair.target.model.config.context):
        raise ConfigError(f"-p {max(prompts)}: with {added:,} new tokens beyond the target's context of {most:,}")
    taken, kernels = kernels_of(path, where)
    document, example = sample()
    maker = TranscriptMaker(document, example.question, pair.target)
    records = []
    with kernels, progress_bar("measuring", len(lengths) * len(budgets) * len(policies) * repeats) as advance:
        bench = TurnBench(pair, maker, repeats, [*policies], lambda: advance(1))
        for timing in bench.run(lengths, added, settings[0], memory, budgets):
            records.append(make_record(**describe_turn(timing, pair, taken)))
            results.keep(records[-1])
    show_turns(records, results)


def show_turns(records: Sequence[Mapping[str, Any]], results: Results) -> None:
    """The table, or all of it as JSON."""
    from sp.studies.tables.turn_page import cells_of, row_of, title_of

    rows = [row_of(record) for record in records]
    if not results.plain(rows, [record["samples"] for record in records]):
        heads, cells, left = cells_of(rows)
        results.title(title_of(rows))
        results.table(heads, cells, left, TURN_MAIN)
