"""`sp eval`: needles, RULER and perplexity, every strategy beside the full prefill and the controls."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sp.commands.bench.bench import numbers
from sp.commands.eval.board import board
from sp.commands.eval.discriminates import discriminates
from sp.commands.eval.file import file
from sp.commands.eval.natural import natural
from sp.commands.eval.options import Amount, Asked, Lengths, asking
from sp.commands.eval.run import PERPLEXITY, check_writable, gather, run_tasks, show, trained_for, write_page
from sp.commands.eval.tasks import tasks as tasks_by_name
from sp.commands.eval.turns import turns
from sp.commands.known.strategies import read_shares
from sp.commands.options import tokens_option
from sp.commands.terminal import read_text
from sp.errors import ConfigError, unknown_name

eval_app = typer.Typer(help="Measure what a selection keeps.", no_args_is_help=True, rich_markup_mode="rich")
eval_app.command("tasks")(tasks_by_name)
eval_app.command("discriminates")(discriminates)
eval_app.command("board")(board)
eval_app.command("file")(file)
eval_app.command("turns")(turns)
eval_app.command("natural")(natural)


@eval_app.command("needle")
@asking(keep_ratio="0.05,0.1")
def needle(
    lengths: Lengths = "2k,4k",
    depths: Annotated[str, typer.Option(help="Depths, such as 0,0.5,1 or 0..1/11; random if left out.")] = "",
    n: Amount = 4,
    mode: Annotated[str, typer.Option(help="single, multikey, multivalue, multiquery; comma-separated.")] = "single",
    filler: Annotated[str, typer.Option(help="Haystack: grammar, noise, sample or needles.")] = "grammar",
    value: Annotated[str, typer.Option(help="Values: number, word or uuid.")] = "number",
    phrasing: Annotated[str, typer.Option(help="any, or ruler.")] = "any",
    no_shared_ngrams: Annotated[
        int, typer.Option(min=0, help="Forbid runs of so many words in both question and needle, the key aside.")
    ] = 0,
    *,
    asked: Asked,
) -> None:
    """Hide facts in a long text and ask for them: lengths x depths, by strategy.

    Models do not think before they answer, unless --thinking says so, which makes answers 1,024 tokens longer.

    [bold]Examples[/bold]

      sp eval needle

      sp eval needle -p 8k,32k,128k --depths 0..1/11 -n 5 --scorer tail,lookahead --keep-ratio 0.05 --out needle.jsonl

      sp eval needle --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking on -n 10

      sp eval needle --mode multivalue,multiquery --selector 'sentence\\[neighbours=0]' --no-shared-ngrams 1
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
    run_tasks(tasks, numbers(lengths, "--lengths"), n, asked)


@eval_app.command("ruler")
@asking()
def ruler(
    tasks: Annotated[str, typer.Option("-t", "--tasks", help="Tasks, comma-separated; all 13 if left out.")] = "",
    files: Annotated[
        list[Path] | None, typer.Option("--file", help="Prompts RULER's own scripts wrote, instead; repeatable.")
    ] = None,
    lengths: Lengths = "4k",
    n: Amount = 4,
    shots: Annotated[bool, typer.Option(help="Worked examples in vt and cwe, as RULER has.")] = True,
    *,
    asked: Asked,
) -> None:
    """Run RULER's 13 tasks: the benchmark's templates, own text where it needs outside data (tasks ...-synth).

    [bold]Examples[/bold]

      sp eval ruler -p 4k,8k -n 10 --keep-ratio 0.1,0.2

      sp eval ruler -t vt,fwe --scorer tail,uniform

      sp eval ruler --file data/niah_single_2/validation.jsonl -n 100 --target target.gguf --drafter drafter.gguf
    """
    from sp.evals import TASKS
    from sp.evals.formats.file_task import FileTask
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
    run_tasks(built, numbers(lengths, "--lengths"), n, asked)


@eval_app.command("ppl")
@asking(keep_ratio="0.1,0.3,0.5")
def ppl(
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to read; generated prose if left out.")] = None,
    lengths: Lengths = "2k",
    n: Amount = 4,
    continuation: Annotated[int, tokens_option(least=1, help="Tokens predicted after each passage.")] = 64,
    *,
    asked: Asked,
) -> None:
    """Predict the text behind a compressed passage: perplexity, and divergence from the full prefill's predictions.

    Needs real language models to mean something; the embedded pair only looks things up.

    [bold]Example[/bold]

      sp eval ppl --text book.txt -p 8k,32k -n 8 --keep-ratio 0.05,0.1,0.3 --target target.gguf --drafter drafter.gguf
    """
    from sp.chat import Thinking
    from sp.evals.fits import check_lengths
    from sp.evals.ppl import generated_text, passages, perplexity
    from sp.evals.run import counter
    from sp.evals.summary import summarise_perplexity
    from sp.prompt import Prompt
    from sp.session.decide import check_context
    from sp.studies.pages.lines_page import PREDICTED, lines_page

    if asked.asked_thinking() != Thinking("off"):
        raise ConfigError("sp eval ppl reads plain text, and no chat that asks for thinking; leave it out")
    cells, sizes = asked.cells(), numbers(lengths, "--lengths")
    check_writable(asked.out)
    written = read_text(text, "--text") if text else None
    pipeline = asked.open(cells)
    check_lengths(pipeline, sizes)
    tokenizer, found = pipeline.target.tokenizer, []
    for tokens in sizes:
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
