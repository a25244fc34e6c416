"""Sessions of the server: which request goes on with one, and what is told of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from sp.prompt import Prompt
from sp.serve.http import Metrics
from sp.serve.protocol import Job
from sp.session import Answer, Conversations, Pipeline, RunOptions, RunResult, TurnResult
from sp.session.result import OnToken
from sp.trace import Reporter

log = logging.getLogger("sp.serve")

OFF = "the server keeps no sessions (--sessions 0, or several GPUs)"
SEVERAL = "the request wants several answers (n)"
NOT_ASKED = "the request wants none (sp.session false)"


class Sessions:
    """Answers prompts; the worker's thread alone does so, and what `/metrics` shows is what it left behind. `pipeline`:
    for what no conversation can answer.
    """

    def __init__(self, pipeline: Pipeline, talks: Conversations | None, metrics: Metrics) -> None:
        self.pipeline, self.talks, self._metrics = pipeline, talks, metrics
        self._held = (0, 0, 0)
        if talks is not None:
            where = "memory that they hold between requests."
            metrics.watch("sp_sessions", "Conversations that are remembered.", lambda: self._held[0])
            metrics.watch("sp_session_device_bytes", f"Device {where}", lambda: self._held[1])
            metrics.watch("sp_session_host_bytes", f"Host {where}", lambda: self._held[2])
        if talks is not None and (shelf := talks.shelf) is not None:
            metrics.watch("sp_session_files", "Conversations that are kept in files.", lambda: len(shelf))
            metrics.watch("sp_session_disk_bytes", "Bytes of these files.", lambda: shelf.nbytes)

    def answer(
        self, prompt: Prompt, job: Job, apart: str | None, reporter: Reporter, on_token: OnToken
    ) -> RunResult | TurnResult:
        """The answer to a prompt; `apart` is what `refusal` says of it."""
        if self.talks is None or apart is not None:
            self._metrics.sessions.labels("none").inc()
            return self.pipeline.run(prompt, job.options, full=False, reporter=reporter, on_token=on_token)
        memory, recall = self.talks.options, job.asked.recall
        memory = memory if recall is None else replace(memory, recall=recall)
        with self._counted(self.talks):
            return self.talks.answer(prompt, job.options, on_token, memory=memory, reporter=reporter)

    def again(self, found: RunResult, options: RunOptions, reporter: Reporter, on_token: OnToken) -> Answer:
        """Another answer to a prompt that a run by itself has read, from the same kept tokens."""
        kept = np.ones(len(found.prompt), bool) if found.selection is None else found.selection
        options = replace(found.options or options, decode=options.decode)
        return self.pipeline.read(found.prompt, kept, options, reporter=reporter, on_token=on_token)

    @property
    def behind(self) -> bool:
        """Whether something can be written to files now."""
        return self.talks is not None and self.talks.has_unsaved

    def save(self) -> None:
        """Have it written; nothing where there are no files."""
        try:
            if self.talks is not None:
                self.talks.save()
        except Exception:  # no request is worse off
            log.exception("a session was not written")

    def when_idle(self, call: Callable[[], None]) -> None:
        """Have something called, by another thread, whenever nothing is left to write."""
        if self.talks is not None and self.talks.shelf is not None:
            self.talks.shelf.on_idle = call

    def close(self) -> None:
        """Forget everything that files do not keep."""
        if self.talks is not None:
            with self._counted(self.talks):
                self.talks.close()

    def refusal(self, prompt: Prompt, job: Job) -> str | None:
        """Why a request is no turn of a conversation; None if it is one."""
        if job.choices > 1:
            return SEVERAL
        if self.talks is None:
            return OFF
        return self.talks.refusal(prompt, job.options) if job.asked.session else NOT_ASKED

    @contextmanager
    def _counted(self, talks: Conversations) -> Iterator[None]:
        """Afterwards the metrics tell what was found and what is held, whatever became of the request."""
        before = replace(talks.counts)
        try:
            yield
        finally:
            now, found = talks.counts, self._metrics.sessions
            found.labels("hit").inc(now.hits - before.hits)
            found.labels("fork").inc(now.forks - before.forks)
            found.labels("miss").inc(now.misses - before.misses)
            self._metrics.evictions.inc(now.evictions - before.evictions)
            self._held = len(talks), talks.device_nbytes, talks.host_nbytes
