"""Sessions: a request goes on with the conversation it belongs to; where it can have none, it is a run by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from sp.prompt import Prompt
from sp.serve.metrics import Metrics
from sp.serve.protocol import Job
from sp.session import Answer, Conversations, Pipeline, RunOptions, RunResult, TurnResult
from sp.session.result import OnToken, Reporter

OFF = "the server keeps no sessions (--sessions 0, or several cards)"
SEVERAL = "the request wants several answers (n)"
NOT_ASKED = "the request wants none (sp.session false)"


class Sessions:
    """Answers prompts; the worker's thread alone does so, and what `/metrics` shows is what it left behind.

    Parameters
    ----------
    pipeline : Pipeline
        For what no conversation can answer.
    talks : Conversations or None
        None remembers nothing.
    metrics : Metrics
    """

    def __init__(self, pipeline: Pipeline, talks: Conversations | None, metrics: Metrics) -> None:
        self.pipeline, self.talks, self._metrics = pipeline, talks, metrics
        self._held = (0, 0, 0)
        if talks is not None:
            where = "memory that they hold between requests."
            metrics.watch("sp_sessions", "Conversations that are remembered.", lambda: self._held[0])
            metrics.watch("sp_session_device_bytes", f"Device {where}", lambda: self._held[1])
            metrics.watch("sp_session_host_bytes", f"Host {where}", lambda: self._held[2])

    def answer(
        self, prompt: Prompt, job: Job, apart: str | None, reporter: Reporter, on_token: OnToken
    ) -> RunResult | TurnResult:
        """The answer to a prompt; `apart` is what `refusal` says of it."""
        if self.talks is None or apart is not None:
            self._metrics.sessions.labels("none").inc()
            return self.pipeline.run(prompt, job.options, full=False, reporter=reporter, on_token=on_token)
        memory = self.talks.options if job.recall is None else replace(self.talks.options, recall=job.recall)
        with self._counted(self.talks):
            return self.talks.answer(prompt, job.options, on_token, memory=memory, reporter=reporter)

    def again(self, found: RunResult, options: RunOptions, reporter: Reporter, on_token: OnToken) -> Answer:
        """Another answer to a prompt that a run by itself has read, from the same kept tokens."""
        kept = np.ones(len(found.prompt), bool) if found.selection is None else found.selection
        options = replace(found.options or options, decode=options.decode)
        return self.pipeline.read(found.prompt, kept, options, reporter=reporter, on_token=on_token)

    def clear(self) -> None:
        """Forget everything."""
        if self.talks is not None:
            with self._counted(self.talks):
                self.talks.clear()

    def refusal(self, prompt: Prompt, job: Job) -> str | None:
        """Why a request is no turn of a conversation; None if it is one."""
        if job.choices > 1:
            return SEVERAL
        if self.talks is None:
            return OFF
        return self.talks.refusal(prompt, job.options) if job.session else NOT_ASKED

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
