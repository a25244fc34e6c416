"""`sp bench turn`: time to first token of a turn in a long chat, beside cold compression and a plain prefix cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from sp.commands.asked import KernelPath, Prompts, Results, Synthetic, kernels_of
from sp.commands.bench.ttft import TIMED, Budgets, SparseWays, budgets_of, open_timed_pair, settings_of
from sp.commands.line import Part, opt
from sp.commands.terminal import progress_bar
from sp.config import Tokens
from sp.errors import ConfigError, unknown_name
from sp.session import ConversationOptions, RunOptions
from sp.session.options import ModelOptions, PlaceOptions

MAIN = ("policy", "recall", "within", "transcript", "new", "p50 (s)", "p95 (s)", "read")


def bench_turn(
    models: ModelOptions,
    synthetic: Synthetic,
    run: Annotated[RunOptions, Part(TIMED)],
    memory: ConversationOptions,
    place: Annotated[PlaceOptions, Part("vram break_even cards target_cards")],
    results: Results,
    prompts: Prompts = (1 << 17,),
    new_tokens: Annotated[Tokens, opt(least=1, help="Tokens that a turn adds, its question among them.")] = 4096,
    keep_ratio: Annotated[float, opt(help="Share of the new tokens the target reads.")] = 0.1,
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
    if not policies:
        raise ConfigError(f"--policies needs at least one of {', '.join(POLICIES)}")
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
    show(records, results)


def show(records: Sequence[Mapping[str, Any]], results: Results) -> None:
    """The table, or all of it as JSON."""
    from sp.studies.tables.turn_page import cells_of, row_of, title_of

    rows = [row_of(record) for record in records]
    if not results.plain(rows, [record["samples"] for record in records]):
        heads, cells, left = cells_of(rows)
        results.title(title_of(rows))
        results.table(heads, cells, left, MAIN)
