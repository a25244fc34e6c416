"""`sp eval` of tasks that generate prompts, and whether these tasks discriminate between methods."""

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
from sp.commands.common import Devices, OnDevice, read_shares
from sp.commands.eval.run import (
    PERPLEXITY,
    Amount,
    EvalOptions,
    Lengths,
    gather,
    run_tasks,
    show,
    trained_for,
    write_page,
)
from sp.commands.shell.parser import Adjusted, opt
from sp.commands.shell.terminal import AsJson, print_json, print_table, read_text
from sp.commands.sweep import do_runs, expected_time
from sp.config import Tokens, summary_of
from sp.errors import ConfigError, unknown_name
from sp.named import read_strategies
from sp.session.options import ModelOptions

if TYPE_CHECKING:
    from sp.studies.board.entries import BoardEntry
    from sp.studies.board.verdict import Verdict


def tasks(
    evaluation: Annotated[EvalOptions, Adjusted(keep_ratio="0.05,0.1")],
    names: Annotated[
        str, opt("-t", "--tasks", help="Tasks, comma-separated; options as in 'needle[depth=0.5],vt'.")
    ] = "",
    lengths: Lengths = (8192,),
    n: Amount = 4,
    list_tasks: Annotated[bool, opt("--list", help="List all tasks, and run none.")] = False,
) -> None:
    """Evaluate strategies on tasks by name, next to full prefill and controls.

    In an option of a scorer, {task} is replaced by the name of each task.

    Examples
    --------
      sp eval tasks --list
      sp eval tasks -t 'needle,vt[shots=0]' -p 8k,32k -n 100 --scorer 'tail[queries=24],lookahead' --keep-ratio 0.05
      sp eval tasks -t vt,cwe --scorer 'retrieval_heads[map=heads-{task}.json]' --out rows.jsonl
    """
    from sp.evals import TASKS
    from sp.evals.run import label

    if list_tasks:
        show_list(evaluation.as_json, evaluation.wide)
        return
    if not names:
        raise ConfigError("no task is named; pass some, such as -t needle,vt (sp eval tasks --list shows all)")
    chosen = read_strategies(names, TASKS, "--tasks", {"seed": evaluation.seed})
    run_tasks(chosen, lengths, n, evaluation, name=lambda task: label(TASKS, task))


def needle(
    evaluation: Annotated[EvalOptions, Adjusted(keep_ratio="0.05,0.1")],
    lengths: Lengths = (2048, 4096),
    depths: Annotated[str, opt(help="Depths of the needle, e.g. 0,0.5,1 or 0..1/11; random if omitted.")] = "",
    n: Amount = 4,
    mode: Annotated[
        str, opt(help="Kinds of needles: single, multikey, multivalue, multiquery; comma-separated.")
    ] = "single",
    filler: Annotated[str, opt(help="Haystack: grammar, noise, sample or needles.")] = "grammar",
    value: Annotated[str, opt(help="Values of the needles: number, word or uuid.")] = "number",
    phrasing: Annotated[str, opt(help="Wording of needles and questions: any, or ruler.")] = "any",
    no_shared_ngrams: Annotated[
        int, opt(least=0, help="Forbid common runs of this many words in question and needle, without the key.")
    ] = 0,
) -> None:
    """Hide facts in a long text and ask for them, at several lengths and depths.

    Models do not think before they answer unless --thinking is on, which allows 1,024 more tokens per answer.

    Examples
    --------
      sp eval needle
      sp eval needle -p 8k,32k,128k --depths 0..1/11 -n 5 --scorer tail,lookahead --keep-ratio 0.05 --out needle.jsonl
      sp eval needle --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking on -n 10
      sp eval needle --mode multivalue,multiquery --selector 'sentence[neighbours=0]' --no-shared-ngrams 1
    """
    from sp.evals import TASKS

    needle_depths: list[float | None] = [*read_shares(depths, "--depths")] if depths else [None]
    common = {"filler": filler, "value": value, "phrasing": phrasing, "no_shared_ngrams": no_shared_ngrams}
    modes = {name.removeprefix("needle_"): name for name in TASKS if name.startswith("needle_")} | {"single": "needle"}
    tasks = []
    for name in mode.split(","):
        if name not in modes:
            raise unknown_name("mode", name, modes)
        tasks += [
            TASKS.build(modes[name], common | {"depth": depth, "seed": evaluation.seed}) for depth in needle_depths
        ]
    run_tasks(tasks, lengths, n, evaluation)


def ruler(
    evaluation: EvalOptions,
    tasks: Annotated[str, opt("-t", "--tasks", help="Tasks, comma-separated; all 13 if omitted.")] = "",
    files: Annotated[
        list[Path] | None, opt("--file", help="Prompts from RULER's own scripts, in place of tasks; repeatable.")
    ] = None,
    lengths: Lengths = (4096,),
    n: Amount = 4,
    shots: Annotated[bool, opt(help="Worked examples in vt and cwe, as in RULER.")] = True,
) -> None:
    """Evaluate RULER's 13 tasks: the benchmark's templates, with generated text in place of outside data (...-synth).

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
            raise ConfigError("--tasks and --file exclude each other; omit one")
        run_tasks([RulerFile(str(path)) for path in files], [0], n, evaluation)
        return
    # Needle tasks are those of `sp eval needle`; tasks of files have no lengths of their own.
    known = [name for name in TASKS if not (name.startswith("needle") or issubclass(TASKS.class_of(name), FileTask))]
    chosen = tasks.split(",") if tasks else [name for name in known if TASKS.class_of(name).suite == "ruler"]
    options = {"seed": evaluation.seed, "shots": int(shots)}
    built = []
    for name in chosen:
        if name not in known:
            raise unknown_name("task", name, known)
        own = {field.name for field in dataclasses.fields(TASKS.class_of(name))}  # type: ignore[arg-type]
        built.append(TASKS.build(name, {key: value for key, value in options.items() if key in own}))
    run_tasks(built, lengths, n, evaluation)


def show_list(as_json: bool, wide: bool = False) -> None:
    """Print every task with its suite and description."""
    from sp.evals import TASKS

    known = {name: TASKS.class_of(name) for name in TASKS}
    lines = [{"task": name, "suite": cls.suite, "description": summary_of(cls)} for name, cls in known.items()]
    if as_json:
        print_json({"tasks": lines})
    else:
        print_table(("task", "suite", ""), [list(line.values()) for line in lines], "table", 3, wide=wide)


def ppl(
    evaluation: Annotated[EvalOptions, Adjusted(keep_ratio="0.1,0.3,0.5")],
    text: Annotated[Path | None, opt(help="UTF-8 text file; generated prose if omitted.")] = None,
    lengths: Lengths = (2048,),
    n: Amount = 4,
    continuation: Annotated[Tokens, opt(least=1, help="Tokens predicted after each passage.")] = 64,
) -> None:
    """Predict the text after a compressed passage: perplexity, and divergence from predictions with full prefill.

    Only language models give meaningful results; the embedded pair can do nothing but look up facts.

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

    if evaluation.thinking != Thinking("off"):
        raise ConfigError("sp eval ppl reads plain text without a chat template; omit the thinking options")
    cells = evaluation.cells()
    document = read_text(text, "--text") if text else None
    pipeline = evaluation.open(cells)
    check_lengths(pipeline, lengths)
    tokenizer, examples = pipeline.target.tokenizer, []
    for tokens in lengths:
        source = document or generated_text(n * (tokens + continuation), counter(tokenizer), evaluation.seed)
        of_length = passages(source, tokens, continuation, n, tokenizer)
        if of_length:  # an error now, before anything runs
            check_context(pipeline.target, len(pipeline.tokenise(Prompt(of_length[0].context))), continuation)
        examples += of_length
    rows = gather(partial(perplexity, pipeline, examples, cells), len(examples) * (len(cells) + 1), evaluation.out)
    lines = summarise_perplexity(rows)
    if evaluation.out:
        write_page(
            evaluation.out, lines_page(f"sp eval ppl: {evaluation.out.name}", lines, PREDICTED, trained_for(pipeline))
        )
    show(lines, PERPLEXITY, evaluation, pipeline)


WIDTH = 80
LEGEND = """\
Right answers in per cent, below them Wilson's 95 % interval, n = {n}. A task
discriminates if full and oracle have at least 90, lexical and bm25 at most 10,
random at most {chance:g}. Otherwise the verdict names the ones that fail."""
CROWDED = """\
Note: at {tokens:,} tokens about {budget} are selected, {forced} of them forced (question,
markup, the document's ends), so scorers choose few. Longer prompts, a higher
--keep-ratio or --selector 'top_chunks[sink=4 tail=0]' let them choose more."""


def discriminates(
    models: Annotated[ModelOptions, Adjusted("target_rope drafter_rope precision drafter_precision")],
    names: Annotated[
        str, opt("-t", "--tasks", help="Tasks, as for sp eval tasks; the suite unmatched if omitted.")
    ] = "",
    lengths: Lengths = (8192, 32768),
    n: Annotated[int, opt("-n", "--n", least=1, help="Examples per task and length.")] = 100,
    keep_ratio: Annotated[str, opt("--keep-ratio", help="Share of the prompt that the target reads.")] = "0.05",
    selector: Annotated[
        str, opt("--selector", help="Selector, with options as in 'sentence[neighbours=0]'.")
    ] = "top_chunks",
    device: OnDevice = "auto",
    devices: Devices = "",
    seed: Annotated[int, opt(least=0, help="Seed of the examples and of the random control.")] = 0,
    out: Annotated[
        Path | None,
        opt(writes="file", help="File of rows as of sp sweep; rows that it has already are not computed again."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether tasks discriminate: full prefill and evidence must solve them, word overlap and chance must not.

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
        raise ConfigError(f"--keep-ratio takes one share, e.g. 0.05, not {keep_ratio!r}")
    selectors = read_strategies(selector, SELECTORS, "--selector")
    if len(selectors) > 1:
        raise ConfigError(f"--selector takes one selector, not {selector!r}")
    named_tasks = read_strategies(names, TASKS, "--tasks", {"seed": seed}) if names else []
    tasks, gpus = chosen_tasks(named_tasks, seed), read_gpus(devices) if devices else ()
    with ExitStack() as stack:
        # Without --out the rows of the runs go into a temporary folder, where the verdicts read them.
        rows = out or Path(stack.enter_context(TemporaryDirectory())) / "rows.jsonl"
        sweep = plan_runs(
            tasks,
            lengths,
            n,
            keeps[0],
            Pair(models.target, models.drafter),
            selector=selectors[0],
            seed=seed,
            device=device,
        )
        plan = make_plan(sweep, file=rows)
        console = Console(stderr=True)
        if plan.remaining:
            console.print(f"sp: {expected_time(plan, max(len(gpus), 1))}", highlight=False, soft_wrap=True)
        failures = do_runs(plan, open_pool(plan, gpus), console, lasting=out is not None)
        judged = verdicts(plan, keeps[0])
    if as_json:
        print_json({"results": [as_record(verdict, n) for verdict in judged], "failed": failures})
    else:
        show_verdicts(judged, n, keeps[0])
    for failure in failures:
        print(f"sp: failed: {failure}", file=sys.stderr)
    if failures:
        raise SystemExit(1)


def as_record(verdict: Verdict, examples: int) -> dict[str, Any]:
    """Return a verdict as plain values; a share that was not measured is None.

    `examples`: number of examples that were requested.
    """
    from sp.studies.board.verdict import bars

    record: dict[str, Any] = {
        "task": verdict.task, "tokens": verdict.tokens, "keep_ratio": verdict.keep, "n": examples,
        "discriminating": verdict.discriminating, "fails": list(verdict.fails),
    }  # fmt: skip
    for bar in bars(verdict.keep):
        entry = verdict.entries.get(bar.scorer)
        names = ("accuracy", "low", "high", "n", "not_run")
        record[bar.scorer] = {"bound": bar.bound, **{name: getattr(entry, name, None) for name in names}}
    return record


def show_verdicts(verdicts: list[Verdict], n: int, keep: float) -> None:
    """Print a table of `WIDTH` characters, with a row per task and length."""
    from sp.studies.board.verdict import ABOVE_CHANCE, bars

    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold", max_width=16)
    table.add_column("tokens", justify="right")
    for bar in bars(keep):
        table.add_column(bar.scorer, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold", max_width=20)
    for verdict in verdicts:
        conclusion = "discriminating" if verdict.discriminating else f"not: {', '.join(verdict.fails)}"
        if not verdict.measured:
            conclusion = "not measured"
        cells = [cell(verdict.entries.get(bar.scorer)) for bar in bars(keep)]
        table.add_row(escape(verdict.task), f"{verdict.tokens:,}", *cells, conclusion)
    Console(highlight=False, width=WIDTH).print(table)
    print(fill(LEGEND.format(n=n, chance=100 * (keep + ABOVE_CHANCE)), WIDTH))
    most: dict[int, int] = {}
    for verdict in verdicts:
        if verdict.measured and verdict.crowded:
            most[verdict.tokens] = max(verdict.forced, most.get(verdict.tokens, 0))
    for tokens, forced in most.items():
        print(fill(CROWDED.format(tokens=tokens, forced=forced, budget=round(keep * tokens)), WIDTH))


def cell(entry: BoardEntry | None) -> str:
    """Format accuracy in per cent above its interval; a dash if it was not measured."""
    if entry is None or entry.accuracy is None or entry.low is None or entry.high is None:
        return "-"
    return f"{100 * entry.accuracy:.0f}\n{100 * entry.low:.0f}-{100 * entry.high:.0f}"
