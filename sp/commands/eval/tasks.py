"""sp eval with tasks that make prompts, and which of them tell methods apart."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sp.chat import Thinking
from sp.commands.asked import Devices, OnDevice, read_shares
from sp.commands.eval.run import (
    PERPLEXITY,
    Amount,
    Asked,
    Lengths,
    check_writable,
    gather,
    run_tasks,
    show,
    trained_for,
    write_page,
)
from sp.commands.shell.line import Part, opt
from sp.commands.shell.terminal import AsJson, print_json, print_table, read_text
from sp.commands.sweep import carry_on, expected
from sp.config import Tokens, summary_of
from sp.errors import ConfigError, unknown_name
from sp.named import read_strategies
from sp.session.options import ModelOptions

if TYPE_CHECKING:
    from sp.studies.board.entries import BoardEntry
    from sp.studies.board.verdict import Verdict


def tasks(
    asked: Annotated[Asked, Part(keep_ratio="0.05,0.1")],
    names: Annotated[
        str, opt("-t", "--tasks", help="Tasks, comma-separated; options as in 'needle[depth=0.5],vt'.")
    ] = "",
    lengths: Lengths = (8192,),
    n: Amount = 4,
    listed: Annotated[bool, opt("--list", help="List the tasks there are, and run none.")] = False,
) -> None:
    """Run any tasks by name, every strategy beside the full prefill and the controls.

    In an option of a scorer, {task} stands for the name of each task.

    Examples
    --------
      sp eval tasks --list
      sp eval tasks -t 'needle,vt[shots=0]' -p 8k,32k -n 100 --scorer 'tail[queries=24],lookahead' --keep-ratio 0.05
      sp eval tasks -t vt,cwe --scorer 'retrieval_heads[map=heads-{task}.json]' --out rows.jsonl
    """
    from sp.evals import TASKS
    from sp.evals.run import label

    if listed:
        show_list(asked.as_json, asked.wide)
        return
    if not names:
        raise ConfigError("name tasks in --tasks, such as -t needle,vt; sp eval tasks --list shows all")
    chosen = read_strategies(names, TASKS, "--tasks", {"seed": asked.seed})
    run_tasks(chosen, lengths, n, asked, name=lambda task: label(TASKS, task))


def needle(
    asked: Annotated[Asked, Part(keep_ratio="0.05,0.1")],
    lengths: Lengths = (2048, 4096),
    depths: Annotated[str, opt(help="Depths, such as 0,0.5,1 or 0..1/11; random if left out.")] = "",
    n: Amount = 4,
    mode: Annotated[str, opt(help="single, multikey, multivalue, multiquery; comma-separated.")] = "single",
    filler: Annotated[str, opt(help="Haystack: grammar, noise, sample or needles.")] = "grammar",
    value: Annotated[str, opt(help="Values: number, word or uuid.")] = "number",
    phrasing: Annotated[str, opt(help="any, or ruler.")] = "any",
    no_shared_ngrams: Annotated[
        int, opt(least=0, help="Forbid runs of so many words in both question and needle, the key aside.")
    ] = 0,
) -> None:
    """Hide facts in a long text and ask for them: lengths x depths, by strategy.

    Models do not think before they answer, unless --thinking says so, which makes answers 1,024 tokens longer.

    Examples
    --------
      sp eval needle
      sp eval needle -p 8k,32k,128k --depths 0..1/11 -n 5 --scorer tail,lookahead --keep-ratio 0.05 --out needle.jsonl
      sp eval needle --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking on -n 10
      sp eval needle --mode multivalue,multiquery --selector 'sentence[neighbours=0]' --no-shared-ngrams 1
    """
    from sp.evals import TASKS

    places: list[float | None] = [*read_shares(depths, "--depths")] if depths else [None]
    common = {"filler": filler, "value": value, "phrasing": phrasing, "no_shared_ngrams": no_shared_ngrams}
    modes = {name.removeprefix("needle_"): name for name in TASKS if name.startswith("needle_")} | {"single": "needle"}
    tasks = []
    for name in mode.split(","):
        if name not in modes:
            raise unknown_name("mode", name, modes)
        tasks += [TASKS.build(modes[name], common | {"depth": place, "seed": asked.seed}) for place in places]
    run_tasks(tasks, lengths, n, asked)


def ruler(
    asked: Asked,
    tasks: Annotated[str, opt("-t", "--tasks", help="Tasks, comma-separated; all 13 if left out.")] = "",
    files: Annotated[
        list[Path] | None, opt("--file", help="Prompts RULER's own scripts wrote, instead; repeatable.")
    ] = None,
    lengths: Lengths = (4096,),
    n: Amount = 4,
    shots: Annotated[bool, opt(help="Worked examples in vt and cwe, as RULER has.")] = True,
) -> None:
    """Run RULER's 13 tasks: the benchmark's templates, own text where it needs outside data (tasks ...-synth).

    Examples
    --------
      sp eval ruler -p 4k,8k -n 10 --keep-ratio 0.1,0.2
      sp eval ruler -t vt,fwe --scorer tail,uniform
      sp eval ruler --file data/niah_single_2/validation.jsonl -n 100 --target target.gguf --drafter drafter.gguf
    """
    from sp.evals import TASKS
    from sp.evals.formats.records import FileTask
    from sp.evals.formats.ruler import RulerFile

    if files:
        if tasks:
            raise ConfigError("give either --tasks or --file")
        run_tasks([RulerFile(str(path)) for path in files], [0], n, asked)
        return
    known = [name for name in TASKS if not (name.startswith("needle") or issubclass(TASKS.class_of(name), FileTask))]
    chosen = tasks.split(",") if tasks else [name for name in known if TASKS.class_of(name).suite == "ruler"]
    options = {"seed": asked.seed, "shots": int(shots)}
    built = []
    for name in chosen:
        if name not in known:
            raise unknown_name("task", name, known)
        own = {field.name for field in dataclasses.fields(TASKS.class_of(name))}  # type: ignore[arg-type]
        built.append(TASKS.build(name, {key: value for key, value in options.items() if key in own}))
    run_tasks(built, lengths, n, asked)


def show_list(as_json: bool, wide: bool = False) -> None:
    """Every task with its suite and the first sentence of its description."""
    from sp.evals import TASKS

    known = {name: TASKS.class_of(name) for name in TASKS}
    lines = [{"task": name, "suite": one.suite, "description": summary_of(one)} for name, one in known.items()]
    if as_json:
        print_json({"tasks": lines})
    else:
        print_table(("task", "suite", ""), [list(line.values()) for line in lines], "table", 3, wide=wide)


def ppl(
    asked: Annotated[Asked, Part(keep_ratio="0.1,0.3,0.5")],
    text: Annotated[Path | None, opt(help="UTF-8 text to read; generated prose if left out.")] = None,
    lengths: Lengths = (2048,),
    n: Amount = 4,
    continuation: Annotated[Tokens, opt(least=1, help="Tokens predicted after each passage.")] = 64,
) -> None:
    """Predict the text behind a compressed passage: perplexity, and divergence from the full prefill's predictions.

    Needs real language models to mean something; the embedded pair only looks things up.

    Examples
    --------
      sp eval ppl --text book.txt -p 8k,32k -n 8 --keep-ratio 0.05,0.1,0.3 --target target.gguf --drafter drafter.gguf
    """
    from sp.evals.ppl import generated_text, passages, perplexity
    from sp.evals.run import check_lengths, counter
    from sp.evals.summary import summarise_perplexity
    from sp.prompt import Prompt
    from sp.session.decision import check_context
    from sp.studies.pages.study_page import PREDICTED, lines_page

    if asked.thinking != Thinking("off"):
        raise ConfigError("sp eval ppl reads plain text, and no chat that asks for thinking; leave it out")
    cells = asked.cells()
    check_writable(asked.out)
    written = read_text(text, "--text") if text else None
    pipeline = asked.open(cells)
    check_lengths(pipeline, lengths)
    tokenizer, found = pipeline.target.tokenizer, []
    for tokens in lengths:
        source = written or generated_text(n * (tokens + continuation), counter(tokenizer), asked.seed)
        made = passages(source, tokens, continuation, n, tokenizer)
        if made:  # told before anything is read
            check_context(pipeline.target, len(pipeline.tokenise(Prompt(made[0].context))), continuation)
        found += made
    rows = gather(partial(perplexity, pipeline, found, cells), len(found) * (len(cells) + 1), asked.out)
    lines = summarise_perplexity(rows)
    if asked.out:
        write_page(asked.out, lines_page(f"sp eval ppl: {asked.out.name}", lines, PREDICTED, trained_for(pipeline)))
    show(lines, PERPLEXITY, asked, pipeline)


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
    models: Annotated[ModelOptions, Part("target_rope drafter_rope precision drafter_precision")],
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
    seed: Annotated[int, opt(least=0, help="Of the examples and of the random control.")] = 0,
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
    from sp.studies.sweep.executor import read_gpus
    from sp.studies.sweep.sweep import Pair

    keeps = read_shares(keep_ratio, "--keep-ratio")
    if len(keeps) > 1:
        raise ConfigError(f"--keep-ratio takes one share here, e.g. 0.05, not {keep_ratio!r}")
    selecting = read_strategies(selector, SELECTORS, "--selector")
    if len(selecting) > 1:
        raise ConfigError(f"--selector takes one selector here, not {selector!r}")
    given = read_strategies(names, TASKS, "--tasks", {"seed": seed}) if names else []
    tasks, gpus = chosen_tasks(given, seed), read_gpus(devices) if devices else ()
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
        if plan.remaining:
            console.print(f"sp: {expected(plan, max(len(gpus), 1))}", highlight=False, soft_wrap=True)
        failures = carry_on(plan, open_pool(plan, gpus), console, lasting=out is not None)
        found = verdicts(plan, keeps[0])
    if as_json:
        print_json({"results": [as_record(one, n) for one in found], "failed": failures})
    else:
        show_verdicts(found, n, keeps[0])
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


def show_verdicts(verdicts: list[Verdict], n: int, keep: float) -> None:
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


def cell(entry: BoardEntry | None) -> str:
    """Accuracy in per cent over its interval; a dash where nothing was read."""
    if entry is None or entry.accuracy is None or entry.low is None or entry.high is None:
        return "-"
    return f"{100 * entry.accuracy:.0f}\n{100 * entry.low:.0f}-{100 * entry.high:.0f}"
