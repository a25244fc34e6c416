"""Common parts of the commands of `sp eval`: options of models and cells, runs with rows on disk, and tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from sp.chat import Thinking
from sp.commands.common import open_pair, read_shares, warn_thinking
from sp.commands.front import missing_module
from sp.commands.shell.parser import Adjusted, opt
from sp.commands.shell.terminal import Column, cells_of, print_json, print_table, progress_bar, text_width
from sp.config import Option, Tokens
from sp.errors import ConfigError
from sp.named import read_names, read_strategies
from sp.session import RunOptions
from sp.session.options import ModelOptions, PlaceOptions

if TYPE_CHECKING:
    from sp.evals import Example, Row, Task
    from sp.scoring import Scorer
    from sp.session import Pipeline
    from sp.studies.sweep.sweep import Pair

CONTROLS = ("random", "lexical", "head_tail", "oracle")

Lengths = Annotated[tuple[Tokens, ...], opt("-p", "--lengths", help="Prompt lengths in tokens, comma-separated.")]
Amount = Annotated[int, opt("-n", "--n", least=1, help="Examples a length (and depth).")]
UNKNOWN = {"sha256": None, "template_sha256": None}  # facts of a model that another server runs
OF_CELLS = "scorer selector keep_ratio sparse compress threshold decode max_new_tokens"
"""Options of a run that a cell or a task sets."""


@dataclass(frozen=True)
class EvalOptions:
    """Options that the commands of `sp eval` share.

    Parameters
    ----------
    scorer : str
        Scorers, comma-separated, with options as in 'tail[queries=16 sparse=alpha:0.1],lookahead'.
    selector : str
        Selectors, comma-separated, with options as in 'sentence[neighbours=0],lines'.
    keep_ratio : str
        Shares of the prompt that the target reads, comma-separated.
    controls : bool
        Also run the controls: random, lexical, head_tail, oracle.
    upstream : str, optional
        Address of another server, e.g. http://127.0.0.1:8080, whose model answers in place of a target.
    out : Path, optional
        Append one JSON line per example and cell to this file, and write an HTML page next to it.
    wide : bool
        Show all columns of tables side by side, whatever the width of the terminal.
    as_json : bool
        Print one JSON object instead of tables.
    """

    group: ClassVar[str] = "Cells and results"

    scorer: str = "auto"
    selector: str = "top_chunks"
    keep_ratio: str = "0.1"
    controls: bool = True
    models: ModelOptions = ModelOptions()  # noqa: RUF009  immutable
    place: Annotated[PlaceOptions, Adjusted("gpus target_gpus vram break_even")] = PlaceOptions()  # noqa: RUF009
    run: Annotated[RunOptions, Adjusted(OF_CELLS)] = RunOptions()  # noqa: RUF009
    thinking: Annotated[Thinking, Adjusted(mode="off")] = Thinking("off")  # noqa: RUF009
    upstream: str | None = None
    out: Annotated[Path | None, Option(writes="file")] = None
    wide: bool = False
    as_json: Annotated[bool, Option(flags=("--json",))] = False

    @property
    def seed(self) -> int:
        """Seed of runs and of examples."""
        return self.run.seed

    def cells(self, task: str = "") -> list[RunOptions]:
        """Return a cell for every scorer with every selector and keep ratio; controls have the first selector.

        `task`: replaces ``{task}`` in options of scorers, such as files of weights per task.
        """
        from sp.evals.base import TASK_SLOT
        from sp.scoring import SCORERS
        from sp.selection import SELECTORS

        scorers = read_strategies(self.scorer.replace(TASK_SLOT, task), SCORERS, "--scorer")
        selectors = read_strategies(self.selector, SELECTORS, "--selector")
        pairs = [(scorer, selector) for scorer in scorers for selector in selectors]
        controls = [SCORERS.build(name) for name in CONTROLS if self.controls]
        pairs += [(control, selectors[0]) for control in controls if control not in scorers]
        return [
            replace(self.run, keep_ratio=keep, scorer=scorer, selector=selector)
            for keep in read_shares(self.keep_ratio, "--keep-ratio")
            for scorer, selector in pairs
        ]

    def scorers(self) -> list[type[Scorer]]:
        """Return the classes of the scorers of all cells, not built, as their options may depend on the task."""
        from sp.scoring import SCORERS

        names = [name for name, _ in read_names(self.scorer, "--scorer")]
        return [SCORERS.class_of(name) for name in (*names, *(CONTROLS if self.controls else ()))]

    def pair(self) -> Pair:
        """Return both models as a pair of a sweep."""
        from sp.studies.sweep.sweep import Pair, with_drafter

        return with_drafter(Pair(**vars(self._models())), self.scorers())

    def _models(self) -> ModelOptions:
        """Return both models; with `upstream` the drafter also as target, whose vocabulary counts tokens."""
        if self.upstream is None:
            return self.models
        if self.models.target is not None:
            raise ConfigError("with --upstream another server answers in place of a target; omit --target")
        from sp.session.loaded import default_drafter

        drafter = self.models.drafter or default_drafter("", self.scorers())
        return replace(self.models, target=drafter, drafter=drafter)

    def facts(self) -> dict[str, Any]:
        """Return the facts that rows have about each model, by role: file, SHA-256, RoPE and precision."""
        from sp.studies.sweep.provenance import pair_facts

        facts = pair_facts(self.pair()).models
        if self.upstream is None:
            return facts
        from sp.front.behind import model_of
        from sp.front.upstream import upstream_of

        return {**facts, "target": UNKNOWN | {"file": model_of(upstream_of(self.upstream))}}

    def open(self, cells: Iterable[RunOptions]) -> Pipeline:
        """Load both models for the scorers of cells; print a line if the target cannot follow the thinking options."""
        if self.upstream is not None and (missing := missing_module()):
            raise ConfigError(f"--upstream needs the package {missing}; pip install 'sp-prefill[serve]'")
        pipeline = open_pair(self._models(), self.place, [cell.scorer for cell in cells])
        if self.upstream is not None:
            from sp.front.behind import BehindPipeline
            from sp.front.upstream import upstream_of

            return BehindPipeline.before(pipeline, upstream_of(self.upstream))
        warn_thinking(self.thinking, pipeline.target)
        return pipeline


ELSEWHERE = ("depth=", "path=")
"""Options of tasks with a column of their own: examples at several depths belong to one task, as do those of a file."""


class Measure(Protocol):
    """Yields rows, and reports progress after each."""

    def __call__(self, *, progress: Callable[[int], None]) -> Iterator[Row]: ...


def run_tasks(
    tasks: Sequence[Task],
    lengths: Sequence[int],
    n: int,
    evaluation: EvalOptions,
    name: Callable[[Task], str] | None = None,
) -> None:
    """Evaluate tasks, write the rows and print the table.

    A length that is too short for a task, or too long for the target, is an error before anything runs.

    Parameters
    ----------
    tasks : sequence of Task
    lengths : sequence of int
        Tokens of the prompts. Longer prompts of files are skipped and counted.
    n : int
        Examples of every task and length; the most for files, which are checked before models are loaded.
    evaluation : EvalOptions
        Models and cells. ``{task}`` in an option of a scorer is replaced by the name of each task.
    name : callable, optional
        Returns the name of a task in rows and table; by default rows have its options in a column of their own.
    """
    from sp.evals import TASKS, evaluate
    from sp.evals.formats.records import FileTask, LongPromptError
    from sp.evals.run import check_example, check_lengths, counter, label
    from sp.evals.summary import summarise

    cells = {task: evaluation.cells(task.name) for task in tasks}
    sizes = dict.fromkeys(tasks, n)
    for task in tasks:
        if isinstance(task, FileTask):
            task.check(n)
            sizes[task] = task.known(n)
    models = evaluation.facts() if evaluation.out else {}
    pipeline = evaluation.open(cell for of_task in cells.values() for cell in of_task)
    count = counter(pipeline.target.tokenizer)
    kinds = [(task, tokens) for tokens in lengths for task in tasks]
    if not all(isinstance(task, FileTask) for task in tasks):
        check_lengths(pipeline, lengths)
    for task, tokens in kinds:
        with suppress(LongPromptError):
            first = task.example(0, tokens, count)
            if not isinstance(task, FileTask):  # prompts of files are skipped if they are too long
                check_example(pipeline, first, evaluation.thinking)

    def examples(task: Task, tokens: int) -> Iterator[Example]:
        skipped = 0
        for index in range(sizes[task]):
            try:
                example = task.example(index, tokens, count)
            except LongPromptError:
                skipped += 1
            else:
                yield example if name is None else replace(example, task=name(task))
        if skipped and isinstance(task, FileTask):
            prompts = f"{skipped} of {sizes[task]} prompts of {task.title}"
            print(f"sp: {prompts} have more than {tokens:,} tokens and were skipped", file=sys.stderr)

    def measure(*, progress: Callable[[int], None]) -> Iterator[Row]:
        for task, tokens in kinds:
            words = [] if name else re.split(r" (?=\w+=)", label(TASKS, task))[1:]  # values may have spaces
            options = " ".join(word for word in words if not word.startswith(ELSEWHERE))
            for row in evaluate(
                pipeline,
                examples(task, tokens),
                cells[task],
                thinking=evaluation.thinking,
                pass_over_long=isinstance(task, FileTask),
                progress=progress,
            ):
                yield row | ({"options": options} if options else {})

    rows = gather(measure, sum(sizes[task] * (len(cells[task]) + 1) for task, _ in kinds), evaluation.out, models)
    lines = summarise(rows)
    if evaluation.out:
        from sp.studies.pages.study_page import Section, study_page

        section = Section(evaluation.out.name, rows, trained_for(pipeline))
        write_page(evaluation.out, study_page(f"sp eval: {evaluation.out.name}", [section]))
    has_oracle = any(line.get("against_oracle") is not None for line in lines)
    show(lines, ORACLE_ANSWERS if has_oracle else ANSWERS, evaluation, pipeline)


def gather(measure: Measure, total: int, out: Path | None, models: Mapping[str, Any] | None = None) -> list[Row]:
    """Collect rows, and append each at once to `out`, with the facts of its `models`.

    `total`: number of rows, for the progress bar.
    """
    rows = []
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered: a row is one write, so that an interrupt leaves no part of one.
    with out.open("ab", buffering=0) if out else nullcontext() as file, progress_bar("evaluating", total) as advance:
        for row in measure(progress=advance):
            rows.append(row)
            if file:
                record = row | ({"models": models} if models else {})
                file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
    return rows


def write_page(out: Path, page: str) -> None:
    """Write the HTML page of rows next to their file."""
    from sp.trace import write_atomic

    print(f"sp: report in {write_atomic(out.with_suffix('.report.html'), page.encode())}", file=sys.stderr)


def trained_for(pipeline: Pipeline) -> str:
    """Return a note about the training of the pair's drafter; empty if its file has none."""
    from sp.evals.trained_for import note_of_file

    return note_of_file(pipeline.drafter.path) if pipeline.drafter else ""


def show(
    lines: Sequence[dict[str, Any]], columns: tuple[Column, ...], evaluation: EvalOptions, pipeline: Pipeline
) -> None:
    """Print summaries as a table with notes, or as JSON."""
    if evaluation.as_json:
        print_json({"results": list(lines)})
        return
    heads = print_table(*cells_of(lines, columns), "table", TEXT_COLUMNS, main=MAIN[columns], wide=evaluation.wide)
    notes = ["; ".join(f"{head}: {meaning}" for head, meaning in MEANINGS[columns].items() if head in heads)]
    if any(line["not_run"] for line in lines):
        notes.append(NOT_RUN)
    notes.append(trained_for(pipeline))
    for note in filter(None, notes):
        print(fill(note, text_width()))


def number(name: str, pattern: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats a value of a row; a dash if it is unknown."""
    return lambda line: "-" if line.get(name) is None else pattern.format(line[name])


def interval(low: str, high: str, pattern: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats two values of a row as an interval; a dash if they are unknown."""
    return lambda line: "-" if line.get(low) is None else f"{pattern} to {pattern}".format(line[low], line[high])


def size(line: Mapping[str, Any]) -> str:
    """Format the number of examples, and of those that could not run."""
    return f"{line['n']}" + (f" (+{line['not_run']} not run)" if line["not_run"] else "")


CELL: tuple[Column, ...] = (
    ("task", number("task", "{}")),
    ("tokens", number("tokens_asked", "{:,}")),
    ("scorer", number("scorer", "{}")),
    ("selector", lambda line: "" if line["scorer"] == line["selector"] else str(line["selector"])),
    ("keep", number("keep_ratio", "{:g}")),
    ("kept", number("realised_keep", "{:.3f}")),
    ("n", size),
)
RIGHT: tuple[Column, ...] = (
    *CELL,
    ("right", number("accuracy", "{:.1%}")),
    ("95 %", interval("low", "high", "{:.1%}")),
    ("score", number("score", "{:.3f}")),
    ("-full", number("against_full", "{:+.2f}")),
    ("95 %", interval("against_full_low", "against_full_high", "{:+.2f}")),
)
ORACLE: tuple[Column, ...] = (
    ("-oracle", number("against_oracle", "{:+.2f}")),
    ("95 %", interval("against_oracle_low", "against_oracle_high", "{:+.2f}")),
)
EVIDENCE: tuple[Column, ...] = (
    ("evidence", number("given_kept", "{:.0%}")),
    ("right then", number("accuracy_given_kept", "{:.0%}")),
    ("rank", number("needle_rank", "{:g}")),
    ("margin", number("needle_margin", "{:+.2f}")),
    ("ttft s", number("ttft_s", "{:.3f}")),
    ("x", number("speedup", "{:.1f}")),
)
ANSWERS = (*RIGHT, *EVIDENCE)
ORACLE_ANSWERS = (*RIGHT, *ORACLE, *EVIDENCE)  # if an oracle is among the cells
PERPLEXITY: tuple[Column, ...] = (
    *CELL,
    ("perplexity", number("perplexity", "{:.2f}")),
    ("nll", number("nll", "{:.3f}")),
    ("-full", number("nll_change", "{:+.3f}")),
    ("95 %", interval("nll_change_low", "nll_change_high", "{:+.3f}")),
    ("KL", number("kl", "{:.3f}")),
    ("same token", number("agreement", "{:.0%}")),
)
TEXT_COLUMNS = 4
FIRST = ("task", "tokens", "scorer", "selector", "keep", "n")
OF_RIGHT = (*FIRST, "right", "right 95 %", "-full", "ttft s", "x")
MAIN = {
    ANSWERS: OF_RIGHT,
    ORACLE_ANSWERS: OF_RIGHT,
    PERPLEXITY: (*FIRST, "perplexity", "-full", "-full 95 %", "same token"),
}
"""Heads of the columns that are always shown, by table."""
OF_ANSWERS = {
    "-full": "difference in score from full prefill",
    "-oracle": "difference in share of right answers from the best oracle of the same task, length and keep ratio",
    "evidence": "share of examples with all tokens of the answers selected; right then: share of right answers among "
    "those",
    "rank": "rank of the needle's best chunk, and its margin",
    "x": "speedup of the time to the first token",
}
MEANINGS = {
    ANSWERS: OF_ANSWERS,
    ORACLE_ANSWERS: OF_ANSWERS,
    PERPLEXITY: {
        "-full": "difference in nll (nats per token) from full prefill",
        "KL": "divergence from its predictions",
        "same token": "share of predictions with the same most probable token",
    },
}
"""Meanings of heads that are not obvious, by table."""
NOT_RUN = "not run: a prompt of a file exceeds the target's context, or the oracle has no evidence to go by"
