"""Sessions of the server: the choice of a session for each request, and their metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from sp.prompt import Prompt
from sp.serve.http import Metrics
from sp.serve.protocol import CompletionJob
from sp.session import Answer, Conversations, Pipeline, RunOptions, RunResult, TurnResult
from sp.session.result import OnToken
from sp.trace import Reporter

log = logging.getLogger("sp.serve")

SESSIONS_OFF = "the server keeps no sessions (--sessions 0)"
SEVERAL_CHOICES = "the request wants several answers (n)"
SESSION_DECLINED = "the request wants none (sp.session false)"


class Sessions:
    """Answers prompts, within a session where possible; used by the worker's thread only. `/metrics` shows the numbers
    as of its last request.

    `pipeline`: for requests without a session.
    """

    def __init__(self, pipeline: Pipeline, conversations: Conversations | None, metrics: Metrics) -> None:
        self.pipeline, self.conversations, self._metrics = pipeline, conversations, metrics
        self._held = (0, 0, 0)  # conversations, their device bytes, their host bytes; other threads read it
        if conversations is not None:
            suffix = "memory of conversations between requests."
            metrics.watch("sp_sessions", "Conversations in memory.", lambda: self._held[0])
            metrics.watch("sp_session_device_bytes", f"Device {suffix}", lambda: self._held[1])
            metrics.watch("sp_session_host_bytes", f"Host {suffix}", lambda: self._held[2])
        if conversations is not None and (shelf := conversations.shelf) is not None:
            metrics.watch("sp_session_files", "Conversations in files.", lambda: len(shelf))
            metrics.watch("sp_session_disk_bytes", "Bytes of the files of conversations.", lambda: shelf.nbytes)

    def answer(
        self, prompt: Prompt, job: CompletionJob, reason: str | None, reporter: Reporter, on_token: OnToken
    ) -> RunResult | TurnResult:
        """Answer a prompt. `reason`: the result of `refusal`."""
        if self.conversations is None or reason is not None:
            self._metrics.sessions.labels("none").inc()
            return self.pipeline.run(prompt, job.options, full=False, reporter=reporter, on_token=on_token)
        memory, recall = self.conversations.options, job.overrides.recall
        memory = memory if recall is None else replace(memory, recall=recall)
        with self._counted(self.conversations):
            return self.conversations.answer(prompt, job.options, on_token, memory=memory, reporter=reporter)

    def answer_again(self, run: RunResult, options: RunOptions, reporter: Reporter, on_token: OnToken) -> Answer:
        """Generate another answer to a prompt that a run without session has read, from the same selected tokens."""
        selection = np.ones(len(run.prompt), bool) if run.selection is None else run.selection
        options = replace(run.options or options, decode=options.decode)
        return self.pipeline.read(run.prompt, selection, options, reporter=reporter, on_token=on_token)

    @property
    def has_unsaved(self) -> bool:
        """True if something can be saved to files now."""
        return self.conversations is not None and self.conversations.has_unsaved

    def save(self) -> None:
        """Save it; does nothing without files."""
        try:
            if self.conversations is not None:
                self.conversations.save()
        except Exception:  # the request itself was answered
            log.exception("a session was not written")

    def when_idle(self, call: Callable[[], None]) -> None:
        """Register a function that another thread calls when everything is saved."""
        if self.conversations is not None and self.conversations.shelf is not None:
            self.conversations.shelf.on_idle = call

    def close(self) -> None:
        """Drop everything that is not saved to files."""
        if self.conversations is not None:
            with self._counted(self.conversations):
                self.conversations.close()

    def refusal(self, prompt: Prompt, job: CompletionJob) -> str | None:
        """Return the reason why a request cannot use a session; None if it can."""
        if job.choices > 1:
            return SEVERAL_CHOICES
        if self.conversations is None:
            return SESSIONS_OFF
        return self.conversations.refusal(prompt, job.options) if job.overrides.session else SESSION_DECLINED

    @contextmanager
    def _counted(self, conversations: Conversations) -> Iterator[None]:
        """Update the metrics of sessions at the end, also after an error."""
        before = replace(conversations.counts)  # a copy: the counts change in place
        try:
            yield
        finally:
            now, matches = conversations.counts, self._metrics.sessions
            matches.labels("hit").inc(now.hits - before.hits)
            matches.labels("fork").inc(now.forks - before.forks)
            matches.labels("miss").inc(now.misses - before.misses)
            self._metrics.evictions.inc(now.evictions - before.evictions)
            self._held = len(conversations), conversations.device_nbytes, conversations.host_nbytes
