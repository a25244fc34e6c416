"""`sp eval discriminates`: whether tasks tell scorers apart, by five ways to read them."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sp.commands.asked import Devices, OnDevice, read_shares
from sp.commands.eval.run import Lengths, check_writable
from sp.commands.line import Part, opt
from sp.commands.sweep import carry_on, expected
from sp.commands.terminal import AsJson, print_json
from sp.errors import ConfigError
from sp.named import read_strategies
from sp.session.options import ModelOptions

if TYPE_CHECKING:
    from sp.studies.board.entries import Entry
    from sp.studies.board.verdict import Verdict

WIDTH = 80
LEGEND = """\
Right answers in per cent, Wilson's 95 % interval below, n = {n}. Discriminating:
full and oracle at least 90, lexical and bm25 at most 10, random at most {chance:g}.
Otherwise the verdict names what fails."""
CROWDED = """\
Note: at {tokens:,} tokens about {budget} are kept, {forced} of them whatever their score
(question, markup, the document's ends), so scorers choose little. Longer
prompts, a higher --keep-ratio or --selector 'top_chunks[sink=4 tail=0]' leave
them more."""


def discriminates(
    models: Annotated[ModelOptions, Part("target_rope drafter_rope math drafter_math")],
    names: Annotated[
        str, opt("-t", "--tasks", help="Tasks, as sp eval tasks has them; the suite unmatched if left out.")
    ] = "",
    lengths: Lengths = (8192, 32768),
    n: Annotated[int, opt("-n", "--n", least=1, help="Examples a task and length.")] = 100,
    keep_ratio: Annotated[str, opt("--keep-ratio", help="Share of the prompt the target reads.")] = "0.05",
    selector: Annotated[
        str, opt("--selector", help="Selector, options as in 'sentence[neighbours=0]'.")
    ] = "top_chunks",
    device: OnDevice = "auto",
    devices: Devices = "",
    seed: Annotated[int, opt(help="Of the examples and of the random control.")] = 0,
    out: Annotated[
        Path | None, opt(help="Rows as sp sweep writes them; what is there already is not run again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell whether tasks discriminate: words and chance must not solve them, full prefill and the evidence must.

    Examples
    --------
      sp eval discriminates --out discriminates.jsonl
      sp eval discriminates -t needle,'vt[shots=0]' -p 8k -n 20 --json
    """
    from sp.evals import TASKS
    from sp.selection import SELECTORS
    from sp.studies.board.verdict import chosen_tasks, plan_runs, verdicts
    from sp.studies.sweep.conduct import make_plan, open_pool
    from sp.studies.sweep.executor import read_cards
    from sp.studies.sweep.sweep import Pair

    keeps = read_shares(keep_ratio, "--keep-ratio")
    if len(keeps) > 1:
        raise ConfigError(f"--keep-ratio takes one share here, e.g. 0.05, not {keep_ratio!r}")
    selecting = read_strategies(selector, SELECTORS, "--selector")
    if len(selecting) > 1:
        raise ConfigError(f"--selector takes one selector here, not {selector!r}")
    given = read_strategies(names, TASKS, "--tasks", {"seed": seed}) if names else []
    tasks, cards = chosen_tasks(given, seed), read_cards(devices) if devices else ()
    with ExitStack() as stack:
        rows = out or Path(stack.enter_context(TemporaryDirectory())) / "rows.jsonl"
        sweep = plan_runs(
            tasks,
            lengths,
            n,
            keeps[0],
            Pair(models.target, models.drafter),
            selector=selecting[0],
            seed=seed,
            device=device,
        )
        plan = make_plan(sweep, file=rows)
        check_writable(out)
        console = Console(stderr=True)
        if plan.left:
            console.print(f"sp: {expected(plan, max(len(cards), 1))}", highlight=False, soft_wrap=True)
        failures = carry_on(plan, open_pool(plan, cards), console, lasting=out is not None)
        found = verdicts(plan, keeps[0])
    if as_json:
        print_json({"results": [as_record(one, n) for one in found], "failed": failures})
    else:
        show(found, n, keeps[0])
    for failure in failures:
        print(f"sp: failed: {failure}", file=sys.stderr)
    if failures:
        raise SystemExit(1)


def as_record(verdict: Verdict, asked: int) -> dict[str, Any]:
    """A verdict as plain values; a share that was not measured is None."""
    from sp.studies.board.verdict import bars

    record: dict[str, Any] = {
        "task": verdict.task, "tokens": verdict.tokens, "keep_ratio": verdict.keep, "n": asked,
        "discriminating": verdict.discriminating, "fails": list(verdict.fails),
    }  # fmt: skip
    for bar in bars(verdict.keep):
        entry = verdict.entries.get(bar.scorer)
        names = ("accuracy", "low", "high", "n", "not_run")
        record[bar.scorer] = {"bound": bar.bound, **{name: getattr(entry, name, None) for name in names}}
    return record


def show(verdicts: list[Verdict], n: int, keep: float) -> None:
    """A table of `WIDTH` columns, a row a task and length."""
    from sp.studies.board.verdict import ABOVE_CHANCE, bars

    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold", max_width=16)
    table.add_column("tokens", justify="right")
    for bar in bars(keep):
        table.add_column(bar.scorer, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold", max_width=20)
    for one in verdicts:
        told = "discriminating" if one.discriminating else f"not: {', '.join(one.fails)}"
        if not one.measured:
            told = "not measured"
        cells = [cell(one.entries.get(bar.scorer)) for bar in bars(keep)]
        table.add_row(escape(one.task), f"{one.tokens:,}", *cells, told)
    Console(highlight=False, width=WIDTH).print(table)
    print(fill(LEGEND.format(n=n, chance=100 * (keep + ABOVE_CHANCE)), WIDTH))
    most: dict[int, int] = {}
    for one in verdicts:
        if one.measured and one.crowded:
            most[one.tokens] = max(one.forced, most.get(one.tokens, 0))
    for tokens, forced in most.items():
        print(fill(CROWDED.format(tokens=tokens, forced=forced, budget=round(keep * tokens)), WIDTH))


def cell(entry: Entry | None) -> str:
    """Accuracy in per cent over its interval; a dash where nothing was read."""
    if entry is None or entry.accuracy is None or entry.low is None or entry.high is None:
        return "-"
    return f"{100 * entry.accuracy:.0f}\n{100 * entry.low:.0f}-{100 * entry.high:.0f}"
