"""Workers that carry out the runs of a sweep, in this process or in pools on GPUs or on Ray, where a worker may die.

A worker loads a pair of models once, makes the examples of a run, evaluates every cell and returns the rows to store.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from sp.cluster import Cluster
from sp.errors import ConfigError, SpError, plain
from sp.evals.base import RESERVED, Example
from sp.evals.natural.questions import NaturalTask
from sp.evals.natural.rows import NaturalRun
from sp.evals.run import COLUMNS as OPTION_COLUMNS
from sp.evals.run import RESULTS, Row, counter, evaluate
from sp.plugins import Plugin
from sp.session import Pipeline
from sp.session.device_memory import Where
from sp.studies.sweep.provenance import pair_paths
from sp.studies.sweep.sweep import Pair, Run

ATTEMPTS = 3
WARM_TOKENS = 1024


@dataclass(frozen=True)
class Outcome:
    """Rows of a run and its seconds, or the error that ended it, in one line."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None


class WorkerDied(Exception):  # noqa: N818
    """A worker's process or actor ended during a run, whose rows are lost."""


def run_here(worker: RunWorker, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs in this process, one after another."""
    for run in jobs:
        yield run, worker.run(run)


def run_on(pool: GPUPool | ActorPool, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs on a pool, and yield them as they finish.

    Where a worker dies, only its run is lost; it is tried up to three times in all, and a new worker is started if
    there are more runs than idle workers. All workers end after the last run or an interruption.
    """
    waiting, attempts = deque(enumerate(jobs)), Counter[int]()
    busy: dict[Any, tuple[Any, int, Run]] = {}
    try:
        idle = deque(pool.start() for _ in range(min(pool.size, len(jobs))))
        while waiting or busy:
            while idle and waiting:
                index, run = waiting.popleft()
                worker = idle.popleft()  # first one that has finished a run, whose models are loaded, then new ones
                busy[pool.submit(worker, run)] = worker, index, run
            over = pool.first(list(busy))
            worker, index, run = busy.pop(over)
            try:
                outcome = pool.result(over)
            except WorkerDied as error:
                attempts[index] += 1
                given_up = attempts[index] >= ATTEMPTS
                if not given_up:
                    waiting.appendleft((index, run))
                if len(waiting) > len(idle):  # a new worker costs loading its models, so only if there is work for it
                    idle.append(pool.start())
                if not given_up:
                    continue
                outcome = Outcome(error=f"its worker died {ATTEMPTS} times ({error})")
            else:
                idle.append(worker)
            yield run, outcome
    finally:
        pool.close()


VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")


def read_gpus(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Read GPUs such as ``0,1`` or ``GPU-1b2c...`` into the form of ``CUDA_VISIBLE_DEVICES``.

    Numbers count among the GPUs of that variable if it is set. A GPU named twice gets two workers. Raises ConfigError
    for any other text, or a number that is too high.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(GPU.fullmatch(name) for name in names):
        raise ConfigError(f"--devices takes numbers of GPUs with commas between them, e.g. 0,1, not {text!r}")
    if VISIBLE not in environment:
        return tuple(names)
    seen = [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    for name in names:
        if name.isdecimal() and int(name) >= len(seen):
            raise ConfigError(f"--devices: there is no GPU {name}, as {VISIBLE} has {len(seen)}; use a lower number")
    return tuple(seen[int(name)] if name.isdecimal() else name for name in names)


@dataclass
class GPUWorker:
    """A process that carries out runs on one GPU, one after another, and the parent's end of the pipe to it."""

    gpu: str
    process: BaseProcess
    link: Connection


@dataclass
class GPUPool:
    """A pool with one process for each of `gpus`, which are named as in ``CUDA_VISIBLE_DEVICES``.

    A process that dies leaves its GPU to the next. With models on the CPU, `gpus` only says how many processes.
    `make_worker`, which must be picklable, is called in the process.
    """

    gpus: Sequence[str]
    make_worker: Callable[[], RunWorker]
    _free: deque[str] = field(init=False)
    _workers: list[GPUWorker] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._free = deque(self.gpus)

    @property
    def size(self) -> int:
        """Number of workers, one for every GPU."""
        return len(self.gpus)

    def start(self) -> GPUWorker:
        """Start a process on the next free GPU. It is spawned: a forked one would share the parent's CUDA context."""
        here, there = get_context("spawn").Pipe()  # the parent's end, and the child's
        gpu = self._free.popleft()
        process = get_context("spawn").Process(target=serve_gpu, args=(gpu, there, self.make_worker), daemon=True)
        # Ctrl-C goes to the whole process group, but only the parent is to handle it, which ends its workers. The
        # child inherits the signal mask that is set while it starts.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()  # so that the child's end exists only in the child, and its death is an EOFError here
        worker = GPUWorker(gpu, process, here)
        self._workers.append(worker)
        return worker

    def submit(self, worker: Any, run: Run) -> Any:
        """Send a run to a worker and return its pipe. If the worker is dead, `result` raises WorkerDied."""
        with suppress(OSError):
            worker.link.send(run)
        return worker.link

    def first(self, running: Sequence[Connection]) -> Connection:
        """Wait until a worker has an outcome or has died, and return its pipe."""
        ready: Any = wait(running)
        return ready[0]  # type: ignore[no-any-return]

    def result(self, link: Connection) -> Outcome:
        """Return the outcome of a run. Raises WorkerDied, and frees the GPU, if the process has died."""
        try:
            outcome: Outcome = link.recv()
        except (EOFError, OSError):
            worker = next(worker for worker in self._workers if worker.link is link)
            self._workers.remove(worker)
            worker.process.join()
            link.close()
            self._free.append(worker.gpu)
            raise WorkerDied(f"GPU {worker.gpu}, status {worker.process.exitcode}") from None
        return outcome

    def close(self) -> None:
        """End every worker, busy or not."""
        for worker in self._workers:
            worker.link.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def serve_gpu(gpu: str, link: Connection, make_worker: Callable[[], RunWorker]) -> None:
    """Carry out the runs that come through a pipe, on one GPU, until its other end is closed.

    The environment names the GPU before the driver lists its devices, which is when the worker is made or later.
    """
    os.environ[VISIBLE] = gpu
    worker = make_worker()
    while True:
        try:
            run = link.recv()
        except EOFError:
            return
        link.send(worker.run(run))


START_SECONDS = 120.0  # an actor that has not started by then counts as lost: the cluster has no place for it
LOOK_SECONDS = 5.0  # between checks for such actors

Kind = Literal["GPU", "CPU"]


@dataclass(eq=False)
class ActorWorker:
    """A Ray actor; `ready` is the promise that is fulfilled when its worker is made, `since` a monotonic time (s)."""

    actor: Any
    ready: Any
    since: float = field(default_factory=time.monotonic)


class ActorPool:
    """A pool of Ray actors with one GPU or one CPU each.

    `actors` is their number, by default as many as the cluster has free; ConfigError if it has fewer. The connection
    to the cluster is closed with the pool.
    """

    def __init__(
        self, cluster: Cluster, make_worker: Callable[[], RunWorker], kind: Kind = "CPU", actors: int | None = None
    ) -> None:
        free = cluster.free(kind, actors or 1)
        if free < (actors or 1):
            has = f"no {kind}" if not free else f"{free} {kind}{'s' * (free != 1)}"
            raise ConfigError(
                f"--executor ray: the cluster has {has} free, and each actor needs one; wait, add hosts or "
                f"{'lower --actors' if free else 'choose another cluster'}"
            )
        self.size = actors or free
        self._cluster, self._ray = cluster, cluster.ray
        self._running: dict[Any, ActorWorker] = {}
        self._workers: list[ActorWorker] = []

        # Ray may start an actor in another folder, but paths of models and plugins can be relative to this one.
        folder = os.getcwd()

        class Actor:
            def __init__(self) -> None:
                with suppress(OSError):  # a host without this folder may still have the files of absolute paths
                    os.chdir(folder)
                self.worker = make_worker()

            def begin(self) -> None:
                """Return once the worker is made, as an actor handles its calls in order."""

            def run(self, job: Run) -> Outcome:
                return self.worker.run(job)

        self._actor = self._ray.remote(**cluster.share(kind, self.size))(Actor)

    def start(self) -> ActorWorker:
        """Start an actor. It can be given a run at once, and begins with it when the cluster has a place for it."""
        actor = self._actor.remote()
        worker = ActorWorker(actor, actor.begin.remote())
        self._workers.append(worker)
        return worker

    def submit(self, worker: Any, run: Run) -> Any:
        """Submit a run to an actor and return the promise of its outcome."""
        promise = worker.actor.run.remote(run)
        self._running[promise] = worker
        return promise

    def first(self, running: Sequence[Any]) -> Any:
        """Wait for the next run that is over; a run whose actor got no place in the cluster counts as over, too."""
        while True:
            over, _ = self._ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
            if over:
                return over[0]
            for promise in running:
                worker = self._running[promise]
                if time.monotonic() - worker.since < START_SECONDS:
                    continue
                if not self._ray.wait([worker.ready], timeout=0)[0]:  # never started
                    return promise

    def result(self, promise: Any) -> Outcome:
        """Return the outcome of a run. Raises WorkerDied if the actor or its host is gone, or got no place."""
        worker, errors = self._running.pop(promise), self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(promise, timeout=0)
        except errors.GetTimeoutError:
            self._end(worker)
            raise WorkerDied(f"no host had a place for it in {START_SECONDS:.0f} s") from None
        except errors.RayTaskError as error:  # the actor still runs, but the state of its models is unknown
            self._end(worker)
            raise WorkerDied(plain(f"{type(error.cause).__name__}: {error.cause}")) from None
        except errors.RayError as error:
            self._end(worker)
            raise WorkerDied(last_line(error)) from None
        return outcome

    def _end(self, worker: ActorWorker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)

    def close(self) -> None:
        """End every actor, busy or not, and the connection to the cluster."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()
        self._cluster.close()


def last_line(error: Exception) -> str:
    """Return the type and the last line of a Ray error, which names what ended the actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return plain(f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__)


COLUMNS = (
    "task", "example", "tokens_asked", "prompt_tokens", "cell", "scorer", "selector", "decode", "status",
    "depth", "thinking", "reasoning_effort",
    *OPTION_COLUMNS, *RESULTS,
)  # fmt: skip
"""Columns of every row; the expected answers and other facts of an example are in its first row only."""


class RunWorker:
    """Carry out runs with one pair of models, which stays loaded.

    `progress` is called with the run and 1 after every row. `plugins` are loaded first, as a worker in a process of
    its own needs.
    """

    def __init__(
        self, device: Where = "auto", progress: Callable[[Run, int], None] | None = None, plugins: Sequence[Plugin] = ()
    ) -> None:
        for plugin in plugins:
            plugin.load()
        self.device = device
        self.progress = progress or (lambda run, rows: None)
        self._loaded: tuple[Pair, Pipeline] | None = None

    def pipeline(self, pair: Pair, tokens: int = WARM_TOKENS) -> Pipeline:
        """Return the pair, loaded and warmed up; only the latest pair stays in memory.

        `tokens` is the length of the prompts to come: warming up on a longer one would cost more time than it saves.
        """
        if self._loaded is None or self._loaded[0] != pair:
            self._loaded = None  # frees the former pair before another is loaded: both may not fit
            paths = pair_paths(pair)
            pipeline = Pipeline.open(paths["target"], paths["drafter"], device=self.device, **pair.changed_options)
            if "draft" in paths:
                pipeline = pipeline.with_speculator(paths["draft"])
            pipeline.warm_up(min(WARM_TOKENS, tokens))
            self._loaded = pair, pipeline
        return self._loaded[1]

    def run(self, run: Run) -> Outcome:
        """Carry out one run; an SpError, which a user can mend, becomes its outcome."""
        try:
            pipeline = self.pipeline(run.pair, run.tokens or WARM_TOKENS)
            start = time.perf_counter()
            return Outcome(list(self._rows(run, pipeline)), time.perf_counter() - start)
        except SpError as error:
            return Outcome(error=str(error))

    def _rows(self, run: Run, pipeline: Pipeline) -> Iterator[Row]:
        cells, thinking = [cell.options for cell in run.cells], run.spec.thinking

        def progress(done: int) -> None:
            self.progress(run, done)

        if isinstance(run.spec.task, NaturalTask):
            return natural_rows(run, NaturalRun(pipeline, cells, run.full, thinking), progress)
        prompts = examples(run, pipeline)
        rows = evaluate(pipeline, prompts, cells, full=run.full, thinking=thinking, progress=progress)
        return stored_rows(run, rows)


def examples(run: Run, pipeline: Pipeline) -> Iterator[Example]:
    """Make the examples of a run, one at a time."""
    count = counter(pipeline.target.tokenizer)
    for index in range(run.first, run.first + run.count):
        yield run.spec.task.example(index, run.tokens, count)


def natural_rows(run: Run, work: NaturalRun, progress: Callable[[int], None]) -> Iterator[Row]:
    """Return rows of questions as `sp eval natural` makes them, plus the columns that identify a row of a sweep."""
    pair = pair_name(run)
    for question in run.spec.task.all_questions[run.first : run.first + run.count]:  # type: ignore[attr-defined]
        for row in work.rows(question, progress=progress):
            measures = {f"fact_{name}" if name in RESERVED else name: value for name, value in row.items()}
            identity = {"task": run.spec.name, "example": question.id, "tokens_asked": row["prompt_tokens"]}
            yield measures | identity | ({"pair": pair} if pair else {})


def pair_name(run: Run) -> str:
    """Return the paths of a run's models, and options that differ from the defaults; empty for the embedded pair."""
    paths = run.pair.target, run.pair.drafter, run.pair.speculator if run.pair.target else None
    return "+".join(
        [str(path) for path in paths if path] + [f"{name} {value}" for name, value in run.pair.changed_options.items()]
    )


def stored_rows(run: Run, rows: Iterable[Row]) -> Iterator[Row]:
    """Reduce rows to what is stored: measures that are not None, the task with its options, facts once per example.

    A fixed depth goes into the example's name and `asked_depth` instead of the task's name, so that a grid of depths
    is one task.
    """
    words = run.spec.name.split(" ")
    depth = [word for word in words if word.startswith("depth=")]
    task = " ".join(word for word in words if word not in depth)
    pair, last = pair_name(run), None
    for row in rows:
        first, last = row["example"] != last, row["example"]
        stored = {key: value for key, value in row.items() if value is not None and (first or key in COLUMNS)}
        stored |= {"task": task, "example": " ".join([row["example"], *depth])}
        if depth:
            stored["asked_depth"] = float(depth[0].removeprefix("depth="))
        yield stored | ({"pair": pair} if pair else {})
