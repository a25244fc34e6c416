"""The worker: requests wait in a fair queue, one thread answers them one by one."""

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
from sp.serve.fair_queue import FairQueue, QueueKey
from sp.serve.fields import RequestError, as_request_error, decoder_of_choice
from sp.serve.grammars import Grammars
from sp.serve.http import Metrics, busy
from sp.serve.messages import PromptTokens, RequestStats, kept_text, to_prompt, usage
from sp.serve.precheck import Precheck, check_length
from sp.serve.protocol import CompletionJob
from sp.serve.sessions import Sessions
from sp.serve.text import CompletionStream, Ended, Piece, ReplyText, unknown_call_lines, with_prompt_tokens
from sp.session import Answer, Conversations, Pipeline, RunResult, TurnResult

log = logging.getLogger("sp.serve")


class CancelledError(Exception):
    """The client has disconnected; raised inside the pipeline to end its work."""


@dataclass(frozen=True)
class Done:
    """The end of all answers of a request, with the usage block."""

    usage: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """The end of a request by an error, before or within its answer."""

    error: RequestError


@dataclass(frozen=True)
class StageProgress:
    """The progress of a stage over a prompt: `tokens` of `total`."""

    stage: str
    tokens: int
    total: int


Result = RunResult | TurnResult
Event = StageProgress | Piece | Ended | Done | Failed
PROGRESS_SECONDS = 0.25  # between two events of one stage
SCORING = "scoring"  # the stage that counts each token once per layer


class Writer(Protocol):
    """Writes the answers to one request, as one object or as events of a stream.

    `ping`: sent after a while without events, so that nobody takes the connection for dead.
    """

    ping: bytes

    def begin(self) -> bytes:
        """Return the events that open a stream once its request is accepted."""

    def progress(self, progress: StageProgress) -> bytes:
        """Return the event that reports how far the prompt is read, for a client that wants it."""

    def whole(self, events: Sequence[Piece | Ended], done: Done) -> dict[str, Any]:
        """Return the object of answers that are not streamed."""

    def piece(self, piece: Piece) -> bytes:
        """Return the events of one more piece."""

    def ended(self, end: Ended) -> bytes:
        """Return the events at the end of one answer, with its finish reason."""

    def last(self, done: Done) -> bytes:
        """Return the events at the end of all answers."""

    def failed(self, error: RequestError) -> bytes:
        """Return the end of a stream that failed."""

    def translated(self, error: RequestError) -> RequestError:
        """Return an error with the names of the request's own fields."""


@dataclass(eq=False)
class Ticket:
    """A request that waits or runs; `emit` is called on the worker's thread."""

    job: CompletionJob
    emit: Callable[[Event], None]
    queue_key: QueueKey = ("", "")
    submitted: float = field(default_factory=time.perf_counter)
    cancelled: threading.Event = field(default_factory=threading.Event)
    started: bool = False  # True once it has left the queue
    layers: int = 1  # of the model that scores

    def check(self, _: int = 0) -> None:
        """Raise CancelledError if the client has disconnected."""
        if self.cancelled.is_set():
            raise CancelledError

    def shorten(self, room: int | None) -> bool:
        """Limit the answer to the room there is; return True if that makes it shorter."""
        if room is None or not 0 < room < self.job.options.max_new_tokens:
            return False
        self.job = replace(self.job, options=replace(self.job.options, max_new_tokens=room))
        return True

    @contextmanager
    def reporter(self, stage: str, total: int) -> Iterator[Callable[[int], None]]:
        """Report a stage's progress, if the request is a stream that wants it; each report can cancel the work."""
        self.check()
        if not (self.job.stream and self.job.overrides.progress):
            yield self.check
            return
        done, reported, layers = 0, time.perf_counter(), self.layers if stage == SCORING else 1

        def tell(amount: int) -> None:
            nonlocal done, reported
            self.check()
            done += amount
            if done < total and (now := time.perf_counter()) - reported >= PROGRESS_SECONDS:
                reported = now
                self.emit(StageProgress(stage, done // layers, total // layers))

        self.emit(StageProgress(stage, 0, total // layers))
        yield tell
        self.emit(StageProgress(stage, total // layers, total // layers))


class PipelineWorker:
    """Runs tickets one by one; clients take turns.

    `pipeline`: used by nobody else meanwhile; `limit`: tickets that may wait. When the queue is full, a client with no
    or few tickets displaces one of a client with many; `conversations`: caches shared between requests; none without
    it.
    """

    def __init__(
        self, pipeline: Pipeline, metrics: Metrics, limit: int = 32, conversations: Conversations | None = None
    ) -> None:
        self.pipeline, self.metrics, self.limit = pipeline, metrics, limit
        self._sessions = Sessions(pipeline, conversations, metrics)
        self.precheck = Precheck(pipeline)
        self.grammars, self.started = Grammars(pipeline.target.tokenizer, pipeline.target.template), int(time.time())
        self._waiting: FairQueue[Ticket] = FairQueue()
        self._current: Ticket | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="sp-pipeline", daemon=True)  # must not keep the process
        self._sessions.when_idle(self._wake)
        metrics.watch("sp_queue_length", "Requests that wait.", lambda: len(self._waiting))
        metrics.watch("sp_running", "Requests that run, 0 or 1.", lambda: int(self._current is not None))

    @property
    def state(self) -> dict[str, Any]:
        """The state for `/health`."""
        alive = self._thread.is_alive() and not self._closed
        return {"status": "ok" if alive else "stopping", "waiting": len(self._waiting),
                "running": int(self._current is not None), "queue_limit": self.limit,
                "math": self.precision}  # fmt: skip

    @property
    def precision(self) -> dict[str, str]:
        """The precision of prefill, by model."""
        models = {"target": self.pipeline.target, "drafter": self.pipeline.drafter}
        return {role: str(loaded.model.arithmetic) for role, loaded in models.items() if loaded is not None}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check_room(self) -> None:
        """Raise RequestError if the queue would accept no client's request."""
        with self._changed:
            if self._closed:
                raise stopping()
            # The empty name is a client without tickets, who may displace others most easily.
            if len(self._waiting) >= self.limit and self._waiting.greediest(client="") is None:
                raise busy(f"{self.limit} requests wait already")

    def submit(self, job: CompletionJob, emit: Callable[[Event], None], queue_key: QueueKey = ("", "")) -> Ticket:
        """Queue a job; RequestError if there is no room or the worker is closed."""
        reader = self.pipeline.drafter or self.pipeline.target
        ticket, displaced = Ticket(job, emit, queue_key, layers=reader.model.config.layers), None
        full = busy(f"{self.limit} requests wait already")
        with self._changed:
            if self._closed:
                raise stopping()
            if len(self._waiting) >= self.limit:
                displaced = self._waiting.greediest(client=queue_key[0])
                if displaced is None:
                    raise full
                self._waiting.remove(displaced.queue_key, displaced)
            self._waiting.add(queue_key, ticket)
            self._changed.notify()
        if displaced is not None:  # outside of the lock: `emit` may wait
            self._fail(displaced, full)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a ticket: at once if it waits, at its next token or layer if it runs; nothing if it is done."""
        ticket.cancelled.set()
        with self._changed:
            if not self._waiting.remove(ticket.queue_key, ticket):
                return
        self.metrics.requests.labels("cancelled").inc()

    def close(self) -> None:
        """Take no more work and refuse waiting tickets; the one that runs continues."""
        with self._changed:
            self._closed = True
            refused = self._waiting.clear()
            self._changed.notify()
        for ticket in refused:
            self._fail(ticket, stopping())

    def stop(self, timeout: float = 10.0) -> None:
        """Close, cancel the ticket that runs and wait for the thread."""
        self.close()
        if (current := self._current) is not None:
            current.cancelled.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self.precheck.pool.shutdown(wait=False, cancel_futures=True)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _loop(self) -> None:
        while True:
            self._sessions.save()  # after the answer, so that no client waits for the disk
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed or self._sessions.has_unsaved)
                if not self._waiting and self._closed:
                    break
                if not self._waiting:  # woken to save
                    continue
                ticket = self._current = self._waiting.next()
                ticket.started = True
            try:
                with device_errors():
                    self._serve(ticket)
            except CancelledError:
                self.metrics.requests.labels("cancelled").inc()
            except Exception as error:  # one request must not end the thread
                if ticket.cancelled.is_set():  # several GPUs report their own error for the one that ends their work
                    self.metrics.requests.labels("cancelled").inc()
                    continue
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
        ticket.check()  # it may have been cancelled between the queue and here
        self.pipeline.check_files()
        prompt, question = to_prompt(job, target.template, target.tokenizer)
        check_length(self.pipeline, prompt, job.options)
        ticket.job = replace(job, penalties=with_prompt_tokens(job.penalties, prompt, target.tokenizer))
        reason = self._sessions.refusal(prompt, job)
        rendered = time.perf_counter()
        streams = [self._stream(ticket, prompt, index) for index in range(job.choices)]
        stats = RequestStats(question, reason, queue_seconds=start - ticket.submitted, render_seconds=rendered - start)
        result = None
        for stream in streams:
            answer, result = self._answer(ticket, prompt, reason, stream, result)
            stream.end(len(answer.tokens), ticket.job.options.max_new_tokens)
            stats.generated_tokens += len(answer.tokens)
            stats.reasoning_tokens += stream.text.reasoning_tokens
        assert result is not None, "a request has at least one choice"
        self.pipeline.check_files()  # mapped files that changed meanwhile may have changed the answer
        self._count(result, stats)
        used = usage(result, stats, job.options)
        if ignored := [*job.ignored, *unknown_call_lines(stream.text for stream in streams)]:
            used["sp"]["ignored"] = ignored
        if job.overrides.return_kept:
            used["sp"]["kept_text"] = kept_text(result)
        ticket.emit(Done(used))

    def _stream(self, ticket: Ticket, prompt: Prompt, index: int) -> CompletionStream:
        job, target = ticket.job, self.pipeline.target
        calling = job.tools.calling(target.template, prompt.thinks)
        text = ReplyText(target.tokenizer, job.stop, prompt.thinks, begins=job.kind == "chat", calling=calling)
        return CompletionStream(target.tokenizer, text, ticket.emit, index, job.logprobs)

    def _answer(
        self, ticket: Ticket, prompt: Prompt, reason: str | None, stream: CompletionStream, first: Result | None
    ) -> tuple[Answer, Result]:
        """Return one answer, and the result of the first: the prompt is read once for all answers."""
        text, options, penalties = stream.text, ticket.job.options, ticket.job.penalties
        constraint = self.grammars.constraint(ticket.job, prompt.thinks, lambda: not text.answering, lambda: text.tool)
        options = replace(
            options, decode=stream.decoder(decoder_of_choice(options.decode, stream.index), constraint, penalties)
        )

        def on_token(token: int) -> bool:
            ticket.check()
            return stream.push(token)

        if isinstance(first, RunResult):  # several choices use no session, see `Sessions.refusal`
            return self._sessions.answer_again(first, options, ticket.reporter, on_token), first
        job = replace(ticket.job, options=options)
        try:
            result = self._sessions.answer(prompt, job, reason, ticket.reporter, on_token)
        except TooLongError as error:  # raised before any token is read, so that the retry is cheap
            if not ticket.shorten(error.room):
                raise
            return self._answer(ticket, prompt, reason, stream, first)
        return result.answer, result

    def _count(self, result: Result, stats: RequestStats) -> None:
        metrics, prompt = self.metrics, PromptTokens.of(result)
        metrics.requests.labels("ok").inc()
        metrics.compressed.inc(prompt.compressed)
        metrics.waited.observe(stats.queue_seconds)
        metrics.ttft.observe(stats.render_seconds + result.answer.ttft_s)
        if stats.question is not None:
            metrics.questions.labels(stats.question.kind).inc()
        counts = {"prompt": prompt.total, "cached": prompt.cached, "kept": prompt.kept, "recalled": prompt.recalled}
        for kind, count in {**counts, "generated": stats.generated_tokens}.items():
            metrics.tokens.labels(kind).inc(count)


def stopping() -> RequestError:
    """Return the error for requests that come or wait while the server stops."""
    return RequestError("the server is stopping; send the request to another", status=503, code="stopping")
