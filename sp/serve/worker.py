"""The worker: requests wait in lanes, one thread answers them one by one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sp.errors import SpError, TooLongError
from sp.kernels import device_errors
from sp.prompt import Prompt
from sp.serve.ahead import Ahead, check_length
from sp.serve.fields import RequestError, as_request_error, nth
from sp.serve.grammars import Grammars
from sp.serve.http import Metrics, busy
from sp.serve.lanes import Lane, Lanes
from sp.serve.messages import PromptTokens, Told, kept_text, to_prompt, usage
from sp.serve.protocol import Job
from sp.serve.sessions import Sessions
from sp.serve.text import Ended, Piece, ReplyText, Speaker, knowing, uncalled
from sp.session import Answer, Conversations, Pipeline, RunResult, TurnResult

log = logging.getLogger("sp.serve")


class CancelledError(Exception):
    """The client has left; raised inside the pipeline to end its work."""


@dataclass(frozen=True)
class Done:
    """The end of all answers: the usage block."""

    usage: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """No answer, or no more of it."""

    error: RequestError


@dataclass(frozen=True)
class Reading:
    """How far a stage is with a prompt: `tokens` of `total`."""

    stage: str
    tokens: int
    total: int


Result = RunResult | TurnResult
Event = Reading | Piece | Ended | Done | Failed
PROGRESS_SECONDS = 0.25  # between two events that tell of the same stage
SCORING = "scoring"  # the stage whose progress is counted in tokens of each layer


class Writer(Protocol):
    """Writes the answers to one request, whole or as events of a stream. `ping`: what is sent where nothing else was
    for a while, so that nobody takes the connection for dead.
    """

    ping: bytes

    def begin(self) -> bytes:
        """What can be told of a stream once its request is accepted."""

    def progress(self, read: Reading) -> bytes:
        """How far the prompt is read, for a client that asked for it."""

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """All of it."""

    def piece(self, piece: Piece) -> bytes:
        """One more piece."""

    def ended(self, end: Ended) -> bytes:
        """Why an answer ended."""

    def last(self, done: Done) -> bytes:
        """The end of all answers."""

    def failed(self, error: RequestError) -> bytes:
        """The end of a stream whose work has failed."""

    def told(self, error: RequestError) -> RequestError:
        """An error in the words of the request."""


@dataclass(eq=False)
class Ticket:
    """A request in the queue or at work; `emit` is called on the worker's thread."""

    job: Job
    emit: Callable[[Event], None]
    lane: Lane = ("", "")
    submitted: float = field(default_factory=time.perf_counter)
    cancelled: threading.Event = field(default_factory=threading.Event)
    at_work: bool = False  # whether it has left the queue
    layers: int = 1  # that score

    def check(self, _: int = 0) -> None:
        """Raise if the client has left."""
        if self.cancelled.is_set():
            raise CancelledError

    def shorten(self, room: int | None) -> bool:
        """Have the answer be no longer than there is room for; whether that makes it shorter."""
        if room is None or not 0 < room < self.job.options.max_new_tokens:
            return False
        self.job = replace(self.job, options=replace(self.job.options, max_new_tokens=room))
        return True

    @contextmanager
    def reporter(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Progress of a stage, as a place to stop at; of a stream it is told where that was asked for."""
        self.check()
        if not (self.job.stream and self.job.asked.progress):
            yield self.check
            return
        done, told, each = 0, time.perf_counter(), self.layers if what == SCORING else 1

        def tell(amount: int) -> None:
            nonlocal done, told
            self.check()
            done += amount
            if done < total and (now := time.perf_counter()) - told >= PROGRESS_SECONDS:
                told = now
                self.emit(Reading(what, done // each, total // each))

        self.emit(Reading(what, 0, total // each))
        yield tell
        self.emit(Reading(what, total // each, total // each))


class Worker:
    """Runs tickets one by one; clients take turns. `pipeline`: nobody else may run it meanwhile; `limit`: tickets that
    may wait. A client who has none, or few, takes the place of one who has many; `talks`: what is remembered from
    request to request; nothing without it.
    """

    def __init__(
        self, pipeline: Pipeline, metrics: Metrics, limit: int = 32, talks: Conversations | None = None
    ) -> None:
        self.pipeline, self.metrics, self.limit = pipeline, metrics, limit
        self._sessions = Sessions(pipeline, talks, metrics)
        self.ahead = Ahead(pipeline)
        self.grammars, self.started = Grammars(pipeline.target.tokenizer, pipeline.target.template), int(time.time())
        self._waiting: Lanes[Ticket] = Lanes()
        self._current: Ticket | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="sp-pipeline", daemon=True)
        self._sessions.when_idle(self._wake)
        metrics.watch("sp_queue_length", "Requests that wait.", lambda: len(self._waiting))
        metrics.watch("sp_running", "Requests at work, 0 or 1.", lambda: int(self._current is not None))

    @property
    def state(self) -> dict[str, Any]:
        """For `/health`."""
        alive = self._thread.is_alive() and not self._closed
        return {"status": "ok" if alive else "stopping", "waiting": len(self._waiting),
                "running": int(self._current is not None), "queue_limit": self.limit,
                "math": self.precision}  # fmt: skip

    @property
    def precision(self) -> dict[str, str]:
        """What the models multiply where they read a prompt."""
        models = {"target": self.pipeline.target, "drafter": self.pipeline.drafter}
        return {role: str(one.model.arithmetic) for role, one in models.items() if one is not None}

    def start(self) -> None:
        self._thread.start()

    def check_room(self) -> None:
        """RequestError when nobody's request would be queued, however few they have."""
        with self._changed:
            if self._closed:
                raise stopping()
            if len(self._waiting) >= self.limit and self._waiting.greediest(beside="") is None:
                raise busy(f"{self.limit} requests wait already")

    def submit(self, job: Job, emit: Callable[[Event], None], lane: Lane = ("", "")) -> Ticket:
        """Queue a job; RequestError when there is no room or no more work is taken."""
        reader = self.pipeline.drafter or self.pipeline.target
        ticket, displaced = Ticket(job, emit, lane, layers=reader.model.config.layers), None
        full = busy(f"{self.limit} requests wait already")
        with self._changed:
            if self._closed:
                raise stopping()
            if len(self._waiting) >= self.limit:
                displaced = self._waiting.greediest(beside=lane[0])
                if displaced is None:
                    raise full
                self._waiting.remove(displaced.lane, displaced)
            self._waiting.add(lane, ticket)
            self._changed.notify()
        if displaced is not None:
            self._fail(displaced, full)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket: at once if it waits, at its next token or layer if it is at work; nothing if it is done."""
        ticket.cancelled.set()
        with self._changed:
            if not self._waiting.remove(ticket.lane, ticket):
                return
        self.metrics.requests.labels("cancelled").inc()

    def close(self) -> None:
        """Take no more work and refuse what waits; the ticket at work goes on."""
        with self._changed:
            self._closed = True
            refused = self._waiting.clear()
            self._changed.notify()
        for ticket in refused:
            self._fail(ticket, stopping())

    def stop(self, timeout: float = 10.0) -> None:
        """Close, cancel what is at work and wait for the thread."""
        self.close()
        if (current := self._current) is not None:
            current.cancelled.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self.ahead.pool.shutdown(wait=False, cancel_futures=True)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _loop(self) -> None:
        while True:
            self._sessions.save()  # of a turn, once its answer is sent
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed or self._sessions.behind)
                if not self._waiting and self._closed:
                    break
                if not self._waiting:
                    continue
                ticket = self._current = self._waiting.next()
                ticket.at_work = True
            try:
                with device_errors():
                    self._serve(ticket)
            except CancelledError:
                self.metrics.requests.labels("cancelled").inc()
            except Exception as error:
                if not isinstance(error, SpError):
                    log.exception("a request failed")
                self._fail(ticket, as_request_error(error))
            finally:
                self._current = None
        self._sessions.close()

    def _fail(self, ticket: Ticket, error: RequestError) -> None:
        ticket.emit(Failed(error))

    def _serve(self, ticket: Ticket) -> None:
        start = time.perf_counter()
        job, target = ticket.job, self.pipeline.target
        ticket.check()
        self.pipeline.check_files()
        prompt, asked = to_prompt(job, target.template, target.tokenizer)
        check_length(self.pipeline, prompt, job.options)
        ticket.job = replace(job, penalties=knowing(job.penalties, prompt, target.tokenizer))
        apart = self._sessions.refusal(prompt, job)
        rendered = time.perf_counter()
        speakers = [self._speaker(ticket, prompt, index) for index in range(job.choices)]
        result, told = None, Told(asked=asked, apart=apart, queued=start - ticket.submitted, render=rendered - start)
        for speaker in speakers:
            answer, result = self._answer(ticket, prompt, apart, speaker, result)
            speaker.end(len(answer.tokens), ticket.job.options.max_new_tokens)
            told.generated += len(answer.tokens)
            told.reasoning += speaker.text.reasoning_tokens
        assert result is not None, "a request wants one answer at least"
        self.pipeline.check_files()  # or the answer may be of other weights
        self._count(result, told)
        used = usage(result, told, job.options)
        if ignored := [*job.ignored, *uncalled(speaker.text for speaker in speakers)]:
            used["sp"]["ignored"] = ignored
        if job.asked.return_kept:
            used["sp"]["kept_text"] = kept_text(result)
        ticket.emit(Done(used))

    def _speaker(self, ticket: Ticket, prompt: Prompt, index: int) -> Speaker:
        job, target = ticket.job, self.pipeline.target
        calling = job.tools.calling(target.template, prompt.thinks)
        text = ReplyText(target.tokenizer, job.stop, prompt.thinks, begins=job.kind == "chat", calling=calling)
        return Speaker(target.tokenizer, text, ticket.emit, index, job.logprobs)

    def _answer(
        self, ticket: Ticket, prompt: Prompt, apart: str | None, speaker: Speaker, first: Result | None
    ) -> tuple[Answer, Result]:
        """One answer, and what was found for the first of them: it is read as often as there are answers to it."""
        text, options, penalties = speaker.text, ticket.job.options, ticket.job.penalties
        constraint = self.grammars.constraint(ticket.job, prompt.thinks, lambda: not text.answering, lambda: text.tool)
        options = replace(options, decode=speaker.decoder(nth(options.decode, speaker.index), constraint, penalties))

        def on_token(token: int) -> bool:
            ticket.check()
            return speaker.hear(token)

        if isinstance(first, RunResult):
            return self._sessions.again(first, options, ticket.reporter, on_token), first
        job = replace(ticket.job, options=options)
        try:
            result = self._sessions.answer(prompt, job, apart, ticket.reporter, on_token)
        except TooLongError as error:  # nothing was read yet
            if not ticket.shorten(error.room):
                raise
            return self._answer(ticket, prompt, apart, speaker, first)
        return result.answer, result

    def _count(self, result: Result, told: Told) -> None:
        metrics, prompt = self.metrics, PromptTokens.of(result)
        metrics.requests.labels("ok").inc()
        metrics.compressed.inc(prompt.compressed)
        metrics.waited.observe(told.queued)
        metrics.ttft.observe(told.render + result.answer.ttft_s)
        if told.asked is not None:
            metrics.questions.labels(told.asked.found).inc()
        counts = {"prompt": prompt.total, "cached": prompt.cached, "kept": prompt.kept, "recalled": prompt.recalled}
        for kind, count in {**counts, "generated": told.generated}.items():
            metrics.tokens.labels(kind).inc(count)


def stopping() -> RequestError:
    """What is told to those who come, or wait, while the server ends."""
    return RequestError("the server is stopping; send the request to another", status=503, code="stopping")
