"""Runs over several GPUs of one machine: a process a card, which sees no other, and one that hands out and writes."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from sp.errors import ConfigError
from sp.studies.sweep.executor import Outcome, RunsJobs, WorkerDied
from sp.studies.sweep.runs import Run

VISIBLE = "CUDA_VISIBLE_DEVICES"
CARD = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")


def read_cards(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Cards such as ``0,1``, as ``CUDA_VISIBLE_DEVICES`` names them; one named twice gets two workers.

    `text`: numbers, or identifiers such as ``GPU-1b2c...``, with commas between them; `environment`: where
    ``CUDA_VISIBLE_DEVICES`` is set there, numbers count among the cards it names.

    Raises
    ------
    ConfigError
        For anything else, or a number beyond the cards that are visible.

    Examples
    --------
    >>> read_cards("0, 1,1", {}), read_cards("0,1", {"CUDA_VISIBLE_DEVICES": "4,6"})
    (('0', '1', '1'), ('4', '6'))
    """
    names = [name.strip() for name in text.split(",")]
    if not all(CARD.fullmatch(name) for name in names):
        raise ConfigError(f"--devices takes numbers of GPUs with commas between them, e.g. 0,1, not {text!r}")
    if VISIBLE not in environment:
        return tuple(names)
    seen = [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    for name in names:
        if name.isdecimal() and int(name) >= len(seen):
            raise ConfigError(f"--devices: there is no GPU {name}, for {VISIBLE} names {len(seen)}")
    return tuple(seen[int(name)] if name.isdecimal() else name for name in names)


@dataclass
class CardWorker:
    """A process that carries out one run after another on its card."""

    card: str
    process: BaseProcess
    link: Connection


@dataclass
class CardPool:
    """A worker for every card named; one that dies gives its card to the next.

    `cards`: as ``CUDA_VISIBLE_DEVICES`` names them. On the CPU they only count the workers. `make_worker`: makes the
    worker in its own process; must be picklable.
    """

    cards: Sequence[str]
    make_worker: Callable[[], RunsJobs]
    _free: deque[str] = field(init=False)
    _workers: list[CardWorker] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._free = deque(self.cards)

    @property
    def size(self) -> int:
        """One worker for every card named."""
        return len(self.cards)

    def start(self) -> CardWorker:
        """A new process on the next free card; it is spawned, for a forked one would share the parent's context."""
        here, there = get_context("spawn").Pipe()
        card = self._free.popleft()
        process = get_context("spawn").Process(target=serve_card, args=(card, there, self.make_worker), daemon=True)
        # An interruption is the parent's, which ends its workers: they inherit a mask that keeps it from them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        worker = CardWorker(card, process, here)
        self._workers.append(worker)
        return worker

    def submit(self, worker: CardWorker, job: Run) -> Connection:
        """Begin a run; one that a dead worker cannot take is found dead by `result`."""
        with suppress(OSError):
            worker.link.send(job)
        return worker.link

    def first(self, running: Sequence[Connection]) -> Connection:
        """Wait until a worker has an outcome, or is gone."""
        ready: Any = wait(running)
        return ready[0]  # type: ignore[no-any-return]

    def result(self, over: Connection) -> Outcome:
        """What came of it; WorkerDied, with the card free again, if its process is gone."""
        try:
            outcome: Outcome = over.recv()
        except (EOFError, OSError):
            worker = next(each for each in self._workers if each.link is over)
            self._workers.remove(worker)
            worker.process.join()
            over.close()
            self._free.append(worker.card)
            raise WorkerDied(f"card {worker.card}, status {worker.process.exitcode}") from None
        return outcome

    def close(self) -> None:
        """End every worker, whatever it does."""
        for worker in self._workers:
            worker.link.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def serve_card(card: str, link: Connection, make_worker: Callable[[], RunsJobs]) -> None:
    """Carry out what comes through a link, on one card, until the other end is closed.

    The card is named before anything asks the driver for its devices, which happens when the worker is made or later.
    """
    os.environ[VISIBLE] = card
    worker = make_worker()
    while True:
        try:
            job = link.recv()
        except EOFError:
            return
        link.send(worker.run(job))
