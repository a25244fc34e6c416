"""What the commands of `sp eval` share: models and cells as options, running with rows on disk, tables."""

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
from sp.commands.asked import open_pair, read_shares, tell_thinking
from sp.commands.front import missing_module
from sp.commands.shell.line import Part, opt
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
UNKNOWN = {"sha256": None, "template_sha256": None}  # of a model that another server runs
OF_CELLS = "scorer selector keep_ratio sparse compress threshold decode max_new_tokens"
"""Options of a run that are a cell's, or a task's."""


@dataclass(frozen=True)
class Asked:
    """What a command of `sp eval` was asked for, besides its own options.

    Parameters
    ----------
    scorer : str
        Scorers, comma-separated; options as in 'tail[queries=16 sparse=alpha:0.1],lookahead'.
    selector : str
        Selectors, likewise, such as 'sentence[neighbours=0],lines'.
    keep_ratio : str
        Shares of the prompt the target reads, comma-separated.
    controls : bool
        Also run the controls: random, lexical, head_tail, oracle.
    upstream : str, optional
        Address of another server, such as http://127.0.0.1:8080, whose model answers in place of a target.
    out : Path, optional
        Append one JSON line an example and cell to this file; a page to look at comes beside it.
    wide : bool
        Show all columns of tables side by side, however long lines get.
    as_json : bool
        Print one JSON object instead of tables.
    """

    group: ClassVar[str] = "Cells and results"

    scorer: str = "auto"
    selector: str = "top_chunks"
    keep_ratio: str = "0.1"
    controls: bool = True
    models: ModelOptions = ModelOptions()  # noqa: RUF009  nothing changes it
    place: Annotated[PlaceOptions, Part("gpus target_gpus vram break_even")] = PlaceOptions()  # noqa: RUF009
    run: Annotated[RunOptions, Part(OF_CELLS)] = RunOptions()  # noqa: RUF009
    thinking: Annotated[Thinking, Part(mode="off")] = Thinking("off")  # noqa: RUF009
    upstream: str | None = None
    out: Path | None = None
    wide: bool = False
    as_json: Annotated[bool, Option(flags=("--json",))] = False

    @property
    def seed(self) -> int:
        """Of examples too."""
        return self.run.seed

    def cells(self, task: str = "") -> list[RunOptions]:
        """Every scorer with every selector and keep ratio; controls with the first selector. `task`: stands in place of
        ``{task}`` in options of the scorers, where weights are another task's every time."""
        from sp.evals.base import TASK_SLOT
        from sp.scoring import SCORERS
        from sp.selection import SELECTORS

        scorers = read_strategies(self.scorer.replace(TASK_SLOT, task), SCORERS, "--scorer")
        selectors = read_strategies(self.selector, SELECTORS, "--selector")
        pairs = [(one, other) for one in scorers for other in selectors]
        extra = [SCORERS.build(name) for name in CONTROLS if self.controls]
        pairs += [(one, selectors[0]) for one in extra if one not in scorers]
        return [
            replace(self.run, keep_ratio=keep, scorer=one, selector=other)
            for keep in read_shares(self.keep_ratio, "--keep-ratio")
            for one, other in pairs
        ]

    def scorers(self) -> list[type[Scorer]]:
        """Classes of the scorers of all cells; their options may name files of another task every time."""
        from sp.scoring import SCORERS

        names = [name for name, _ in read_names(self.scorer, "--scorer")]
        return [SCORERS.class_of(name) for name in (*names, *(CONTROLS if self.controls else ()))]

    def pair(self) -> Pair:
        """Both models as a sweep names them."""
        from sp.studies.sweep.sweep import Pair, with_drafter

        return with_drafter(Pair(**vars(self._models())), self.scorers())

    def _models(self) -> ModelOptions:
        """Both models; where another server answers, the drafter's vocabulary is counted in."""
        if self.upstream is None:
            return self.models
        if self.models.target is not None:
            raise ConfigError("--upstream answers in place of a target; leave --target out")
        from sp.session.loaded import default_drafter

        drafter = self.models.drafter or default_drafter("", self.scorers())
        return replace(self.models, target=drafter, drafter=drafter)

    def facts(self) -> dict[str, Any]:
        """What rows say of the models they are of, by role: file, SHA-256 and what was asked of RoPE and arithmetic."""
        from sp.studies.sweep.provenance import pair_facts

        found = pair_facts(self.pair()).models
        if self.upstream is None:
            return found
        from sp.front.behind import model_of
        from sp.front.upstream import upstream_of

        return {**found, "target": UNKNOWN | {"file": model_of(upstream_of(self.upstream))}}

    def open(self, cells: Iterable[RunOptions]) -> Pipeline:
        """Load both models for the scorers of cells; say where the target cannot be asked of thinking."""
        if self.upstream is not None and (missing := missing_module()):
            raise ConfigError(f"--upstream needs the package {missing}; pip install 'sp-prefill[serve]'")
        pipeline = open_pair(self._models(), self.place, [cell.scorer for cell in cells])
        if self.upstream is not None:
            from sp.front.behind import BehindPipeline
            from sp.front.upstream import upstream_of

            return BehindPipeline.before(pipeline, upstream_of(self.upstream))
        tell_thinking(self.thinking, pipeline.target)
        return pipeline


ELSEWHERE = ("depth=", "path=")
"""Options of tasks that other columns tell: examples at several depths are of one task, and so are those of a file."""


class Measure(Protocol):
    """Makes rows and tells of each."""

    def __call__(self, *, progress: Callable[[int], None]) -> Iterator[Row]: ...


def run_tasks(
    tasks: Sequence[Task], lengths: Sequence[int], n: int, asked: Asked, name: Callable[[Task], str] | None = None
) -> None:
    """Evaluate, write the rows and print the table.

    A length without room for a task, or one that the target has no room for, is found before anything runs.

    `lengths`: tokens of the prompts; those of files that are too long for it, or for the target, are passed over, and
    told; `n`: examples of every task and length; of files, which are all read before the models are, at most so many;
    `asked`: models and cells; ``{task}`` in an option of a scorer stands for the name of each task; `name`: what a task
    is called in rows and table, where that is more than its name; else rows on disk have its options in a column of
    their own.
    """
    from sp.evals import TASKS, evaluate
    from sp.evals.formats.records import FileTask, LongPromptError
    from sp.evals.run import check_example, check_lengths, counter, label
    from sp.evals.summary import summarise

    cells = {task: asked.cells(task.name) for task in tasks}
    check_writable(asked.out)
    sizes = dict.fromkeys(tasks, n)
    for task in tasks:
        if isinstance(task, FileTask):
            task.check(n)
            sizes[task] = task.known(n)
    models = asked.facts() if asked.out else {}
    pipeline = asked.open(cell for every in cells.values() for cell in every)
    count = counter(pipeline.target.tokenizer)
    kinds = [(task, tokens) for tokens in lengths for task in tasks]
    if not all(isinstance(task, FileTask) for task in tasks):
        check_lengths(pipeline, lengths)
    for task, tokens in kinds:
        with suppress(LongPromptError):
            first = task.example(0, tokens, count)
            if not isinstance(task, FileTask):  # whose prompts that are too long are passed over
                check_example(pipeline, first, asked.thinking)

    def examples(task: Task, tokens: int) -> Iterator[Example]:
        passed = 0
        for index in range(sizes[task]):
            try:
                made = task.example(index, tokens, count)
            except LongPromptError:
                passed += 1
            else:
                yield made if name is None else replace(made, task=name(task))
        if passed and isinstance(task, FileTask):
            told = f"{passed} of {sizes[task]} prompts of {task.title} have more than {tokens:,} tokens"
            print(f"sp: {told} and were passed over", file=sys.stderr)

    def measure(*, progress: Callable[[int], None]) -> Iterator[Row]:
        for task, tokens in kinds:
            words = [] if name else re.split(r" (?=\w+=)", label(TASKS, task))[1:]
            options = " ".join(word for word in words if not word.startswith(ELSEWHERE))
            for row in evaluate(
                pipeline,
                examples(task, tokens),
                cells[task],
                thinking=asked.thinking,
                pass_over_long=isinstance(task, FileTask),
                progress=progress,
            ):
                yield row | ({"options": options} if options else {})

    rows = gather(measure, sum(sizes[task] * (len(cells[task]) + 1) for task, _ in kinds), asked.out, models)
    lines = summarise(rows)
    if asked.out:
        from sp.studies.pages.study_page import Section, study_page

        section = Section(asked.out.name, rows, trained_for(pipeline))
        write_page(asked.out, study_page(f"sp eval: {asked.out.name}", [section]))
    beside_oracles = any(line.get("against_oracle") is not None for line in lines)
    show(lines, ORACLE_ANSWERS if beside_oracles else ANSWERS, asked, pipeline)


def check_writable(out: Path | None) -> None:
    """ConfigError, before anything is loaded, if rows cannot be appended to a file."""
    try:
        if out:
            out.open("ab").close()
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; check the path given to --out") from None


def gather(measure: Measure, total: int, out: Path | None, models: Mapping[str, Any] | None = None) -> list[Row]:
    """Rows as they come, each written to `out` in one piece, with the models it is of, before the next is begun."""
    rows = []
    with out.open("ab", buffering=0) if out else nullcontext() as file, progress_bar("evaluating", total) as advance:
        for row in measure(progress=advance):
            rows.append(row)
            if file:
                told = row | ({"models": models} if models else {})
                file.write((json.dumps(told, ensure_ascii=False) + "\n").encode())
    return rows


def write_page(out: Path, page: str) -> None:
    """Put the page of these rows beside the file they are in."""
    from sp.trace import write_atomic

    print(f"sp: report in {write_atomic(out.with_suffix('.report.html'), page.encode())}", file=sys.stderr)


def trained_for(pipeline: Pipeline) -> str:
    """What the pair's drafter was trained for, if its file says so."""
    from sp.evals.trained_for import note_of_file

    return note_of_file(pipeline.drafter.path) if pipeline.drafter else ""


def show(lines: Sequence[dict[str, Any]], columns: tuple[Column, ...], asked: Asked, pipeline: Pipeline) -> None:
    """Print summaries as a table, with what the pair's drafter was trained for, or as JSON."""
    if asked.as_json:
        print_json({"results": list(lines)})
        return
    shown = print_table(*cells_of(lines, columns), "table", LEFT, main=MAIN[columns], wide=asked.wide)
    notes = ["; ".join(f"{head}: {told}" for head, told in MEANINGS[columns].items() if head in shown)]
    if any(line["not_run"] for line in lines):
        notes.append(NOT_RUN)
    notes.append(trained_for(pipeline))
    for note in filter(None, notes):
        print(fill(note, text_width()))


def number(name: str, pattern: str) -> Callable[[Mapping[str, Any]], str]:
    """Prints a column that may be unknown."""
    return lambda line: "-" if line.get(name) is None else pattern.format(line[name])


def interval(low: str, high: str, pattern: str) -> Callable[[Mapping[str, Any]], str]:
    """Prints two columns as an interval."""
    return lambda line: "-" if line.get(low) is None else f"{pattern} to {pattern}".format(line[low], line[high])


def size(line: Mapping[str, Any]) -> str:
    """Examples, and how many could not be run."""
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
ORACLE_ANSWERS = (*RIGHT, *ORACLE, *EVIDENCE)  # where an oracle was among the cells
PERPLEXITY: tuple[Column, ...] = (
    *CELL,
    ("perplexity", number("perplexity", "{:.2f}")),
    ("nll", number("nll", "{:.3f}")),
    ("-full", number("nll_change", "{:+.3f}")),
    ("95 %", interval("nll_change_low", "nll_change_high", "{:+.3f}")),
    ("KL", number("kl", "{:.3f}")),
    ("same token", number("agreement", "{:.0%}")),
)
LEFT = 4  # columns of text
FIRST = ("task", "tokens", "scorer", "selector", "keep", "n")
OF_RIGHT = (*FIRST, "right", "right 95 %", "-full", "ttft s", "x")
MAIN = {
    ANSWERS: OF_RIGHT,
    ORACLE_ANSWERS: OF_RIGHT,
    PERPLEXITY: (*FIRST, "perplexity", "-full", "-full 95 %", "same token"),
}  # columns that are shown in any case
OF_ANSWERS = {
    "-full": "difference of scores from full prefill",
    "-oracle": "difference of right answers from the oracle that was right most often at the same task, length and "
    "keep ratio",
    "evidence": "share of examples with every token of the answers kept, and right then",
    "rank": "of the needle's best chunk, and its margin",
    "x": "times faster to the first token",
}
MEANINGS = {
    ANSWERS: OF_ANSWERS,
    ORACLE_ANSWERS: OF_ANSWERS,
    PERPLEXITY: {
        "-full": "difference of nll (nats a token) from full prefill",
        "KL": "from its predictions",
        "same token": "share of equal likeliest predictions",
    },
}  # what heads mean that do not say so
NOT_RUN = "not run: a prompt of a file exceeds the target's context, or nothing tells the oracle what counts"
