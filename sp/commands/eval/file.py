"""`sp eval file`: questions of files, users' own or those of other benchmarks."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sp.commands.eval.run import Asked, run_tasks
from sp.commands.line import arg, opt
from sp.config import Tokens
from sp.errors import ConfigError
from sp.named import read_options

if TYPE_CHECKING:
    from sp.evals.formats.records import FileTask

AUTO = "auto"


def file(
    asked: Asked,
    paths: Annotated[list[Path], arg("Files of JSON lines, a JSON list or CSV.")],
    format_name: Annotated[
        str, opt("--format", help="Format of the files by name; auto knows it by the fields of the records.")
    ] = AUTO,
    metric: Annotated[
        str, opt(help="How own answers are judged: contains, exact, f1 (both as SQuAD's) or regex.")
    ] = "",
    settings: Annotated[
        list[str] | None, opt("--set", help="Option of the format, e.g. depth=0.5; repeatable.")
    ] = None,
    lengths: Annotated[
        tuple[Tokens, ...],
        opt("-p", "--lengths", help="Prompt lengths, where texts are filled; else longer prompts are passed over."),
    ] = (0,),
    n: Annotated[int | None, opt("-n", "--n", least=1, help="Examples a file; all if left out.")] = None,
    max_new_tokens: Annotated[Tokens, opt(least=0, help="Longest answer; 0 has room for the longest right one.")] = 0,
) -> None:
    """Ask the questions of files: what a selection keeps, and what that does to the answers.

    Own files have one object a line: context, question, answers (a text or a list), and if you like evidence (texts
    of the context, or [start, end] of its characters), id and metric. Prompts of RULER, LongBench v2, MRCR, MRCR v2
    and NoLiMa are read as their own scripts write them. All lines are checked before the models are loaded.

    Examples
    --------
      sp eval file data.jsonl --metric f1 --keep-ratio 0.1,0.3
      sp eval file mrcr_2needle.jsonl -n 50 --target target.gguf --drafter drafter.gguf
      sp eval file needle_set.json --set haystack=rand_book_1.txt -p 8k,32k --target target.gguf --drafter drafter.gguf
    """
    given = {**options_of(settings or []), **({"metric": metric} if metric else {})}
    given |= {"max_new_tokens": max_new_tokens} if max_new_tokens else {}
    tasks = [built(path, format_name, given) for path in paths]
    titles = [task.title for task in tasks]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise ConfigError(f"two files are called {twice!r}, and rows could not be told apart; rename one")
    for licence in sorted({task.licence for task in tasks} - {""}):
        print(f"sp: {licence}", file=sys.stderr)
    run_tasks(tasks, lengths, n or sys.maxsize, asked)


def options_of(settings: list[str]) -> dict[str, Any]:
    """Options of a format, each as NAME=VALUE; a path may have spaces."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        found |= {name: value} if " " in value else read_options(setting, "--set")
    return found


def built(path: Path, format_name: str, given: dict[str, Any]) -> FileTask:
    """The task of a file."""
    import sp.evals  # noqa: F401  # registers the formats
    from sp.evals.formats.records import FORMATS, recognise

    name = recognise(path) if format_name == AUTO else format_name
    known: Any = FORMATS.class_of(name)
    if "metric" in given and "metric" not in {field.name for field in fields(known)}:
        raise ConfigError(f"format {name} judges answers its own way; leave --metric out")
    return FORMATS.build(name, {"path": str(path), **given})
