"""Conversation: turn after turn over one transcript; each reads what is new, and what it needs of what was left out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from sp.arrays import Ints
from sp.chat import Thinking, Turn
from sp.chat.answer import AnswerText, calling_of
from sp.chat.call_splitter import Calling
from sp.decode import Decoder
from sp.keywords import names_keywords
from sp.prompt import Prompt
from sp.prompt.prompt import prompt_of
from sp.session import request
from sp.session.disk.records import Array
from sp.session.disk.written import Written, put, written
from sp.session.memory import Slots
from sp.session.options import ConversationOptions, RunOptions
from sp.session.pipeline import Pipeline
from sp.session.recall import Memory, Recollection, told
from sp.session.result import OnToken, TurnResult, Usage
from sp.session.stream import AsyncStream, Stream, Work
from sp.session.tokenise import Vocabularies
from sp.trace import OnProgress, Reporter, reporting, silent


@names_keywords
class Conversation:
    """A transcript that grows, and what both models remember of it.

    The drafter keeps keys of all of it, so that it drafts only what is new and scores everything for each question. The
    target's cache holds what was kept so far, at true positions. A turn adds what is kept of the new messages, and
    brings back what was left out and matters now. History that was changed costs what comes after the change.

    One thread at a time may use it, and no other use of the pipeline may run meanwhile.

    Parameters
    ----------
    pipeline : Pipeline
    options : RunOptions, optional
        As for `Pipeline.run`; `keep_ratio` is the share of each turn's new tokens.
    memory : ConversationOptions, optional
    vocabularies : Vocabularies, optional
        That conversations of the same pipeline share.

    Raises
    ------
    ConfigError
        For options that no conversation can have.

    Examples
    --------
    >>> import sp
    >>> talk = sp.Conversation(sp.load(), sp.RunOptions(keep_ratio=0.2, compress="always"))  # doctest: +SKIP
    >>> talk.ask([{"role": "user", "content": f"{document} What is the number?"}]).answer.text  # doctest: +SKIP
    '8301947.'
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions | None = None,
        memory: ConversationOptions | None = None,
        *,
        vocabularies: Vocabularies | None = None,
    ) -> None:
        self.pipeline, self.options = pipeline, options or RunOptions()
        self.memory = memory or ConversationOptions()
        pipeline.ready(self.options, keys=self.memory.keys)
        tokens = vocabularies or Vocabularies(pipeline.target, pipeline.drafter)
        self._memory = Memory(pipeline, self.options, self.memory, tokens)
        self.used, self._at_work = 0.0, False
        pipeline.residency.guests.add(self)

    def __repr__(self) -> str:
        return f"Conversation({len(self.transcript):,} tokens, {len(self.slots):,} of them held, {self.pipeline!r})"

    @names_keywords
    def ask(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        on_token: OnToken | None = None,
        *,
        thinking: Thinking = Thinking(),  # noqa: B008
        kept_from: int = 0,
        reporter: Reporter = silent,
        progress: OnProgress | None = None,
    ) -> TurnResult:
        """Answer the last message of a chat, all of which is given each time; see `prompt_of` and `answer`. `progress`
        as for `Pipeline.run`.
        """
        prompt = prompt_of(messages, self.pipeline.target, tools or (), thinking, kept_from=kept_from)
        calling = calling_of(self.pipeline.target.template, tools)
        return self._ask(prompt, calling, reporter=reporting(progress, reporter), on_token=on_token)

    @names_keywords
    def stream(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: Thinking = Thinking(),  # noqa: B008
        kept_from: int = 0,
        progress: OnProgress | None = None,
    ) -> Stream[TurnResult]:
        """What `ask` answers, as pieces of text that come while it is decoded."""
        return Stream(*self._work(messages, tools, thinking, kept_from), reporting(progress))

    @names_keywords
    def astream(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: Thinking = Thinking(),  # noqa: B008
        kept_from: int = 0,
        progress: OnProgress | None = None,
    ) -> AsyncStream[TurnResult]:
        """The same for an async loop."""
        return AsyncStream(*self._work(messages, tools, thinking, kept_from), reporting(progress))

    def _work(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        thinking: Thinking,
        kept_from: int,
    ) -> tuple[Work[TurnResult], AnswerText]:
        target = self.pipeline.target
        prompt = prompt_of(messages, target, tools or (), thinking, kept_from=kept_from)
        calling = calling_of(target.template, tools)
        return partial(self._ask, prompt, calling), AnswerText(target.tokenizer, prompt.thinks, calling)

    def _ask(
        self, prompt: Prompt, calling: Calling | None, *, reporter: Reporter, on_token: OnToken | None
    ) -> TurnResult:
        result = self.answer(prompt, on_token, reporter=reporter)
        return replace(result, answer=result.answer.with_calls(calling))

    def answer(
        self,
        prompt: Prompt,
        on_token: OnToken | None = None,
        *,
        max_new_tokens: int | None = None,
        decode: Decoder | None = None,
        reporter: Reporter = silent,
    ) -> TurnResult:
        """Answer a prompt, which begins as far as may be like the one before and its answer.

        Whatever is raised, the conversation stands as before the turn, or as if the rest of the prompt were still to
        come; by `on_token`, as if the answer had been ended there.

        Parameters
        ----------
        prompt : Prompt
        on_token : callable, optional
            As for `greedy`.
        max_new_tokens : int, optional
            In place of that of the options.
        decode : Decoder, optional
            In place of that of the options; none that is speculative.
        reporter : Reporter

        Raises
        ------
        PromptError
            The transcript does not fit the target's window, or a budget of memory.
        """
        options = self.options
        if max_new_tokens is not None:
            options = replace(options, max_new_tokens=max_new_tokens)
        if decode is not None:
            options = replace(options, decode=decode)
        self._at_work, self._memory.options = True, self.memory
        try:
            done = request.answer(self.pipeline, prompt, options, self._memory, reporter=reporter, on_token=on_token)
        finally:
            self._at_work, self.used = False, time.perf_counter()
        assert done.turn is not None
        return turn_result(done.turn, done)

    def matching(self, ids: Ints) -> int:
        """How many first tokens of a prompt in the target's vocabulary are those of the transcript."""
        return self._memory.target.decided(ids)

    @property
    def transcript(self) -> Ints:
        """Tokens that earlier turns have decided, and what was read of the last answer, (n,)."""
        return self._memory.target.transcript

    @property
    def slots(self) -> Slots:
        """What the target's cache holds of them."""
        return self._memory.target.slots

    def fork(self, prompt: Prompt) -> Conversation:
        """Another conversation that knows what this one knows of a prompt's beginning; this one stays as it is."""
        mine, attempt = self._memory, self.pipeline.residency.attempt
        other = Conversation(self.pipeline, self.options, self.memory, vocabularies=mine.tokens)
        ids = mine.tokens.target(prompt).ids
        with ExitStack() as stack:
            other._memory.target = attempt(stack, "target", len(ids), partial(mine.target.fork, ids))
        if mine.drafter is not None:
            ids = mine.tokens.drafter(prompt).ids
            with ExitStack() as stack:
                other._memory.drafter = attempt(stack, "drafter", len(ids), partial(mine.drafter.fork, ids))
        return other

    def written(self, *, anew: bool = False) -> Written | None:
        """What it has come to know since this was last asked, or `anew` all of it, for a file; None after a failure."""
        return written(self._memory, anew=anew)

    def put(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Know what another one of the same models and options knew. DamagedError: it is not of these."""
        put(self._memory, facts, arrays)

    def leave(self) -> bool:
        """Move both caches to host memory until they are next needed; False if they were there."""
        left = self._memory.target.leave()
        return self._park_drafter() or left

    def leave_for(self, name: str | None) -> bool:
        if not self._at_work:
            return self.leave()
        beside = name == "target" and self._park_drafter()
        return self._memory.target.leave() if name == "drafter" else beside

    def _park_drafter(self) -> bool:
        return self._memory.drafter is not None and self._memory.drafter.trail.park()

    def clear(self) -> None:
        """Forget everything and give its memory back."""
        self._memory.target.clear()
        if self._memory.drafter is not None:
            self._memory.drafter.trail.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of both caches where the models are, and of what reads into them."""
        return self._memory.target.nbytes + sum(trail.nbytes for trail in self._memory.trails[1:])

    @property
    def host_nbytes(self) -> int:
        """Bytes of snapshots, and of caches that have left."""
        return sum(trail.host_nbytes for trail in self._memory.trails)


def turn_result(turn: Recollection, done: request.Done) -> TurnResult:
    """What a turn tells of its request."""
    prompt, way, n, new = turn.prompt, turn.plan.way, len(turn.prompt), len(done.settled.fixed)
    recalled = tuple(told(run, prompt, turn.threshold, way) for run in turn.runs) if way else ()
    drafting = [] if done.scored is None or turn.memory.drafter is None else done.scored.trace.stages
    usage = Usage(
        prompt=n,
        cached=turn.decided,
        new=new,
        kept=new if done.selection is None else int(done.selection.selected.sum()),
        recalled=sum(each.end - each.start for each in recalled),
        read=turn.cost,
        held=len(turn.plan.slots),
        drafted=sum(stage.tokens for stage in drafting if stage.name == "score"),
    )
    shares = done.scored.importance.densities if done.scored else ()
    how = done.answer, usage, done.answer.trace, recalled, prompt, turn.plan.slots.present(n)
    return TurnResult(*how, done.scores, done.settled.decision, shares)
