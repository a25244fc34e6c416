"""Carry out runs of a sweep: load the pair once, make the examples, evaluate every cell, keep what a row needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from sp.errors import SpError
from sp.evals.base import RESERVED, Example
from sp.evals.natural.rows import Work
from sp.evals.natural.task import NaturalTask
from sp.evals.run import COLUMNS as OPTION_COLUMNS
from sp.evals.run import RESULTS, Row, evaluate
from sp.plugins import Plugin
from sp.session import Pipeline
from sp.session.options import Where
from sp.studies.sweep.executor import Outcome
from sp.studies.sweep.pairs import Pair
from sp.studies.sweep.provenance import pair_paths
from sp.studies.sweep.runs import Run

COLUMNS = (
    "task", "example", "tokens_asked", "prompt_tokens", "cell", "scorer", "selector", "decode", "status",
    "depth", "thinking", "reasoning_effort",
    *OPTION_COLUMNS, *RESULTS,
)  # fmt: skip
"""What every row says; the answers expected and other facts of an example stand in its first row."""


class Worker:
    """Keeps one pair loaded and carries out runs with it.

    `progress`: called with the run and 1 after every row; `plugins`: to load first, where the worker has a process of
    its own.
    """

    def __init__(
        self, device: Where = "auto", progress: Callable[[Run, int], None] | None = None, plugins: Sequence[Plugin] = ()
    ) -> None:
        for plugin in plugins:
            plugin.load()
        self.device = device
        self.progress = progress or (lambda job, done: None)
        self._loaded: tuple[Pair, Pipeline] | None = None

    def pipeline(self, pair: Pair) -> Pipeline:
        """The pair, loaded and warm; only the last one asked for stays in memory."""
        if self._loaded is None or self._loaded[0] != pair:
            self._loaded = None
            paths = pair_paths(pair)
            pipeline = Pipeline.open(paths["target"], paths["drafter"], device=self.device, **pair.asked)
            if "draft" in paths:
                pipeline = pipeline.with_draft(paths["draft"])
            pipeline.warm_up()
            self._loaded = pair, pipeline
        return self._loaded[1]

    def run(self, job: Run) -> Outcome:
        """Carry out one run; an error that a user can mend becomes its outcome."""
        try:
            pipeline = self.pipeline(job.pair)
            start = time.perf_counter()
            return Outcome(list(self._rows(job, pipeline)), time.perf_counter() - start)
        except SpError as error:
            return Outcome(error=str(error))

    def _rows(self, job: Run, pipeline: Pipeline) -> Iterator[Row]:
        """Rows as they go to disk."""
        cells, thinking = [cell.options for cell in job.cells], job.spec.thinking

        def progress(done: int) -> None:
            self.progress(job, done)

        if isinstance(job.spec.task, NaturalTask):
            return natural_rows(job, Work(pipeline, cells, job.full, thinking), progress)
        made = examples(job, pipeline)
        rows = evaluate(pipeline, made, cells, full=job.full, thinking=thinking, progress=progress)
        return stored_rows(job, rows)


def examples(job: Run, pipeline: Pipeline) -> Iterator[Example]:
    """The examples of a run, made one at a time."""
    tokenizer = pipeline.target.tokenizer

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    for index in range(job.first, job.first + job.count):
        yield job.spec.task.example(index, job.tokens, count)


def natural_rows(job: Run, work: Work, progress: Callable[[int], None]) -> Iterator[Row]:
    """Rows of questions as `sp eval natural` makes them, with the columns by which a sweep tells its rows apart."""
    pair = pair_name(job)
    for question in job.spec.task.asked[job.first : job.first + job.count]:  # type: ignore[attr-defined]
        for row in work.rows(question, progress=progress):
            named = {f"fact_{name}" if name in RESERVED else name: value for name, value in row.items()}
            told = {"task": job.spec.name, "example": question.id, "tokens_asked": row["prompt_tokens"]}
            yield named | told | ({"pair": pair} if pair else {})


def pair_name(job: Run) -> str:
    """Paths of the models of a run, and what was asked of them; empty for the embedded pair."""
    named = job.pair.target, job.pair.drafter, job.pair.draft if job.pair.target else None
    return "+".join(
        [str(path) for path in named if path] + [f"{name} {value}" for name, value in job.pair.asked.items()]
    )


def stored_rows(job: Run, rows: Iterable[Row]) -> Iterator[Row]:
    """What of the rows goes to disk: measures that exist, the task with its options, facts once an example.

    A fixed depth is no other task, or a grid of depths would be as many tasks: it goes into the example's name and into
    `asked_depth`, beside the `depth` where the needle found a place.
    """
    words = job.spec.name.split(" ")
    depth = [word for word in words if word.startswith("depth=")]
    task = " ".join(word for word in words if word not in depth)
    pair, last = pair_name(job), None
    for row in rows:
        first, last = row["example"] != last, row["example"]
        kept = {key: value for key, value in row.items() if value is not None and (first or key in COLUMNS)}
        kept |= {"task": task, "example": " ".join([row["example"], *depth])}
        if depth:
            kept["asked_depth"] = float(depth[0].removeprefix("depth="))
        yield kept | ({"pair": pair} if pair else {})
