"""`sp bench turn`: time to first token of a turn in a long chat, beside cold compression and a plain prefix cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Annotated, Any

import typer

from sp.commands.bench.asked import asked_output, kernels_of
from sp.commands.bench.bench import lengths_of
from sp.commands.bench.bench_drafter import parts
from sp.commands.bench.bench_ttft import open_timed_pair
from sp.commands.bench.settings import budgets_of, settings_of
from sp.commands.open_pair import asked_maths, asked_ropes
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
    Selector,
    SyntheticDrafter,
    SyntheticTarget,
    Target,
    TargetMath,
    TargetRope,
    TargetType,
    tokens_option,
)
from sp.commands.tables import Wide, print_table
from sp.commands.terminal import AsJson, print_csv, print_json, progress_bar, text_width
from sp.errors import ConfigError, unknown_name

MAIN = ("policy", "recall", "within", "transcript", "new", "p50 (s)", "p95 (s)", "read")


def bench_turn(
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
    prompts: Annotated[
        str, typer.Option("-p", "--prompts", help="Lengths of the transcript, comma-separated.")
    ] = "128k",
    new_tokens: Annotated[str, typer.Option(help="Tokens that a turn adds, its question among them.")] = "4k",
    keep_ratio: Annotated[float, typer.Option(help="Share of the new tokens the target reads.")] = 0.1,
    policies: Annotated[
        str, typer.Option(help="conversation, cold (all compressed anew), prefix (all that is new is read).")
    ] = "conversation,cold,prefix",
    recall: Annotated[str, typer.Option(help="How what was left out comes back: auto, append, rewind, off.")] = "auto",
    keys: Annotated[str, typer.Option(help="Kept keys and values of the drafter: f16, q4_0 or f32.")] = "f16",
    scorer: Annotated[str, typer.Option(help="How tokens get their importance.")] = "auto",
    selector: Selector = "top_chunks",
    alpha: Annotated[str, typer.Option(help="FlashPrefill threshold; 'dense' reads all blocks.")] = "",
    density: Annotated[
        str, typer.Option(help="Share of blocks to read instead, for random weights, which no threshold suits.")
    ] = "",
    blocks: Annotated[
        str, typer.Option(help="Rule for how many blocks instead: constant:64, sqrt:64, energy:0.9.")
    ] = "",
    vram: Annotated[str, typer.Option(help="Limits of device memory, comma-separated, e.g. none,23g.")] = "none",
    kv: Cache = "f16",
    rotate: Rotate = None,
    new: Annotated[int, tokens_option("-n", "--new", least=1, help="Tokens decoded after the first is timed.")] = 8,
    repeats: Annotated[int, typer.Option("-r", "--repeats", min=1, help="Turns a policy, after a warm-up.")] = 20,
    device: OnDevice = "auto",
    path: KernelPath = "auto",
    record: RecordBelow = None,
    output: Output = "table",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Time turns of a long chat, from its messages to the first token, by three policies that take turns.

    A policy reads the transcript once; then every turn goes back to its end and adds another text and question. The
    first turns are not counted. Within a limit of memory the policies come one after the other.

    [bold]Examples[/bold]

      sp bench turn -p 2k --new-tokens 512 -r 5

      sp bench turn --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b -p 128k --density 0.05 \\
      --vram none,23g --keys q4_0 --record results
    """
    from sp.bench.record import append, make_record
    from sp.bench.turns.policies import POLICIES
    from sp.bench.turns.transcripts import TranscriptMaker
    from sp.bench.turns.turn import TurnBench, describe_turn
    from sp.config import from_mapping
    from sp.kernels.device import pick_device
    from sp.session import ConversationOptions
    from sp.studies.sample import sample

    output = asked_output(output, as_json, record, path)
    chosen = parts(policies)
    for name in chosen:
        if name not in POLICIES:
            raise unknown_name("policy", name, POLICIES)
    if not chosen:
        raise ConfigError(f"--policies needs at least one of {', '.join(POLICIES)}")
    memory = from_mapping(ConversationOptions, {"recall": recall, "keys": keys}, "sp bench turn")
    common = {"kv": kv, "rotate": rotate, "max_new_tokens": new}
    settings = settings_of(str(keep_ratio), scorer, selector, (alpha, density, blocks), common)
    if len(settings) > 1:
        raise ConfigError("give one --scorer and one --alpha, --density or --blocks; a policy is timed in one way")
    (added, *more), lengths = lengths_of(new_tokens, "--new-tokens"), sorted(set(lengths_of(prompts, "-p")))
    if more:
        raise ConfigError(f"--new-tokens {new_tokens}: give one number")
    budgets = budgets_of(vram)
    where, models = pick_device(device), asked_ropes(target_rope, drafter_rope) | asked_maths(math, drafter_math)
    with kernels_of(path, where)[1]:
        pair = open_timed_pair(
            (target, synthetic_target, target_type), (drafter, synthetic_drafter, drafter_type), models, where, budgets
        )
    if max(lengths) + added + new > (most := pair.target.model.config.context):
        raise ConfigError(f"-p {prompts}: with {added:,} new tokens beyond the target's context of {most:,}")
    taken, kernels = kernels_of(path, where)
    document, example = sample()
    maker = TranscriptMaker(document, example.question, pair.target)
    records = []
    with kernels, progress_bar("measuring", len(lengths) * len(budgets) * len(chosen) * repeats) as advance:
        bench = TurnBench(pair, maker, repeats, chosen, lambda: advance(1))
        for timing in bench.run(lengths, added, settings[0], memory, budgets):
            records.append(make_record(**describe_turn(timing, pair, taken)))
            if record is not None:
                append(records[-1], record)
    show(records, output, wide)


def show(records: Sequence[Mapping[str, Any]], output: str, wide: bool = False) -> None:
    """The table, or all of it as JSON."""
    from sp.studies.tables.turn_page import cells_of, row_of, title_of

    rows = [row_of(record) for record in records]
    if output == "json":
        print_json({"tests": [row | {"samples": r["samples"]} for row, r in zip(rows, records, strict=True)]})
    elif output == "csv":
        print_csv(rows)
    else:
        heads, cells, left = cells_of(rows)
        print((fill(title_of(rows), text_width()) if output == "table" else title_of(rows)) + "\n")
        print_table(heads, cells, output, left, main=MAIN, wide=wide)
