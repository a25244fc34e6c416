"""`sp eval tasks`: any task by name, with options in brackets as scorers have them, or a list of all there are."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from sp.commands.bench.bench import numbers
from sp.commands.eval.options import Amount, Asked, Lengths, asking
from sp.commands.eval.run import run_tasks
from sp.commands.tables import print_table
from sp.commands.terminal import print_json
from sp.errors import ConfigError
from sp.named import read_strategies


@asking(keep_ratio="0.05,0.1")
def tasks(
    names: Annotated[
        str, typer.Option("-t", "--tasks", help="Tasks, comma-separated; options as in 'needle\\[depth=0.5],vt'.")
    ] = "",
    lengths: Lengths = "8k",
    n: Amount = 4,
    listed: Annotated[bool, typer.Option("--list", help="List the tasks there are, and run none.")] = False,
    *,
    asked: Asked,
) -> None:
    """Run any tasks by name, every strategy beside the full prefill and the controls.

    In an option of a scorer, {task} stands for the name of each task.

    [bold]Examples[/bold]

      sp eval tasks --list

      sp eval tasks -t 'needle,vt\\[shots=0]' -p 8k,32k -n 100 --scorer 'tail\\[queries=24],lookahead' --keep-ratio 0.05

      sp eval tasks -t vt,cwe --scorer 'retrieval_heads\\[map=heads-{task}.json]' --out rows.jsonl
    """
    from sp.evals import TASKS
    from sp.evals.run import label

    if listed:
        show_list(asked.as_json, asked.wide)
        return
    if not names:
        raise ConfigError("name tasks in --tasks, such as -t needle,vt; sp eval tasks --list shows all")
    chosen = read_strategies(names, TASKS, "--tasks", {"seed": asked.seed})
    run_tasks(chosen, numbers(lengths, "--lengths"), n, asked, name=lambda task: label(TASKS, task))


def show_list(as_json: bool, wide: bool = False) -> None:
    """Every task with its suite and the first sentence of its description."""
    from sp.evals import TASKS

    lines = []
    for name in TASKS:
        kind = TASKS.class_of(name)
        told = (inspect.getdoc(kind) or "").partition("\n\n")[0]
        lines.append({"task": name, "suite": kind.suite, "description": " ".join(told.split())})
    if as_json:
        print_json({"tasks": lines})
    else:
        print_table(("task", "suite", ""), [list(line.values()) for line in lines], "table", 3, wide=wide)
