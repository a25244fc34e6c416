"""Where runs are carried out: one after the other in this process, or over a pool of workers that may die; and how:
the pair loaded once, the examples made, every cell evaluated, what a row needs kept."""

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
    """What came of a run: its rows and the time it took, or one line that says why not."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None


class WorkerDied(Exception):  # noqa: N818
    """The worker of a run is gone, and the run with it."""


def run_here(worker: Worker, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """One run after another in this process."""
    for job in jobs:
        yield job, worker.run(job)


def run_on(pool: GPUPool | ActorPool, jobs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
    """Runs over a pool, as they finish. A worker that dies is replaced where there is work for another, and its run,
    the only thing lost, tried again, up to three times in all. No worker outlives the last run, or an interruption."""
    waiting, attempts = deque(enumerate(jobs)), Counter[int]()
    busy: dict[Any, tuple[Any, int, Run]] = {}
    try:
        idle = deque(pool.start() for _ in range(min(pool.size, len(jobs))))
        while waiting or busy:
            while idle and waiting:
                index, job = waiting.popleft()
                worker = idle.popleft()  # one that has worked before one that has only been asked for
                busy[pool.submit(worker, job)] = worker, index, job
            over = pool.first(list(busy))
            worker, index, job = busy.pop(over)
            try:
                outcome = pool.result(over)
            except WorkerDied as error:
                attempts[index] += 1
                given_up = attempts[index] >= ATTEMPTS
                if not given_up:
                    waiting.appendleft((index, job))
                if len(waiting) > len(idle):
                    idle.append(pool.start())
                if not given_up:
                    continue
                outcome = Outcome(error=f"its worker died {ATTEMPTS} times ({error})")
            else:
                idle.append(worker)
            yield job, outcome
    finally:
        pool.close()


VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")


def read_gpus(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """GPUs such as ``0,1`` or ``GPU-1b2c...``, as ``CUDA_VISIBLE_DEVICES`` names them, among whose GPUs numbers count
    where it is set; one named twice gets two workers. ConfigError for anything else, or a number beyond them."""
    names = [name.strip() for name in text.split(",")]
    if not all(GPU.fullmatch(name) for name in names):
        raise ConfigError(f"--devices takes numbers of GPUs with commas between them, e.g. 0,1, not {text!r}")
    if VISIBLE not in environment:
        return tuple(names)
    seen = [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    for name in names:
        if name.isdecimal() and int(name) >= len(seen):
            raise ConfigError(f"--devices: there is no GPU {name}, for {VISIBLE} names {len(seen)}")
    return tuple(seen[int(name)] if name.isdecimal() else name for name in names)


@dataclass
class GPUWorker:
    """A process that carries out one run after another on its GPU."""

    gpu: str
    process: BaseProcess
    link: Connection


@dataclass
class GPUPool:
    """A worker for every GPU named, as in ``CUDA_VISIBLE_DEVICES``; one that dies gives its GPU to the next. On the
    CPU they only count the workers. `make_worker`, picklable, makes one in its own process."""

    gpus: Sequence[str]
    make_worker: Callable[[], Worker]
    _free: deque[str] = field(init=False)
    _workers: list[GPUWorker] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._free = deque(self.gpus)

    @property
    def size(self) -> int:
        """One worker for every GPU named."""
        return len(self.gpus)

    def start(self) -> GPUWorker:
        """A new process on the next free GPU; it is spawned, for a forked one would share the parent's context."""
        here, there = get_context("spawn").Pipe()
        gpu = self._free.popleft()
        process = get_context("spawn").Process(target=serve_gpu, args=(gpu, there, self.make_worker), daemon=True)
        # An interruption is the parent's, which ends its workers: they inherit a mask that keeps it from them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        worker = GPUWorker(gpu, process, here)
        self._workers.append(worker)
        return worker

    def submit(self, worker: Any, job: Run) -> Any:
        """Begin a run; one that a dead worker cannot take is found dead by `result`."""
        with suppress(OSError):
            worker.link.send(job)
        return worker.link

    def first(self, running: Sequence[Connection]) -> Connection:
        """Wait until a worker has an outcome, or is gone."""
        ready: Any = wait(running)
        return ready[0]  # type: ignore[no-any-return]

    def result(self, over: Connection) -> Outcome:
        """What came of it; WorkerDied, with the GPU free again, if its process is gone."""
        try:
            outcome: Outcome = over.recv()
        except (EOFError, OSError):
            worker = next(each for each in self._workers if each.link is over)
            self._workers.remove(worker)
            worker.process.join()
            over.close()
            self._free.append(worker.gpu)
            raise WorkerDied(f"GPU {worker.gpu}, status {worker.process.exitcode}") from None
        return outcome

    def close(self) -> None:
        """End every worker, whatever it does."""
        for worker in self._workers:
            worker.link.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def serve_gpu(gpu: str, link: Connection, make_worker: Callable[[], Worker]) -> None:
    """Carry out what comes through a link, on one GPU, until the other end is closed. The GPU is named before
    anything asks the driver for its devices, which happens when the worker is made or later."""
    os.environ[VISIBLE] = gpu
    worker = make_worker()
    while True:
        try:
            job = link.recv()
        except EOFError:
            return
        link.send(worker.run(job))


START_SECONDS = 120.0  # an actor that has not begun by then has no place in the cluster
LOOK_SECONDS = 5.0

Kind = Literal["GPU", "CPU"]


@dataclass(eq=False)
class ActorWorker:
    """An actor, and whether it answers yet; `begun` is Ray's promise of its first answer."""

    actor: Any
    begun: Any
    since: float = field(default_factory=time.monotonic)


class ActorPool:
    """Workers as Ray actors, one GPU or one CPU each, as many as the cluster has free if left out; the cluster is
    closed with the pool. ConfigError if it has not so many free."""

    def __init__(
        self, cluster: Cluster, make_worker: Callable[[], Worker], kind: Kind = "CPU", actors: int | None = None
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

        folder = os.getcwd()

        class Actor:
            def __init__(self) -> None:
                with suppress(OSError):  # a host that has no such folder may yet have whatever is named in full
                    os.chdir(folder)
                self.worker = make_worker()

            def begin(self) -> None:
                """Answers once the worker is made."""

            def run(self, job: Run) -> Outcome:
                return self.worker.run(job)

        self._actor = self._ray.remote(**cluster.share(kind, self.size))(Actor)

    def start(self) -> ActorWorker:
        """A new actor; it is given its run at once and begins with it when it has a place."""
        actor = self._actor.remote()
        worker = ActorWorker(actor, actor.begin.remote())
        self._workers.append(worker)
        return worker

    def submit(self, worker: Any, job: Run) -> Any:
        """Begin a run on an actor."""
        over = worker.actor.run.remote(job)
        self._running[over] = worker
        return over

    def first(self, running: Sequence[Any]) -> Any:
        """The next run that is over; one whose actor finds no place counts as over, too."""
        while True:
            ready, _ = self._ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
            lost = [over for over in running if time.monotonic() - self._running[over].since >= START_SECONDS]
            late = ready or [each for each in lost if not self._ray.wait([self._running[each].begun], timeout=0)[0]]
            if late:
                return late[0]

    def result(self, over: Any) -> Outcome:
        """The outcome; WorkerDied if the actor or its host is gone, or never had a place."""
        worker, errors = self._running.pop(over), self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(over, timeout=0)
        except errors.GetTimeoutError:
            self._end(worker)
            raise WorkerDied(f"no host had a place for it in {START_SECONDS:.0f} s") from None
        except errors.RayTaskError as error:  # the actor stands, with whatever the run has left of its pair
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
        """End every actor, whatever it does, and the connection."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()
        self._cluster.close()


def last_line(error: Exception) -> str:
    """What an error of Ray comes down to: its text ends with what the actor ended by."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return plain(f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__)


COLUMNS = (
    "task", "example", "tokens_asked", "prompt_tokens", "cell", "scorer", "selector", "decode", "status",
    "depth", "thinking", "reasoning_effort",
    *OPTION_COLUMNS, *RESULTS,
)  # fmt: skip
"""What every row says; the answers expected and other facts of an example stand in its first row."""


class Worker:
    """Keeps one pair loaded and carries out runs with it. `progress`: called with the run and 1 after every row;
    `plugins`: to load first, where the worker has a process of its own."""

    def __init__(
        self, device: Where = "auto", progress: Callable[[Run, int], None] | None = None, plugins: Sequence[Plugin] = ()
    ) -> None:
        for plugin in plugins:
            plugin.load()
        self.device = device
        self.progress = progress or (lambda job, done: None)
        self._loaded: tuple[Pair, Pipeline] | None = None

    def pipeline(self, pair: Pair, tokens: int = WARM_TOKENS) -> Pipeline:
        """The pair, loaded and warm; only the last one asked for stays in memory. `tokens`: of the prompts to come, for
        a longer one to warm up on would take more time than it saves."""
        if self._loaded is None or self._loaded[0] != pair:
            self._loaded = None
            paths = pair_paths(pair)
            pipeline = Pipeline.open(paths["target"], paths["drafter"], device=self.device, **pair.asked)
            if "draft" in paths:
                pipeline = pipeline.with_speculator(paths["draft"])
            pipeline.warm_up(min(WARM_TOKENS, tokens))
            self._loaded = pair, pipeline
        return self._loaded[1]

    def run(self, job: Run) -> Outcome:
        """Carry out one run; an error that a user can mend becomes its outcome."""
        try:
            pipeline = self.pipeline(job.pair, job.tokens or WARM_TOKENS)
            start = time.perf_counter()
            return Outcome(list(self._rows(job, pipeline)), time.perf_counter() - start)
        except SpError as error:
            return Outcome(error=str(error))

    def _rows(self, job: Run, pipeline: Pipeline) -> Iterator[Row]:
        cells, thinking = [cell.options for cell in job.cells], job.spec.thinking

        def progress(done: int) -> None:
            self.progress(job, done)

        if isinstance(job.spec.task, NaturalTask):
            return natural_rows(job, NaturalRun(pipeline, cells, job.full, thinking), progress)
        made = examples(job, pipeline)
        rows = evaluate(pipeline, made, cells, full=job.full, thinking=thinking, progress=progress)
        return stored_rows(job, rows)


def examples(job: Run, pipeline: Pipeline) -> Iterator[Example]:
    """The examples of a run, made one at a time."""
    count = counter(pipeline.target.tokenizer)
    for index in range(job.first, job.first + job.count):
        yield job.spec.task.example(index, job.tokens, count)


def natural_rows(job: Run, work: NaturalRun, progress: Callable[[int], None]) -> Iterator[Row]:
    """Rows of questions as `sp eval natural` makes them, with the columns by which a sweep tells its rows apart."""
    pair = pair_name(job)
    for question in job.spec.task.all_questions[job.first : job.first + job.count]:  # type: ignore[attr-defined]
        for row in work.rows(question, progress=progress):
            named = {f"fact_{name}" if name in RESERVED else name: value for name, value in row.items()}
            told = {"task": job.spec.name, "example": question.id, "tokens_asked": row["prompt_tokens"]}
            yield named | told | ({"pair": pair} if pair else {})


def pair_name(job: Run) -> str:
    """Paths of the models of a run, and what was asked of them; empty for the embedded pair."""
    named = job.pair.target, job.pair.drafter, job.pair.speculator if job.pair.target else None
    return "+".join(
        [str(path) for path in named if path] + [f"{name} {value}" for name, value in job.pair.asked.items()]
    )


def stored_rows(job: Run, rows: Iterable[Row]) -> Iterator[Row]:
    """What of the rows goes to disk: measures that exist, the task with its options, facts once an example. A fixed
    depth is no other task, or a grid of depths would be as many: it goes into the example's name and `asked_depth`."""
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
